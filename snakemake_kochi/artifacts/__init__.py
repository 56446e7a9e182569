"""Results: journaled, committed to a branch per machine, merged into one for people.

Import from its modules: this one runs in each run of a batch, thousands of times.
"""
