"""`kochi farm`: a file of commands as a run of the queue.

tasks  a list becomes tasks: lines, what they need, templates
runners  what the INI files of PyTaskFarmer put around a command
state  what is known of them, in TASKS.farm/
run    the run: it submits, collects ends, tries again, and takes over from a dead one
"""
