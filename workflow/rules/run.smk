# One rule per batch. Its wildcards are the parameters and the duplicate, its output the artifacts. By
# default, a run has its worker to itself: another job beside it would disturb the measurement.
for batch in kochi.batches:
    for index, group in enumerate(batch.files.groups):

        rule:
            name:
                batch.run_name(index)
            input:
                build=lambda wildcards, batch=batch, group=group: kochi.build_of_run(
                    batch, group, wildcards
                ),
                # Only if some are missing, because Snakemake calls a function for each run.
                installs=(
                    batch.installs
                    if kochi.kept.are_there(batch.installs)
                    else lambda wildcards, batch=batch, group=group: (
                        kochi.kept.input_files(
                            batch.installs,
                            lambda: batch.is_finished(kochi.kept, group, wildcards),
                        )
                    )
                ),
            output:
                artifacts=list(group.artifacts),
                record=group.record,
            wildcard_constraints:
                **group.constraints,
            threads: kochi.threads_of_run(workflow, batch, group)
            resources:
                kochi_exclusive=int(batch.grid.run.exclusive),
                # Without `cores`, only the script knows how many threads it starts.
                kochi_pinned=int(bool(batch.grid.run.cores)),
                kochi_queue=(
                    (lambda wildcards, group=group: group.point(wildcards).queue or "")
                    if batch.names_queue
                    else ""
                ),
                kochi_name=lambda wildcards, group=group: group.point(wildcards).name,
            params:
                **batch.determined_by,
                experiment=kochi.verbatim(batch.experiment.file),
                batch=kochi.verbatim(batch.grid.batch),
                seen=lambda wildcards, batch=batch, group=group: batch.seen_by_run(
                    group.point(wildcards)
                ),
                duplicate=lambda wildcards, group=group: group.point(wildcards).duplicate,
                # Parameters that the run does not see make nothing stale: Snakemake does not
                # compare params whose function has the argument `output`.
                parameters=lambda wildcards, output, batch=batch, group=group: (
                    batch.assignments(group.point(wildcards))
                ),
            shell:
                '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases run {params.experiment:q}'
                " --batch={params.batch:q} --parameters {params.parameters:q}"
                " --duplicate {params.duplicate} --build {input.build:q}"
                " --installs {input.installs:q} --record {output.record:q}"
                " --artifacts {output.artifacts:q}"
