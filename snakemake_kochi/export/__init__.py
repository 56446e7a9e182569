"""Results for publication: a research object crate, a citation file and an artifact appendix.

Import from the modules, not from here.
"""
