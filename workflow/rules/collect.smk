# The table and the plot of a batch, and the target that stands for all of it.
for batch in kochi.batches:

    rule:
        name:
            f"collect_{batch.name}"
        input:
            records=batch.records,
            captured=batch.captured,
        output:
            table=batch.table,
            markdown=report(batch.markdown, category="Kochi", subcategory=batch.experiment.name),
            plot=report(batch.plot, category="Kochi", subcategory=batch.experiment.name),
        resources:
            kochi_joins=1,
        params:
            title=kochi.verbatim(f"{batch.experiment.name} {batch.grid.batch}"),
            varying=kochi.verbatim(list(batch.grid.varying)),
            metrics=kochi.verbatim(dict(batch.grid.metrics)),
        script:
            "../scripts/collect.py"


for batch in kochi.batches:

    rule:
        name:
            batch.name
        input:
            batch.markdown,
            batch.table,
            batch.plot,
            batch.artifacts,
        localrule: True
