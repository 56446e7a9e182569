"""The worker: a long-lived process on one node that claims tickets and runs them.

Import from its modules: a worker's spawner also imports this module and has to stay small.
"""
