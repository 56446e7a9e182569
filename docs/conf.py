"""How Sphinx builds the site of the documentation: `make docs`."""

from snakemake_kochi import __version__

project = "snakemake_kochi"
author = "the snakemake_kochi developers"
release = __version__
extensions = ["myst_parser", "sphinx_click"]
html_theme = "furo"
html_title = f"snakemake_kochi {release}"
# intro.md is for Snakemake's plugin catalog, which renders it by itself.
exclude_patterns = ["intro.md"]
# Links to headings, as GitHub makes them.
myst_heading_anchors = 4
# YAML with placeholders and console sessions with cut output are no valid code of their languages.
suppress_warnings = ["misc.highlighting_failure"]
