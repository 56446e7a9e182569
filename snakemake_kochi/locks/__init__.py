"""The locks of a machine, of builds, commits and launches: their settings, and holding them."""

from snakemake_kochi.locks.lock import (
    Held,
    Kind,
    LockBusyError,
    LockLostError,
    advice,
    hold,
    is_held,
)
from snakemake_kochi.locks.settings import (
    LockSettings,
    find_lock_settings,
    intended_lock_settings,
    read_lock_settings,
    settle_locks,
)
