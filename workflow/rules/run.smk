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
                prepared=(
                    (
                        lambda wildcards, batch=batch, group=group: kochi.prepared_for_run(
                            batch, group, wildcards
                        )
                    )
                    if batch.prepare
                    else []
                ),
                installs=kochi.installs_of_run(batch, group),
            output:
                artifacts=list(group.artifacts),
                record=group.record,
            wildcard_constraints:
                **group.constraints,
            threads: kochi.threads_of_run(workflow, batch, group)
            resources:
                **batch.resources(group),
                kochi_exclusive=int(batch.grid.run.exclusive),
                # Without that, only the script knows how many threads it starts.
                kochi_pinned=int(batch.requests_cores),
                kochi_queue=(
                    (lambda wildcards, group=group: group.point(wildcards).queue or "")
                    if batch.names_queue
                    else ""
                ),
                kochi_name=lambda wildcards, group=group: group.point(wildcards).name,
            params:
                **batch.determined_by(group),
                experiment=kochi.verbatim(batch.experiment.file),
                batch=kochi.verbatim(batch.grid.batch),
                seen=lambda wildcards, batch=batch, group=group: batch.seen_by_run(
                    group.point(wildcards)
                ),
                duplicate=group.duplicate,
                parameters=batch.words(group),
            shell:
                '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases run {params.experiment:q}'
                " --batch={params.batch:q} --parameters {params.parameters:q}"
                " --duplicate {params.duplicate} --build {input.build:q}"
                " --installs {input.installs:q} --record {output.record:q}"
                " --artifacts {output.artifacts:q}"
