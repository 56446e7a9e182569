"""`snakemake --logger kochi`: failures, progress, and the end of a run. The rest is in the log.

Snakemake's own `--quiet rules progress` also hides failures, and removes all of that from the log
file as well. Each start of a Snakemake imports this module: it imports nothing slow.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_kochi.logger.progress import Progress

# of lists of files, where all messages are shown
_MOST_FILES = 8
_MOST_OF_REASON = 400  # characters
# For so many failures the last lines are shown; others get one line.
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
# Messages that Snakemake repeats again and again without an event of their own.
_CHATTER = re.compile(
    r"host: |Using shell: |Waiting for more resources\.|Select jobs to execute\.\.\.|"
    r"Execute \d+ jobs\.\.\.|Touching output file|Write-protecting output file|"
    r"Removing temporary output|Removing output files of failed job"
)
_RESTARTED = re.compile(r"Trying to restart job (\S+)\.")
# the form of subprocess.CalledProcessError
_COMMAND_STATUS = re.compile(r"returned non-zero (exit status \d+)|(died with <Signals\.\w+: \d+>)")
_INDENT = re.compile(r"^ {0,12}")  # executors indent the part of a log that they show
_UNNAMED = ("", "ANON", "None")


class LogHandler(LogHandlerBase):
    """Shows what passes Snakemake's own filter, shortened. A dry run, `-p` and `--verbose` show all
    of it."""

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
        self._points: dict[Any, str] = {}  # of running jobs
        self._wildcards: dict[Any, str] = {}
        self._failed: set[Any] = set()
        self._failures = 0
        self._command_errors: list[str] = []
        self._once: set[str] = set()
        self._untold: logging.LogRecord | None = None  # progress
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
            self._text.emit(_without_long_lists(record))
            return
        for shown in self._shown(record):
            self._text.emit(shown)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    # ---- which records are shown

    def _shown(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        event = getattr(record, "event", None)
        self._take_note(event, record)
        if event == LogEvent.PROGRESS:
            yield from self._how_far(record)
        elif event == LogEvent.JOB_ERROR:
            # Older Snakemakes list all of them again at the end.
            if self._is_new_failure(record):
                yield _replaced(record, self._failure(record))
        elif event == LogEvent.ERROR and self._is_of_a_command(record):
            self._command_errors.append(str(record.msg))
        elif event not in _HIDDEN and not self._is_repeated(event, record):
            if record.levelno >= logging.ERROR:
                yield from self._rest(is_over=True)
            yield record

    def _take_note(self, event: LogEvent | None, record: logging.LogRecord) -> None:
        """Note which job is which, and which failed."""
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
        # The executor marks its messages about handfuls of jobs.
        about = getattr(record, "kochi_once", None)
        if about is None:
            return False
        is_repeated = about in self._once
        self._once.add(about)
        return is_repeated

    # ---- progress

    def _how_far(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        done, total = record.__dict__["done"], record.__dict__["total"]
        self._progress.note(done, total)
        self._untold = record
        if done >= total or self._progress.due_in() <= 0:
            yield from self._rest()
        elif self._timer is None:
            # The next step may take hours.
            self._timer = threading.Timer(self._progress.due_in(), self._tell_late)
            self._timer.daemon = True
            self._timer.start()

    def _tell_late(self) -> None:
        with self.lock or threading.Lock():
            self._timer = None
            for shown in self._rest():
                self._text.emit(shown)

    def _rest(self, is_over: bool = False) -> Iterator[logging.LogRecord]:
        """The progress, where it was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (record := self._untold) is None:
            return
        self._untold = None
        self._progress.said()
        text = self.format(record)
        if self._failed:
            text += f", {len(self._failed)} failed"
        left = None if is_over else self._progress.left(len(self._failed))
        if left is not None:
            text += f", about {_duration(left)} left"
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
        told = f"Failed: {self._points.get(job) or fields['rule_name']}: {why}"
        see = (fields.get("aux") or {}).get("see") or _joined(fields.get("log"))
        if self._failures > _SHOWN_FAILURES:
            return f"{told} ({see})" if see else told
        shown = [told, *(_INDENT.sub("    ", line) for line in lines[-_LAST_LINES:])]
        if see:
            shown.append(f"    see: {see}")
        if self._failures == _SHOWN_FAILURES:
            shown.append("Of further failures a line each is shown.")
        return "\n".join(shown)

    def _is_new_failure(self, record: logging.LogRecord) -> bool:
        job = record.__dict__["jobid"]
        is_told = job in self._failed and not record.__dict__.get("rule_msg")
        self._failed.add(job)
        return not is_told

    def _is_of_a_command(self, record: logging.LogRecord) -> bool:
        """Whether it says, with a rule's complete command, that this failed; the error of its job
        follows."""
        text = str(record.msg)
        return text.startswith("RuleException:\nCalledProcessError") and bool(
            _COMMAND_STATUS.search(text)
        )

    def _status_of(self, command: object) -> str:
        """Without an executor's message: how the command ended, by Snakemake's own message."""
        for text in self._command_errors:
            if isinstance(command, str) and command.strip() in text:
                self._command_errors.remove(text)
                if found := _COMMAND_STATUS.search(text):
                    return f"{found[1] or found[2]}, its output is above"
        return "see above"


class _Shortened(logging.Formatter):
    """Our text where there is one, else Snakemake's."""

    def __init__(self, handler: LogHandler) -> None:
        super().__init__()
        self._handler = handler

    def format(self, record: logging.LogRecord) -> str:
        text = getattr(record, "kochi_text", None)
        return text if isinstance(text, str) else self._handler.format(record)


def _text_handler(settings: Any) -> logging.Handler:
    """Writes like Snakemake, with its colours; otherwise plainly."""
    stream = sys.stdout if settings.stdout else sys.stderr
    try:
        from snakemake.logging import ColorizingTextHandler

        handler: logging.Handler = ColorizingTextHandler(nocolor=settings.nocolor, stream=stream)
    except (ImportError, TypeError):
        handler = logging.StreamHandler(stream)
    return handler


def _without_long_lists(record: logging.LogRecord) -> logging.LogRecord:
    """A target of hundreds of files lists them in one line, and again in its reason."""
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
    """Like "run_sorting_scaling sort_100 (threads=2, duplicate=0)"."""
    rule = str(fields["rule_name"])
    name = str(fields["resources"].get("kochi_name") if fields.get("resources") else "")
    named = rule if name in (*_UNNAMED, rule) else f"{rule} {name}"
    return f"{named} ({wildcards})" if wildcards else named


def _listed(wildcards: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in wildcards.items())


def _joined(names: Sequence[str] | None) -> str:
    return ", ".join(names or ())


def _duration(seconds: float) -> str:
    """Like "3 minutes": more digits would pretend precision."""
    from humanfriendly import format_timespan

    return str(format_timespan(max(1, round(seconds)), max_units=1))
