"""How a ticket is executed. Each way is a Runner; the first that can run a ticket executes it.

Import from its modules: this one runs in the spawner of a worker, which has to stay small.
"""
