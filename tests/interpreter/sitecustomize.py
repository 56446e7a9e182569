"""What each Python does first that a test starts: it spends less on the collection of garbage.

With Python's own settings, that is a third of the time of a Snakemake that ends at once: at the
imports, and once more for all that was imported when the interpreter ends. What the process does
is the same. This directory is on the PYTHONPATH of the tests; see support.PYTHONPATH.
"""

import atexit
import gc

gc.set_threshold(50_000, 20, 100)
# What is there at the end of the process ends with it, and need not be searched for cycles.
atexit.register(gc.freeze)
