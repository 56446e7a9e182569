# One rule per build script. The parameters on which it depends are its wildcards; everything else that
# determines it is in its name.
for build in kochi.builds:

    rule:
        name:
            build.name
        input:
            lambda wildcards, build=build: kochi.kept.input_files(
                build.installs,
                lambda: kochi.kept.is_there(build.output.format(**wildcards)),
            ),
        output:
            build.output,
        wildcard_constraints:
            **build.constraints,
        # `make -j$(nproc)` shall have all CPUs.
        resources:
            kochi_pinned=0,
            kochi_joins=1,
        params:
            experiment=kochi.verbatim(build.experiment.file),
            batch=kochi.verbatim(build.batch),
            parameters=lambda wildcards, build=build: build.assignments(wildcards),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases build {params.experiment:q}'
            " --batch={params.batch:q} --parameters {params.parameters:q}"
            " --installs {input:q} --output {output:q}"
