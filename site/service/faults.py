"""The last warning or error of an actor, from memory or, after a restart, from the end of its log file."""

from __future__ import annotations

import logging
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from gridweave.site.query_messages import LoggedFault

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} (?:WARNING|ERROR|CRITICAL) [\w.]+: (.+)$", re.MULTILINE)

RECENT_MS = 86_400_000
"""How long a fault counts as recent [ms]."""

_TAIL_BYTES, _MOST_CHARS = 16_384, 500


class LastFault(logging.Handler):
    """Log handler that keeps the last warning or error of this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.fault: LoggedFault | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a log record as the last fault."""
        self.fault = LoggedFault(int(record.created * 1000), _first_line(record.getMessage()))


LAST_FAULT = LastFault()
"""The handler that holds this process's last fault; `log_to` attaches it to the gridweave logger."""


def recent_fault(now_ms: int | None = None) -> LoggedFault | None:
    """Return this process's last fault unless it is older than `RECENT_MS`; ``now_ms`` is Unix time, by default now."""
    return recent(LAST_FAULT.fault, now_ms)


def recent(fault: LoggedFault | None, now_ms: int | None = None) -> LoggedFault | None:
    """Return a fault unless it is older than `RECENT_MS`; ``now_ms`` is Unix time, by default now."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return fault if fault is not None and fault.at_ms > now_ms - RECENT_MS else None


def fault_in(log: Path) -> LoggedFault | None:
    """Return the last fault in a log file with lines in `LOG_FORMAT`, or None."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = _LINE.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    if not lines:
        return None
    at, text = lines[-1]
    return LoggedFault(int(datetime.fromisoformat(at).timestamp() * 1000), _first_line(text))


def fault_text(fault: LoggedFault | None) -> str:
    """Format a fault for display, with its local time; return an empty string for None."""
    if fault is None:
        return ""
    at = datetime.fromtimestamp(fault.at_ms / 1000, UTC).astimezone()
    return f"last fault {at:%Y-%m-%d %H:%M:%S}: {fault.text}"


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")[:_MOST_CHARS]
