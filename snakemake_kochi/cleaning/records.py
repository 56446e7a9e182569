"""Launches, allocations, settings of workers, paused batches, trials and facts: what nobody needs.

On this host the kernel tells whether a process is alive. On another host its heartbeat does: its
file has not changed for SILENCE at least, which is many times as long as after which others presume
the process dead. Both times come from the file server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from snakemake_kochi.cleaning.removal import LEFTOVER_AGE, Removal
from snakemake_kochi.detached.launches import Found, look_at
from snakemake_kochi.files import is_there, list_names
from snakemake_kochi.paths import LaunchPaths, MachinePaths
from snakemake_kochi.project.clean_rules import DAY, Rules
from snakemake_kochi.queue.paused import list_paused

SILENCE = 7 * DAY  # seconds


def clean_records(machine: MachinePaths, rules: Rules, removal: Removal) -> None:
    """Delete what needs no look at runs and workers."""
    for directory in (machine.directory, machine.launches):
        removal.sweep(directory)
    for name in machine.launch_names():
        with removal.tolerating(f"launch {name}"):
            _clean_launch(machine.launch(name), rules, removal)
    with removal.tolerating(f"paused batches in {machine.paused}"):
        _clean_paused(machine, removal)
    with removal.tolerating(f"trials in {machine.directory}"):
        _clean_trials(machine, removal)
    with removal.tolerating(f"facts in {machine.all_facts}"):
        _clean_facts(machine, rules, removal)


def clean_allocations(
    machine: MachinePaths,
    rules: Rules,
    removal: Removal,
    runs: Collection[str],
    began: float,
) -> None:
    """Delete the notes and outputs of allocations, and the settings of workers that were started
    without a number.

    `runs`: the identities of those that live, or have a living worker; `began`: when the first of
    them began, in seconds since the epoch: an allocation that a run has requested may begin as
    long as the run lasts.
    """
    removal.sweep(machine.allocations)
    for name in list_names(machine.allocations):
        path = machine.allocations / name
        if name.startswith(".") or any(name.startswith(f"{own}-") for own in runs):
            continue
        with contextlib.suppress(FileNotFoundError):
            is_kept = rules.keeps("runs", (name.rpartition("-")[0],))
            if removal.is_older(path, rules.runs) and not is_kept:
                removal.remove("leftovers", path)
    removal.sweep(machine.settings_of_workers)
    for name in list_names(machine.settings_of_workers):
        path = machine.settings_of_workers / name
        with contextlib.suppress(FileNotFoundError):
            age = max(rules.runs, LEFTOVER_AGE)
            is_old = removal.is_older(path, max(age, removal.now - began + LEFTOVER_AGE))
            if not name.startswith(".") and is_old:
                removal.remove("leftovers", path)


def _clean_launch(paths: LaunchPaths, rules: Rules, removal: Removal) -> None:
    if not removal.is_older(paths.directory, rules.runs):
        return
    try:
        found = look_at(paths)
    except FileNotFoundError:
        found = None  # it was killed before it had written its first file
    names: tuple[str, ...] = (paths.directory.name,)
    if found is None:
        is_over = removal.is_older(paths.directory, max(rules.runs, LEFTOVER_AGE))
    else:
        is_over = found.is_over or _is_silent(found, rules, removal)
        names = (*names, found.launch.name, found.launch.directory)
    if is_over and not rules.keeps("launches", names):
        removal.remove("launches", paths.directory)


def _is_silent(found: Found, rules: Rules, removal: Removal) -> bool:
    if found.state == "launched" and found.launch.job_name is None:
        # Its process would have begun within a minute.
        return removal.is_older(found.paths.launch, max(rules.runs, LEFTOVER_AGE))
    return found.state == "elsewhere" and removal.is_older(
        found.paths.alive, max(rules.runs, SILENCE)
    )


def _clean_facts(machine: MachinePaths, rules: Rules, removal: Removal) -> None:
    """Delete old outputs of commands: a run executes them again where it needs them."""
    for host in list_names(machine.all_facts):
        removal.sweep(machine.all_facts / host)
        for path in sorted((machine.all_facts / host).glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                if removal.is_older(path, rules.runs):
                    removal.remove("leftovers", path)


def _clean_paused(machine: MachinePaths, removal: Removal) -> None:
    """Delete that a batch is paused whose directory is gone: nobody can resume it there."""
    removal.sweep(machine.paused)
    for paused in list_paused(machine):
        if not is_there(paused.directory):
            with contextlib.suppress(FileNotFoundError):
                removal.remove("leftovers", machine.paused_batch(paused.digest))


def _clean_trials(machine: MachinePaths, removal: Removal) -> None:
    pattern = machine.trial("*").directory
    for path in pattern.parent.glob(pattern.name):
        if removal.is_older(path, LEFTOVER_AGE):
            removal.remove("leftovers", path)
