"""Machines behind a login host: a command for such a machine is the same command, executed there.

Nothing is imported here: git starts `remote/session.py` for each transfer.
"""
