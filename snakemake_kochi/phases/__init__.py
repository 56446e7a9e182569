"""Install, build and run: a script of the user's, executed in an environment of ours.

Import from its modules: this one runs in each run of a batch, thousands of times.
"""
