"""What each Python does first that a test starts: it spends less on the collection of garbage.

With Python's own settings, a Snakemake that ends at once spends a tenth of its time on that. What
the process does is the same. This directory is on the PYTHONPATH of the tests; see
support.PYTHON_PATH.
"""

import gc

gc.set_threshold(50_000, 20, 100)
