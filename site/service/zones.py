"""Compute the local time of the week at a site, for windows such as *mon-fri from 8:00 to 18:00*."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from gridweave.errors import InputError

DAY_S = 24 * 3600
WEEK_S = 7 * DAY_S
LAST_S = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())

_LIVE_FROM_S = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp())
_LIVE_UNTIL_S = int(datetime(2080, 1, 1, tzinfo=UTC).timestamp())


def load_zone(timezone: str | None) -> ZoneInfo:
    """Return the time zone with this IANA name, or UTC for None; raise InputError if the name is unknown."""
    try:
        return ZoneInfo(timezone or "UTC")
    except (LookupError, ValueError, OSError):
        raise InputError(f"time zone {timezone!r} is unknown; expected an IANA name, e.g. Europe/Stockholm") from None


def live_week(timezone: str | None) -> tuple[tuple[int, int], ...]:
    """Return how a live site converts its clock (Unix time in ms) to the time of the week in a zone.

    Clock changes from 2020 to 2080 are included. The zone is an IANA name, or None for this machine's zone.

    Returns
    -------
    tuple of (int, int)
        As for `gridweave.site.kernels.limits.week_of`.
    """
    zone = None if timezone is None else load_zone(timezone)
    return weeks_of(zone, 0, _LIVE_FROM_S, _LIVE_UNTIL_S)


def weeks_of(zone: ZoneInfo | None, zero_s: int, from_s: int, until_s: int) -> tuple[tuple[int, int], ...]:
    """Return how to convert a clock that shows 0 at the Unix time ``zero_s`` to the time of the week in a zone.

    Clock changes from ``from_s`` to ``until_s`` (both Unix time) are included. Without a zone, this machine's zone
    is used.

    Returns
    -------
    tuple of (int, int)
        Times on the clock (ms), ascending, each with the offset (ms) to add from then on to get the time of the week.
    """
    since_monday_s = 3 * DAY_S + zero_s  # 1970-01-01 was a Thursday
    spans = [(from_s, _ahead_s(from_s, zone)), *_moves(from_s, until_s, zone)]
    return tuple(((at_s - zero_s) * 1000, (since_monday_s + ahead_s) % WEEK_S * 1000) for at_s, ahead_s in spans)


def _ahead_s(unix_s: int, zone: ZoneInfo | None) -> int:
    """Return the offset of local time from UTC (s)."""
    offset = datetime.fromtimestamp(unix_s, UTC).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _moves(start_s: int, last_s: int, zone: ZoneInfo | None) -> Iterator[tuple[int, int]]:
    """Yield each clock change as Unix time and the new UTC offset in seconds."""
    before_s, ahead_s = start_s, _ahead_s(start_s, zone)
    for look_s in range(start_s + DAY_S, last_s, DAY_S):
        if _ahead_s(look_s, zone) != ahead_s:
            low_s, high_s = before_s, look_s
            while high_s - low_s > 1:
                middle_s = (low_s + high_s) // 2
                low_s, high_s = (middle_s, high_s) if _ahead_s(middle_s, zone) == ahead_s else (low_s, middle_s)
            ahead_s = _ahead_s(high_s, zone)
            yield high_s, ahead_s
        before_s = look_s
