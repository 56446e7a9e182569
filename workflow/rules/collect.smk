# The table and the plot of a batch, and its target. They take a second or two and little memory, so
# they do not wait for a worker in an allocation. The freeze lists the runs, because there may be too many
# for arguments.
for batch in kochi.batches:

    rule:
        name:
            f"collect_{batch.name}"
        input:
            records=batch.files.records,
            captured=batch.files.captured,
        output:
            table=batch.files.table,
            markdown=report(
                batch.files.markdown, category="Kochi", subcategory=batch.experiment.name
            ),
            plot=report(batch.files.plot, category="Kochi", subcategory=batch.experiment.name),
        localrule: True
        params:
            experiment=kochi.verbatim(batch.experiment.file),
            batch=kochi.verbatim(batch.grid.batch),
            varying=kochi.verbatim(list(batch.grid.varying)),
            metrics=kochi.verbatim(dict(batch.grid.metrics)),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.tables {params.experiment:q}'
            " --batch={params.batch:q} --table={output.table:q} --markdown={output.markdown:q}"
            " --plot={output.plot:q}"


for batch in kochi.batches:

    rule:
        name:
            batch.name
        input:
            batch.files.markdown,
            batch.files.table,
            batch.files.plot,
            batch.files.artifacts,
        localrule: True
