"""Install, build and run: each executes a user's script in a prepared environment.

The data, and who makes it:

* a freeze (`freeze.py`): the code and the texts of a project at the start of a run, with what its
  points take from git (`variants.py`), the sources of recipes (`sources.py`), and facts and CSV
  files (`given.py`); what the builds and runs of one batch need of it (`batch_freeze.py`);
* an environment and a script in it (`script.py`), maybe in a container (`isolation.py`), in a
  private directory (`workspace.py`);
* products (`products.py`): installations (`install.py`) and builds (`build.py`);
* a record (`record.py`) and artifacts (`outputs.py`) of each attempt of a run.

The way of one point: `__main__.py` is the rule's command. It reads `batch_freeze.py` and
`products.py`, and calls `run.py`, which makes a `workspace.py`, lets `launcher.py` say how tasks
start, begins the `record.py`, executes the script by `script.py` while `node.py` watches the
computer, copies the `outputs.py`, and asks for the `facts.py`. `keep.py` journals and commits.
These are 12 files. `library/` makes the rules, and `job.py` is what `kochi enqueue` hands to a
worker.

Import from the modules, not from here: every run of a batch imports this package, thousands of
times.
"""
