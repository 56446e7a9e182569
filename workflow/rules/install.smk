# One rule per recipe. The path of an installation has a digest of everything that determines it. The
# inputs are the manifests of the recipes on which it depends: a new installation of one of them makes
# this one stale.
for recipe in kochi.recipes:

    rule:
        name:
            recipe.name
        input:
            recipe.needed,
        output:
            manifest=recipe.manifest,
            activation=recipe.activation,
        localrule: recipe.on_login_node
        # `make -j$(nproc)` must get all CPUs.
        resources:
            **recipe.resources,
            kochi_pinned=0,
            kochi_joins=1,
        params:
            requirement=kochi.verbatim(str(recipe.requirement)),
        shell:
            '"$KOCHI_PYTHON" -P -m snakemake_kochi.phases install {params.requirement:q}'
            " --installs {input:q} --output {output.manifest:q}"
            " --activation {output.activation:q}"
