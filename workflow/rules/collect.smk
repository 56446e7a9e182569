# The table and the figures of a batch, and its target. They take a second or two and little memory, so
# they do not wait for a worker in an allocation. The freeze lists the runs, because there may be too many
# for arguments.
for batch in kochi.batches:

    rule:
        name:
            f"collect_{batch.name}"
        input:
            records=batch.input(checkpoints, "records"),
            captured=batch.input(checkpoints, "outputs"),
        output:
            table=batch.files.table,
            vectors=[vector for _, vector in batch.files.figures],
            markdown=report(
                batch.files.markdown,
                caption="../report/table.rst",
                category="Kochi",
                subcategory=batch.experiment.name,
                labels={"batch": batch.grid.batch, "shows": "table"},
            ),
            figures=[
                report(
                    image,
                    caption="../report/figure.rst",
                    category="Kochi",
                    subcategory=batch.experiment.name,
                    labels={"batch": batch.grid.batch, "shows": kochi.verbatim(plot.name)},
                )
                for (image, _), plot in zip(batch.files.figures, batch.grid.plots)
            ],
        localrule: True
        params:
            experiment=kochi.verbatim(batch.experiment.file),
            batch=kochi.verbatim(batch.grid.batch),
            shows=batch.shows,
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.tables {params.experiment:q}'
            " {params.batch:q} {output.table:q}"


# With `references`, a target that fails if a check fails. It checks again each time: a reference
# accepts something until a day. Snakemake would delete an output of a job that failed, and no log.
for batch in kochi.checks:

    rule:
        name:
            batch.check_name
        input:
            table=batch.files.table,
        log:
            batch.files.checks,
        localrule: True
        params:
            experiment=kochi.verbatim(batch.experiment.file),
            batch=kochi.verbatim(batch.grid.batch),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.tables {params.experiment:q}'
            " {params.batch:q} {log:q} --check"


# With `repeat`, how often each point is to run: it is looked at after `min` runs, and again after more.
for batch in kochi.batches:
    if batch.grid.repeat is not None:

        checkpoint:
            name:
                batch.look_name
            input:
                records=batch.input(checkpoints, "records"),
                captured=batch.input(checkpoints, "outputs"),
            output:
                look=batch.files.look,
            wildcard_constraints:
                look="[0-9]+",
            localrule: True
            params:
                experiment=kochi.verbatim(batch.experiment.file),
                batch=kochi.verbatim(batch.grid.batch),
                repeat=kochi.verbatim(repr(batch.grid.repeat)),
                metrics=kochi.verbatim({k: str(v) for k, v in batch.grid.metrics.items()}),
            shell:
                '"$KOCHI_PYTHON" -P -m snakemake_kochi.tables {params.experiment:q}'
                " {params.batch:q} {output.look:q} --look {wildcards.look}"


for batch in kochi.batches:

    rule:
        name:
            batch.name
        # Of a part of the batch, the end of the run makes the table.
        input:
            kochi.wanted(batch, checkpoints),
        localrule: True
