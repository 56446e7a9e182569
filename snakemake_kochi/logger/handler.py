"""`snakemake --logger kochi` shows failures, progress and the end of a run; the log has the rest.

Snakemake's own `--quiet rules progress` also hides failures, and leaves all of this out of the log
file, too. Each start of a Snakemake imports this module, so it imports nothing slow.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

# Files of a list that are shown where all messages are shown.
_MOST_FILES = 8
_MOST_OF_REASON = 400  # characters
# So many failures are shown with the last lines of their logs; each further one gets one line.
_SHOWN_FAILURES = 10
_LAST_LINES = 8
_HIDDEN = frozenset(
    {
        LogEvent.WORKFLOW_STARTED,
        LogEvent.RESOURCES_INFO,
        LogEvent.JOB_INFO,
        LogEvent.JOB_STARTED,
        LogEvent.JOB_FINISHED,
        LogEvent.GROUP_INFO,
        LogEvent.SHELLCMD,
        LogEvent.RULEGRAPH,
        LogEvent.DEBUG_DAG,
    }
)
# Messages that Snakemake repeats, and that have no event of their own.
_CHATTER = re.compile(
    r"host: |Using shell: |Waiting for more resources\.|Select jobs to execute\.\.\.|"
    r"Execute \d+ jobs\.\.\.|Touching output file|Write-protecting output file|"
    r"Removing temporary output|Removing output files of failed job|Job rate limit reached"
)
_RESTARTED = re.compile(r"Trying to restart job (\S+)\.")
# The form of subprocess.CalledProcessError.
_COMMAND_STATUS = re.compile(r"returned non-zero (exit status \d+)|(died with <Signals\.\w+: \d+>)")
_INDENT = re.compile(r"^ {0,12}")  # executors indent the part of a log that they show
_UNNAMED = ("", "ANON", "None")
# Seconds between two lines of progress, and before the first. Between the two limits there is a
# line for each twentieth of the elapsed time.
_SOONEST = 5.0
_LATEST = 60.0
_SHARE = 20
_STEPS = 3  # fewer steps say nothing about the time that the others take


class LogHandler(LogHandlerBase):
    """Shows a part of the messages that pass Snakemake's own filter, and shortens them.

    With a dry run, `-p` or `--verbose` it shows all of them.
    """

    def __post_init__(self) -> None:
        logging.Handler.__init__(self)  # interfaces before 2.0 lack it
        settings = self.common_settings
        self._shows_all = bool(
            settings.dryrun or settings.verbose or settings.printshellcmds or settings.debug_dag
        )
        self._text = _text_handler(self.common_settings)
        self._text.setFormatter(_Shortened(self))
        self._progress = Progress()
        self._has_begun = False
        self._points: dict[Any, str] = {}  # the names of running jobs, for people
        self._wildcards: dict[Any, str] = {}
        self._failed: set[Any] = set()
        self._failures = 0
        self._command_errors: list[str] = []
        self._once: set[str] = set()
        self._pending: logging.LogRecord | None = None  # the newest progress, not shown yet
        self._timer: threading.Timer | None = None

    @property
    def writes_to_stream(self) -> bool:
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return False

    @property
    def has_formatter(self) -> bool:
        return False

    @property
    def needs_rulegraph(self) -> bool:
        return False

    def emit(self, record: logging.LogRecord) -> None:
        if self._shows_all:
            self._write(_without_long_lists(record))
            return
        for shown in self._shown(record):
            self._write(shown)

    def _write(self, record: logging.LogRecord) -> None:
        try:
            self._text.emit(record)
        except BrokenPipeError:
            # As of `kochi batch -n | head`: the run goes on, and nothing more can be shown.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._text.stream.fileno())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    # ---- which records are shown

    def _shown(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        event = getattr(record, "event", None)
        self._note_job(event, record)
        if event == LogEvent.PROGRESS:
            yield from self._progress_due(record)
        elif event == LogEvent.JOB_ERROR:
            # Older releases of Snakemake list all failures again at the end.
            if self._is_new_failure(record):
                yield _replaced(record, self._failure(record))
        elif event == LogEvent.ERROR and self._is_of_a_command(record):
            self._command_errors.append(str(record.msg))
        elif event not in _HIDDEN and not self._is_repeated(event, record):
            if record.levelno >= logging.ERROR:
                yield from self._show_pending(is_over=True)
            yield record

    def _note_job(self, event: LogEvent | None, record: logging.LogRecord) -> None:
        """Note the names of jobs, and which jobs failed."""
        fields = record.__dict__
        if event == LogEvent.JOB_INFO:
            if not self._has_begun:
                self._has_begun = True
                self._progress.begin()
            job, wildcards = fields["jobid"], dict(fields.get("wildcards") or {})
            self._wildcards[job] = _listed(wildcards)
            self._points[job] = _point(fields, self._wildcards[job])
        elif event == LogEvent.JOB_FINISHED:
            job = fields.get("job_id", fields.get("jobid"))
            self._failed.discard(job)
            self._points.pop(job, None)
            self._wildcards.pop(job, None)
        elif restarted := _RESTARTED.match(str(record.msg)):
            self._failed = {job for job in self._failed if str(job) != restarted[1]}

    def _is_repeated(self, event: LogEvent | None, record: logging.LogRecord) -> bool:
        if event is None and record.levelno == logging.INFO and _CHATTER.match(str(record.msg)):
            return True
        # The executor marks messages that it repeats for each few jobs.
        about = getattr(record, "kochi_once", None)
        if about is None:
            return False
        is_repeated = about in self._once
        self._once.add(about)
        return is_repeated

    # ---- progress

    def _progress_due(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        done, total = record.__dict__["done"], record.__dict__["total"]
        self._progress.note(done, total)
        self._pending = record
        if done >= total or self._progress.due_in() <= 0:
            yield from self._show_pending()
        elif self._timer is None:
            # The next step may end only after hours.
            self._timer = threading.Timer(self._progress.due_in(), self._show_late)
            self._timer.daemon = True
            self._timer.start()

    def _show_late(self) -> None:
        with self.lock or threading.Lock():
            self._timer = None
            for shown in self._show_pending():
                self._write(shown)

    def _show_pending(self, is_over: bool = False) -> Iterator[logging.LogRecord]:
        """The progress that was not shown yet, if any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (record := self._pending) is None:
            return
        self._pending = None
        self._progress.shown()
        text = self.format(record)
        if self._failed:
            text += f", {len(self._failed)} failed"
        left = None if is_over else self._progress.left(len(self._failed))
        if left is not None:
            # Imported here: every Snakemake loads this module.
            from snakemake_kochi.quantities import rough_duration

            text += f", about {rough_duration(left)} left"
        yield _replaced(record, text)

    # ---- failures

    def _failure(self, record: logging.LogRecord) -> str:
        if self.common_settings.show_failed_logs:
            return self.format(record)
        self._failures += 1
        fields = record.__dict__
        job = fields["jobid"]
        wildcards = f"wildcards: {self._wildcards.get(job)}"
        said = [line.rstrip() for line in str(fields.get("rule_msg") or "").splitlines()]
        why, *lines = [line for line in said if line and line.strip() != wildcards] or [
            self._status_of(fields.get("shellcmd"))
        ]
        summary = f"Failed: {self._points.get(job) or fields['rule_name']}: {why}"
        see = (fields.get("aux") or {}).get("see") or _joined(fields.get("log"))
        if self._failures > _SHOWN_FAILURES:
            return f"{summary} ({see})" if see else summary
        shown = [summary, *(_INDENT.sub("    ", line) for line in lines[-_LAST_LINES:])]
        if see:
            shown.append(f"    see: {see}")
        if self._failures == _SHOWN_FAILURES:
            shown.append("Each further failure is shown in one line.")
        return "\n".join(shown)

    def _is_new_failure(self, record: logging.LogRecord) -> bool:
        job = record.__dict__["jobid"]
        is_told = job in self._failed and not record.__dict__.get("rule_msg")
        self._failed.add(job)
        return not is_told

    def _is_of_a_command(self, record: logging.LogRecord) -> bool:
        """Whether the message only repeats a rule's complete command, which failed.

        The error of the command's job follows.
        """
        text = str(record.msg)
        return text.startswith("RuleException:\nCalledProcessError") and bool(
            _COMMAND_STATUS.search(text)
        )

    def _status_of(self, command: object) -> str:
        """How the command ended, from Snakemake's own message, for executors without a message."""
        for text in self._command_errors:
            if isinstance(command, str) and command.strip() in text:
                self._command_errors.remove(text)
                if found := _COMMAND_STATUS.search(text):
                    return f"{found[1] or found[2]}, its output is above"
        return "see above"


