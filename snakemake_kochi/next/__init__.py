"""The worker and the executor on `tickets`, see protocol.md; used with KOCHI_NEXT=1 alone.

They are to take the places of `worker`, `executor`, `queue`, `packs` and `packing`.

views    what people see of jobs, queues and workers, and how they end them
runs     the runs of a directory as other commands see them, and which files are being made
attempts which attempt of a job counts, for records and artifacts
by_hand  jobs and workers that a person starts
echo     what a worker's jobs print, in a terminal
"""

import os

IS_NEXT = os.environ.get("KOCHI_NEXT") == "1"
