"""A rank that runs, as the shim sees it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gridweave.site.live.folders import error_path
from gridweave.site.live.launch import RankReport
from gridweave.site.live.output import RankOutput
from gridweave.site.live.usage import Meter

CLOSED = -1
"""In place of a pipe that has ended."""

_MAX_REASON = 500


class RankProcess:
    """The process of a rank.

    Parameters
    ----------
    rank, pid, start_ticks : int
        As in `RankReport`.
    report : int
        The pipe on which it tells of its start, later `CLOSED`.
    output : RankOutput

    Attributes
    ----------
    ready, begun : bool
        Whether it waits at the gate, and whether its command has begun.
    status : int, optional
        What wait4(2) said when it ended, at `ended_s` by the monotonic clock.
    """

    def __init__(self, rank: int, pid: int, start_ticks: int, report: int, output: RankOutput) -> None:
        self.rank = rank
        self.pid = pid
        self.start_ticks = start_ticks
        self.report = report
        self.output = output
        self.ready = False
        self.begun = False
        self.status: int | None = None
        self.ended_s: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended other than with exit code 0."""
        return self.status is not None and self.status != 0

    def describe(self, folder: Path) -> str:
        """Say in one line how it ended; of a callable, what it raised."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"rank {self.rank} was ended by {name}"
        try:
            lines = error_path(folder, self.rank).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        raised = f": {lines[-1].strip()[:_MAX_REASON]}" if lines else ""
        return f"rank {self.rank} ended with exit code {code}{raised}"

    def report_at(self, meter: Meter, began_s: float | None) -> RankReport:
        """Return what is known of it now; `began_s` is when it began, ``None`` if it has not."""
        until_s = self.ended_s if self.ended_s is not None else time.monotonic()
        code = os.waitstatus_to_exitcode(self.status) if self.status is not None else None
        return RankReport(
            rank=self.rank,
            pid=self.pid,
            start_ticks=self.start_ticks,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            kept_bytes=self.output.kept_bytes,
            dropped_bytes=self.output.dropped_bytes,
            output_problem=self.output.problem,
            usage=meter.usage(self.rank, max(0.0, until_s - began_s) if began_s is not None else 0.0),
        )
