# One rule per batch, or a few. Its wildcards are the parameters and the duplicate, its output the artifacts.
for run in kochi.runs:

    rule:
        name:
            run.name
        input:
            build=run.build,
            prepared=run.prepared,
            installs=run.installs,
        output:
            artifacts=list(run.group.artifacts),
            record=run.group.record,
        wildcard_constraints:
            **run.group.constraints,
        threads: run.threads(workflow)
        resources:
            **run.resources,
        params:
            **run.params,
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases run {params.experiment:q}'
            " --batch={params.batch:q} --parameters {params.parameters:q}"
            " --duplicate {params.duplicate} --build {input.build:q}"
            " --installs {input.installs:q} --output {output.record:q}"
            " --artifacts {output.artifacts:q}"
