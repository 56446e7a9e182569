"""The ways to execute a ticket.

Each way is a Runner, and the first Runner that can run a ticket executes it. Import from the
modules: a worker's spawner also imports this package and has to stay small.
"""
