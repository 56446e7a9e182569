# One rule per build script, and one per `prepare` script. Its wildcards are the parameters on which it
# depends. Its output path has a digest of everything else that determines it.
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
        # `make -j$(nproc)` must get all CPUs.
        resources:
            **build.resources,
            kochi_pinned=0,
            kochi_joins=1,
        params:
            phase=build.kind,
            experiment=kochi.verbatim(build.experiment.file),
            batch=kochi.verbatim(build.batch),
            parameters=build.assignments,
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases {params.phase} {params.experiment:q}'
            " --batch={params.batch:q} --parameters {params.parameters:q}"
            " --installs {input:q} --output {output:q}"
