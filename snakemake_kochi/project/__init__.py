"""kochi.yaml and experiments as frozen dataclasses; parameters; validation.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
