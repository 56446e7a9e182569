rule included:
    output:
        "included/out.txt",
    params:
        script=workflow.source_path("said.sh"),
    shell:
        "bash {params.script} > {output}"
