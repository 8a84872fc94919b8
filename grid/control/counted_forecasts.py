"""Explain why a job waits in a grid queue that counts cores, memory and GPUs; numbers are chunks of this job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.control.cost import named
from gridweave.grid.control.past import LeftAlone
from gridweave.grid.control.queue import GridQueue
from gridweave.site.explain import STARTS_AT_ONCE, Forecast, SiteReason, ahead_text, places_text, shut_text


class CountedStanding:
    """The reasons why a job is waiting now, without the ends for which it waits; see `Standing` for the parameters."""

    def __init__(
        self,
        queue: GridQueue,
        closed: Mapping[int, LeftAlone],
        shut: Mapping[int, str],
        now_ms: int,
        job_id: int,
        names: Sequence[str],
        *,
        is_quote: bool = False,
    ) -> None:
        self.job_id, self._now_ms, self._names, self._is_quote = job_id, now_ms, names, is_quote
        waiting = list(queue.waiting)
        self._ahead = next(place for place, job in enumerate(waiting) if job.job_id == job_id)
        self._width = waiting[self._ahead].width
        most, fitting = queue.most_chunks(job_id), queue.fitting(job_id)
        self._reason = f"it needs {self._width} chunks, and {max(fitting)} fit now at one site at most"
        if self._ahead:
            self._reason += f"; {ahead_text(self._ahead)} would be placed first"
        self._rows = tuple(
            SiteReason(
                site=names[site],
                nodes=most[site],
                free=fitting[site],
                start_ms=None,
                ahead=self._ahead,
                reason=self._why(site, most[site], fitting[site], closed, shut),
            )
            for site in range(len(most))
        )

    def _why(self, site: int, most: int, fitting: int, closed: Mapping[int, LeftAlone], shut: Mapping[int, str]) -> str:
        if site in shut:
            return shut_text(shut[site])
        if site in closed:
            return closed[site].text(self._now_ms)
        return f"{fitting} chunks of it fit now, and {most} on the idle site"

    def unplaced(self, *, is_too_far: bool = False) -> Forecast:
        """Return the forecast without a start, because it is unknown or (``is_too_far``) beyond the simulated steps."""
        why = "its start is too far ahead to be computed" if is_too_far else "it is unknown when more come free"
        return self._forecast(f"{self._reason}; {why}")

    def placed(
        self, start_ms: int, fragments: Fragments, length_ms: int, *, is_reserved_only: bool = False
    ) -> Forecast:
        """Return the forecast with a start; no start is reserved in such a queue."""
        assert not is_reserved_only, "a queue that counts resources reserves no starts"
        return self._found(self._reason, start_ms, fragments, length_ms)

    def placed_at_once(self, start_ms: int, fragments: Fragments, length_ms: int) -> Forecast:
        """Return the forecast of a job that would start at once."""
        reason = f"{STARTS_AT_ONCE}, on {places_text(named(fragments, self._names))}"
        return self._found(reason, start_ms, fragments, length_ms)

    def _found(self, reason: str, start_ms: int, fragments: Fragments, length_ms: int) -> Forecast:
        places = named(fragments, self._names)
        return msgspec.structs.replace(self._forecast(reason), start_ms=start_ms, places=places, length_ms=length_ms)

    def _forecast(self, reason: str) -> Forecast:
        return Forecast(
            job_id=None if self._is_quote else self.job_id,
            now_ms=self._now_ms,
            ahead=self._ahead,
            reason=reason,
            cause="too few chunks fit",
            sites=self._rows,
        )
