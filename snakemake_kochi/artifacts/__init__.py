"""Results: journaled, committed to a branch per machine, and merged into one branch for people.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
