"""Install, build and run: each executes a user's script in a prepared environment.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
