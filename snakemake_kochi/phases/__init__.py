"""Install, build and run: each executes a user's script in a prepared environment.

The way of one point: `freeze` fixes the inputs of a run (library/loading.py calls it), `library/`
makes rules of them (variants.py those of builds, batch.py and run_group.py those of runs), and each
rule is `__main__`. That calls `install` and `build`, and for a point `run`, with the part of the
freeze that `batch_freeze` has. They execute scripts by `script`, whose end is `ending`; `products`
are the files between them. `record` says what happened, and `keep` commits it.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
