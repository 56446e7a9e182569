# One rule per build script; the parameters it depends on are its wildcards.
for build in kochi.builds:

    rule:
        name:
            build.name
        input:
            build.installs,
        output:
            build.output,
        wildcard_constraints:
            **build.constraints,
        # `make -j$(nproc)` is to have all CPUs.
        resources:
            kochi_pinned=0,
            kochi_joins=1,
        params:
            **build.determined_by,
            experiment=kochi.verbatim(build.experiment.file),
            batch=kochi.verbatim(build.batch),
            parameters=lambda wildcards, build=build: build.assignments(wildcards),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases build {params.experiment:q}'
            " --batch={params.batch:q} --parameters {params.parameters:q}"
            " --installs {input:q} --output {output:q}"
