"""Zygotes: processes that have parsed a workflow, and whose copies run its jobs.

In the worker, `runner.py` decides which zygotes exist, and `link.py` has the worker's side of a
zygote and the messages. `process.py` is the zygote itself. `copies.py` prepares each copy of a
zygote, and `reads.py` finds out when a parse is outdated.
"""
