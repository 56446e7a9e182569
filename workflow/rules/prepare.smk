# The `prepare` scripts. Each has a rule like that of a build, and its output is an input of the runs.
for prepare in kochi.prepared:

    rule:
        name:
            prepare.name
        input:
            lambda wildcards, prepare=prepare: kochi.kept.input_files(
                prepare.installs,
                lambda: kochi.kept.is_there(prepare.output.format(**wildcards)),
            ),
        output:
            prepare.output,
        wildcard_constraints:
            **prepare.constraints,
        # It may use all CPUs, as a build does.
        resources:
            kochi_pinned=0,
            kochi_joins=1,
        params:
            experiment=kochi.verbatim(prepare.experiment.file),
            batch=kochi.verbatim(prepare.batch),
            parameters=lambda wildcards, prepare=prepare: prepare.assignments(wildcards),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases prepare {params.experiment:q}'
            " --batch={params.batch:q} --parameters {params.parameters:q}"
            " --installs {input:q} --output {output:q}"
