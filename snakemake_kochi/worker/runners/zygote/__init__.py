"""Zygotes: processes that have parsed a workflow, and whose copies run its jobs.

In the worker, `runner.py` decides which zygotes exist. `process.py` is the zygote itself.
`link.py` has the messages between the two, and between a zygote and its copies. `parse_state.py`
finds out when a parse is outdated, and gives each copy what it must have of its own.
"""
