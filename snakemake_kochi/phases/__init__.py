"""Install, build and run: each executes a script of the user's in an environment of ours.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
