"""Install, build and run: each executes a user's script in a prepared environment.

The data, and who makes it:

* a freeze (`freeze.py`): the code and the texts of a project at the start of a run, and the code
  of other commits that its points name; with the sources of recipes, facts and files of values
  (`sources.py`); what the builds and runs of one batch need of it (`batch_freeze.py`);
* an environment and a script in it (`script.py`), maybe in a container (`isolation.py`), in a
  private directory (`products.py`);
* products (`products.py`): installations and builds (`make.py`);
* a record (`run.py`) and artifacts (`outputs.py`) of each attempt of a run.

The way of one point: `__main__.py` is the rule's command. It reads `batch_freeze.py` and
`products.py`, and calls `run.py`, which makes a private directory, lets `launcher.py` say how tasks
start, begins the record, executes the script by `script.py` while `node.py` watches the computer
and asks for the facts, and copies the artifacts by `outputs.py`, which journals and commits.
These are 8 files. `library/` makes the rules, and `job.py` is what `kochi enqueue` hands to a
worker.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
