"""The worker and the executor on `tickets`, see protocol.md; used with KOCHI_NEXT=1 alone.

They are to take the places of `worker`, `executor`, `queue`, `packs` and `packing`.

views    what people see of jobs, queues and workers, and how they end them
by_hand  jobs and workers that a person starts
"""

import os

IS_NEXT = os.environ.get("KOCHI_NEXT") == "1"
