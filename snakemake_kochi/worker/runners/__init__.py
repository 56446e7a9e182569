"""How a ticket is executed. Each way is a Runner; the first that can run a ticket executes it.

Import from the modules: this one also runs in a worker's spawner, which has to stay small.
"""
