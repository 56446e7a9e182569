"""kochi.yaml and experiments as frozen dataclasses; parameters; validation.

Import from its modules: this one runs in each run of a batch, thousands of times.
"""
