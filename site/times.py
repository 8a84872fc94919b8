"""Spans of time as people write them, pauses that grow, and how long a job has run."""

from __future__ import annotations

import re
from typing import Literal

from gridweave.errors import OptionError
from gridweave.site.job import MAX_TIME_MS, JobRecord

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])?", re.ASCII)
# As Slurm has them: minutes:seconds, hours:minutes:seconds, and days-hours[:minutes[:seconds]].
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.ASCII)
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


LONGEST_PAUSE_MS = 600_000


def growing_pause_ms(first_ms: int, times: int) -> int:
    """Return how long to wait before something is tried again that has failed so often before: twice as long each time.

    Examples
    --------
    >>> [growing_pause_ms(10_000, times) for times in (0, 1, 2, 99)]
    [10000, 20000, 40000, 600000]
    """
    return min(first_ms << min(times, 30), max(first_ms, LONGEST_PAUSE_MS))


def parse_time_ms(option: str, text: str, *, bare: Literal["s", "m"] = "s") -> int:
    """Return a time span such as ``90``, ``10m``, ``1h30m``, ``2d``, ``10:00`` or ``2-00:00:00`` in ms.

    A number without a unit is in ``bare`` units.

    Examples
    --------
    >>> parse_time_ms("--limit", "1h30m"), parse_time_ms("--limit", "2-00:00:00"), parse_time_ms("--limit", "90")
    (5400000, 172800000, 90000)
    """
    text = text.strip().lower()
    total_ms = _clock_ms(text)
    if total_ms is None:
        parts = list(_SPAN.finditer(text))
        if not parts or "".join(part.group(0) for part in parts) != text or any(not p.group(2) for p in parts[:-1]):
            example = "90 (seconds)" if bare == "s" else "90 (minutes)"
            raise OptionError(option, f"{text!r} is not a time; write {example}, 10m, 1h30m, 2d or 2-00:00:00")
        total_ms = sum(float(part.group(1)) * _UNITS_MS[part.group(2) or bare] for part in parts)
    if total_ms > MAX_TIME_MS:
        raise OptionError(option, f"{text!r} is more than {MAX_TIME_MS} ms, which no time may be")
    return round(total_ms)


def _clock_ms(text: str) -> float | None:
    """Return a time that is written with colons or a dash, or None if it is not."""
    if clock := _CLOCK.fullmatch(text):
        days, counts = "0", [clock[1] or "0", clock[2], clock[3]]
    elif clock := _DAYS.fullmatch(text):
        days, counts = clock[1], [clock[2], clock[3] or "0", clock[4] or "0"]
    else:
        return None
    # As floats: a number of any length is then too long a time, and no fault of a conversion.
    units = (_UNITS_MS["d"], _UNITS_MS["h"], _UNITS_MS["m"], _UNITS_MS["s"])
    return sum(float(count) * unit for count, unit in zip([days, *counts], units, strict=True))


def span_text(span_ms: int) -> str:
    """Return a time span as `parse_time_ms` reads it.

    Examples
    --------
    >>> span_text(129_600_000), span_text(90_500), span_text(0)
    ('1d12h', '1m30s500ms', '0s')
    """
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, span_ms = divmod(span_ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def rough_span_text(span_ms: int) -> str:
    """Return a time span in its largest unit and the next one, rounded to that; seconds have at most one decimal.

    Examples
    --------
    >>> rough_span_text(750_000), rough_span_text(3_599_999), rough_span_text(129_600_000 + 59_000)
    ('12m30s', '1h', '1d12h')
    >>> rough_span_text(57_954), rough_span_text(59_999), rough_span_text(1_549), rough_span_text(40)
    ('58s', '1m', '1.5s', '40ms')
    """
    if 1_000 <= span_ms < 9_950:
        return f"{(span_ms + 50) // 100 / 10:g}s"
    units = ("d", "h", "m", "s")
    largest = next((place for place, unit in enumerate(units) if span_ms >= _UNITS_MS[unit]), len(units))
    step_ms = 1 if largest == len(units) else _UNITS_MS[units[min(largest + 1, len(units) - 1)]]
    return span_text((span_ms + step_ms // 2) // step_ms * step_ms)


def when_text(when_ms: int, now_ms: int) -> str:
    """Return when something is, as seen from now.

    Examples
    --------
    >>> when_text(750_000, 0), when_text(5, 5), when_text(0, 5_000)
    ('in 12m30s', 'now', '5s ago')
    """
    if when_ms == now_ms:
        return "now"
    return f"in {rough_span_text(when_ms - now_ms)}" if when_ms > now_ms else f"{rough_span_text(now_ms - when_ms)} ago"


def processes_ended_ms(record: JobRecord) -> int | None:
    """Return when the processes of a job ended, by the clocks of its machines; else when its end was heard.

    The two differ when a part of the grid was away at the end of the job.
    """
    if record.start_ms is None or record.end_ms is None or record.ran_ms is None:
        return record.end_ms
    return record.ran_ms[1] if record.start_ms <= record.ran_ms[1] <= record.end_ms else record.end_ms


def run_time_ms(record: JobRecord, now_ms: int | None = None) -> int | None:
    """Return how long the last attempt of a job has run, until `now_ms` if it still runs; None if it has not."""
    until_ms = now_ms if record.end_ms is None else processes_ended_ms(record)
    return None if record.start_ms is None or until_ms is None else until_ms - record.start_ms
