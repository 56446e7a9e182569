# The table and the plot of a batch, and the target that stands for all of it. They take a second or
# two and hardly any memory: a worker, for which an allocation may have to be waited for, is not
# worth it. (Which runs there are the freeze says: as arguments they would be too many.)
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
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.results {params.experiment:q}'
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