class _Shortened(logging.Formatter):
    """Formats a record as our text if it has one, and otherwise as Snakemake does."""

    def __init__(self, handler: LogHandler) -> None:
        super().__init__()
        self._handler = handler

    def format(self, record: logging.LogRecord) -> str:
        text = getattr(record, "kochi_text", None)
        return text if isinstance(text, str) else self._handler.format(record)


def _text_handler(settings: Any) -> logging.StreamHandler[TextIO]:
    """A handler that writes as Snakemake does, with its colours if possible."""
    stream = sys.stdout if settings.stdout else sys.stderr
    try:
        from snakemake.logging import ColorizingTextHandler

        handler: logging.StreamHandler[TextIO] = ColorizingTextHandler(
            nocolor=settings.nocolor, stream=stream
        )
    except (ImportError, TypeError):
        handler = logging.StreamHandler(stream)
    return handler


def _without_long_lists(record: logging.LogRecord) -> logging.LogRecord:
    """The record without the long lists of a target with hundreds of files.

    Snakemake shows them in one line, and again in the reason.
    """
    fields = record.__dict__
    if getattr(record, "event", None) not in (LogEvent.JOB_INFO, LogEvent.JOB_ERROR):
        return record
    shorter = copy.copy(record)
    for key in ("input", "output"):
        names = list(fields.get(key) or ())
        if len(names) > _MOST_FILES:
            more = f"and {len(names) - _MOST_FILES} more"
            shorter.__dict__[key] = [*names[:_MOST_FILES], more]
    reason = str(fields.get("reason") or "")
    if len(reason) > _MOST_OF_REASON:
        shorter.__dict__["reason"] = f"{reason[:_MOST_OF_REASON]} ..."
    return shorter


