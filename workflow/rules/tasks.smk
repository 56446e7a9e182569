# A file of commands as one target: `kochi farm` in a rule.
#
#     module simulation:
#         snakefile: snakefile("tasks")
#         config: {"tasks": "tasks.txt"}
#
#     use rule tasks from simulation as simulate
#
# The file may be the output of another rule. When it is newer, its new and changed lines run.
import sys


rule tasks:
    input:
        config["tasks"],
    output:
        f"{config['tasks']}.farm/finished",
    # It requests allocations where the machine has them.
    localrule: True
    params:
        options=config.get("options", ""),
        # Snakemake does not compare what a function with `output` returns: another Python makes
        # no result stale.
        python=lambda wildcards, output: sys.executable,
        directory=lambda wildcards, output: output[0].removesuffix("/finished"),
    shell:
        "{params.python:q} -P -m snakemake_kochi.cli farm --workdir {params.directory:q}"
        " {params.options} {input:q} --retry"
