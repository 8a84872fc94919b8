"""Parse and format time spans, and compute retry pauses and the run times of jobs."""

from __future__ import annotations

import itertools
import re
from typing import Literal

from gridweave.errors import OptionError
from gridweave.site.job import MAX_TIME_MS, JobRecord
from gridweave.site.launch import Ran

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])?", re.ASCII)
# Slurm's formats: minutes:seconds, hours:minutes:seconds, and days-hours[:minutes[:seconds]].
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+)", re.ASCII)
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


LONGEST_PAUSE_MS = 600_000


def growing_pause_ms(first_ms: int, times: int) -> int:
    """Return the pause before the next retry after ``times`` failures; the pause doubles each time, up to 10 min.

    Examples
    --------
    >>> [growing_pause_ms(10_000, times) for times in (0, 1, 2, 99)]
    [10000, 20000, 40000, 600000]
    """
    return min(first_ms << min(times, 30), max(first_ms, LONGEST_PAUSE_MS))


def parse_time_ms(option: str, text: str, *, bare: Literal["s", "m"] = "s") -> int:
    """Parse a time span such as ``90``, ``10m``, ``1h30m``, ``2d``, ``10:00`` or ``2-00:00:00``; return it in ms.

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
            raise OptionError(option, f"{text!r} is not a time; expected {example}, 10m, 1h30m, 2d or 2-00:00:00")
        total_ms = sum(float(part.group(1)) * _UNITS_MS[part.group(2) or bare] for part in parts)
    if total_ms > MAX_TIME_MS:
        raise OptionError(option, f"{text!r} is too long; expected at most {MAX_TIME_MS} ms")
    return round(total_ms)


def _clock_ms(text: str) -> float | None:
    """Parse a time span in Slurm's formats; return it in ms, or None if `text` is in another format."""
    if clock := _CLOCK.fullmatch(text):
        days, counts = "0", [clock[1] or "0", clock[2], clock[3]]
    elif clock := _DAYS.fullmatch(text):
        days, counts = clock[1], [clock[2], clock[3] or "0", clock[4] or "0"]
    else:
        return None
    # Use floats, so that a huge number is reported as too long instead of as a conversion error.
    units = (_UNITS_MS["d"], _UNITS_MS["h"], _UNITS_MS["m"], _UNITS_MS["s"])
    return sum(float(count) * unit for count, unit in zip([days, *counts], units, strict=True))


def typed_time(span_ms: int) -> str:
    """Format a time span exactly, as a user would type it for `parse_time_ms`.

    Examples
    --------
    >>> typed_time(129_600_000), typed_time(90_500), typed_time(0)
    ('1d12h', '1m30s500ms', '0s')
    """
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, span_ms = divmod(span_ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


_SHOWN_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000}


def span_text(span_ms: float) -> str:
    """Format a time span for people, in its largest unit and the next smaller unit, rounded to the smaller unit.

    The function `span` in ``grid/gateway/web/text.js`` does the same for the web pages.

    Examples
    --------
    >>> [span_text(span_ms) for span_ms in (40, 1_549, 57_954, 225_000, 7_800_000, 273_600_000)]
    ['40 ms', '1.5 s', '58 s', '3 min 45 s', '2 h 10 min', '3 d 4 h']
    """
    rest_ms = _half_up(abs(span_ms), 1)
    if 0 < rest_ms < 1000:
        text = f"{rest_ms} ms"
    elif rest_ms < 9950:
        text = f"{_half_up(rest_ms, 100) / 10:g} s"
    else:
        text = _two_units(rest_ms)
    return f"-{text}" if span_ms < 0 < rest_ms else text


def _two_units(span_ms: int) -> str:
    pairs = itertools.pairwise(_SHOWN_UNITS.values())
    step_ms = next((next_ms for unit_ms, next_ms in pairs if span_ms + 500 >= unit_ms), 1000)
    left_ms, parts = _half_up(span_ms, step_ms) * step_ms, []
    for unit, unit_ms in _SHOWN_UNITS.items():
        count, left_ms = divmod(left_ms, unit_ms)
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts)


def _half_up(span_ms: float, step_ms: int) -> int:
    """Divide a time span by a step; return the quotient rounded to an integer, halves upwards."""
    return int((span_ms + step_ms / 2) // step_ms)


def when_text(when_ms: int, now_ms: int) -> str:
    """Format an instant relative to now, for people.

    Examples
    --------
    >>> when_text(750_000, 0), when_text(5, 5), when_text(0, 5_000)
    ('in 12 min 30 s', 'now', '5 s ago')
    """
    if when_ms == now_ms:
        return "now"
    return f"in {span_text(when_ms - now_ms)}" if when_ms > now_ms else f"{span_text(now_ms - when_ms)} ago"


def end_of_processes_ms(start_ms: int, ran_ms: Ran, heard_ms: int) -> int:
    """Return when processes ended by their machines' clocks; if that is implausible, return ``heard_ms``.

    The report, received at ``heard_ms``, can be late because of an outage, which must not count as run time.
    """
    return ran_ms[1] if ran_ms is not None and start_ms <= ran_ms[1] <= heard_ms else heard_ms


def processes_ended_ms(record: JobRecord) -> int | None:
    """Return when a job's processes ended, as in `end_of_processes_ms`; None if the job has not ended."""
    if record.start_ms is None or record.end_ms is None:
        return record.end_ms
    return end_of_processes_ms(record.start_ms, record.ran_ms, record.end_ms)


def run_time_ms(record: JobRecord, now_ms: int | None = None) -> int | None:
    """Return the run time of a job's last attempt, up to `now_ms` if it is running; None if it has not started."""
    until_ms = now_ms if record.end_ms is None else processes_ended_ms(record)
    return None if record.start_ms is None or until_ms is None else until_ms - record.start_ms