def _replaced(record: logging.LogRecord, text: str) -> logging.LogRecord:
    changed = copy.copy(record)
    changed.__dict__["kochi_text"] = text
    return changed


def _point(fields: Mapping[str, Any], wildcards: str) -> str:
    """The name of a job, like "run_sorting_scaling sort_100 (threads=2, duplicate=0)"."""
    rule = str(fields["rule_name"])
    name = str(fields["resources"].get("kochi_name") if fields.get("resources") else "")
    named = rule if name in (*_UNNAMED, rule) else f"{rule} {name}"
    return f"{named} ({wildcards})" if wildcards else named


def _listed(wildcards: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in wildcards.items())


def _joined(names: Sequence[str] | None) -> str:
    return ", ".join(names or ())


class Progress:
    """The progress of a run: counts its steps, and predicts the time left.

    `clock` returns seconds, and all results are in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._shown = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._total = 0

    def begin(self) -> None:
        """Note that the first step has started: the time before it does not count."""
        self._began = self._shown = self._clock()
        self._seen = deque([(self._began, 0)])

    def note(self, done: int, total: int) -> None:
        """Note how many of all steps are done."""
        self._total = total
        self._seen.append((self._clock(), done))
        # The second half of the done steps predicts best: the first half may have been builds.
        while len(self._seen) > 2 and self._seen[1][1] <= done / 2:
            self._seen.popleft()

    def shown(self) -> None:
        """Note that the progress was just shown."""
        self._shown = self._clock()

    def due_in(self) -> float:
        """Seconds until the progress should be shown again; 0 or less means now."""
        now = self._clock()
        pause = min(_LATEST, max(_SOONEST, (now - self._began) / _SHARE))
        return self._shown + pause - now

    def left(self, failed: int = 0) -> float | None:
        """How long the remaining steps will probably take, without the failed ones.

        None if that is not known yet.
        """
        (began, before), (_, done) = self._seen[0], self._seen[-1]
        took = self._clock() - began
        todo = self._total - done - failed
        if todo <= 0 or done - before < _STEPS or took < _SOONEST:
            return None
        return todo * took / (done - before)
