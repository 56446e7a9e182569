"""A long-lived process on one node that claims tickets and runs them.

Import from its modules: this one runs in the spawner of a worker, which has to stay small.
"""
