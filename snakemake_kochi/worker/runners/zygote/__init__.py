"""Jobs of Snakemake in copies of a process that has parsed their workflow: a zygote.

In the worker, `runner.py` decides which zygotes there are, and `link.py` has a zygote as the worker
sees it, and the messages. `process.py` is the zygote itself. `copies.py` has what each copy of it
needs for itself, and `reads.py` what makes its parse outdated.
"""
