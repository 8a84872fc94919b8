"""What a live site has its machines do: orders to them, what they tell, and what is not to be had of them now."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gridweave.site.contract import SiteOpened, SiteShut
from gridweave.site.contract_core import ContractEvent
from gridweave.site.live_attempts import Ports
from gridweave.site.live_keeping import KeepsJobs
from gridweave.site.live_messages import (
    AgentJoined,
    EndRun,
    LookForRoom,
    Order,
    RunDelayed,
    RunEnded,
    RunStarted,
)
from gridweave.site.live_runs import Run, repeated_orders
from gridweave.site.live_settings import SiteSettings
from gridweave.site.messages import JobFinished
from gridweave.site.program import Noted


class RunsOnMachines(KeepsJobs):
    """A core with machines that run the parts of jobs (docs/live.md, "Machines").

    Parameters
    ----------
    settings : SiteSettings
    """

    def __init__(self, settings: SiteSettings) -> None:
        super().__init__()
        self.settings = settings
        self._runs: dict[int, Run] = {}
        self._ports = Ports(settings)
        # Machines that cannot start anything, and why.
        self._full: dict[str, str] = {}
        # What is over at this instant, and what the core is to be told.
        self._over: dict[int, Run] = {}
        self._inner: list[ContractEvent] = []

    def orders(self, *agents: str) -> Iterator[Order]:
        """Yield what machines should do now and have not said that they have: safe to repeat."""
        yield from repeated_orders(self._runs.values(), set(agents))
        yield from (LookForRoom(agent) for agent in self._full if agent in agents)

    def expects(self, agent: str, job_id: int, attempt: int) -> bool:
        """Return whether a machine is thought to run a part of this attempt."""
        run = self._runs.get(job_id)
        piece = None if run is None or run.attempt != attempt else run.pieces.get(agent)
        return piece is not None and not piece.is_over

    def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return which machine runs a rank of an attempt; empty if none does now."""
        run = self._runs.get(job_id)
        if run is None or run.attempt != attempt:
            return ""
        ranks = {each.rank: agent for agent, piece in run.pieces.items() for each in piece.launch.ranks}
        return ranks.get(rank, "")

    def host_of(self, agent: str) -> str:
        """Return by which name a machine is reached; empty if it was never there."""
        return self._ports.host_of(agent)

    def problem_of(self, agent: str) -> str:
        """Return why a machine can start nothing now; empty if it can, as far as it has said."""
        return self._full.get(agent, "")

    # -- what machines tell -------------------------------------------------------------------------------------------

    def _told(self, event: RunStarted | RunEnded) -> None:
        """Take note of what a machine says; what it says of anything but the present attempt is passed over."""
        if not self.expects(event.agent, event.job_id, event.attempt):
            return
        run = self._runs[event.job_id]
        piece = run.pieces[event.agent]
        record = self.records.get(event.job_id)
        if isinstance(event, RunStarted):
            piece.has_started, piece.has_run, piece.in_doubt, piece.delayed = True, True, False, ""
            if record is not None and record.state == "starting" and run.has_started:
                # Its start stays the instant at which it was given its nodes, as for the jobs of the grid.
                record.state = "running"
                self._out.append(Noted(event.job_id, "runs", f"on {run.where}"))
            return
        if event.outcome == "cancelled" and not run.ending:
            # Nobody here wanted that: the machine was shut down, or had lost what it knew.
            event = msgspec.structs.replace(event, outcome="lost")
        piece.has_started, piece.has_run = True, piece.has_run or event.has_run
        piece.end = event
        program = run.request.program
        again = event.outcome == "lost" and program.if_lost == "requeue"
        if again or (event.outcome != "finished" and program.end_on_failure):
            self._end_pieces(run, f"its part on {event.agent} has ended: {event.outcome}")
        if all(other.is_over for other in run.pieces.values()):
            del self._runs[event.job_id]
            self._ports.give(run.port)
            self._over[event.job_id] = run
            self._inner.append(JobFinished(event.job_id))

    def _delay(self, event: RunDelayed) -> None:
        """Take note that a machine has no room; a site with no other starts nothing for the grid until one has."""
        was_full = self._is_full
        self._full[event.agent] = event.reason
        if self._is_full and not was_full:
            self._inner.append(SiteShut(event.reason))
        if not self.expects(event.agent, event.job_id, event.attempt):
            return
        piece = self._runs[event.job_id].pieces[event.agent]
        if not piece.has_started:
            piece.delayed = event.reason
            self._out.append(Noted(event.job_id, "delayed", event.reason))

    def _ready(self, agent: str) -> None:
        """Take note that a machine can start what it is asked for."""
        was_full = self._is_full
        self._full.pop(agent, None)
        if was_full and not self._is_full:
            self._inner.append(SiteOpened())

    def _hand_back(self) -> None:
        """Give the grid what cannot start here for now; the site's own users have nowhere else to go, and wait."""
        if not self._is_full:
            return
        for run in self._runs.values():
            if run.why_delayed and not run.killed and run.job_id not in self.records:
                run.killed, run.why_killed = "lost", run.why_delayed
                self._end_pieces(run, run.why_delayed)

    def _lose(self, agent: str, reason: str) -> None:
        """Give up what a machine ran."""
        for run in [run for run in self._runs.values() if agent in run.pieces]:
            self._told(RunEnded(agent, run.job_id, run.attempt, "lost", reason))

    def _end_pieces(self, run: Run, reason: str) -> None:
        """Have all machines end what they run of a job."""
        if not run.ending:
            run.ending = reason
            for agent, piece in run.pieces.items():
                if not piece.is_over:
                    self._out.append(EndRun(agent, run.job_id, run.attempt, reason))

    def _joined(self, event: AgentJoined) -> None:
        """Take note that a machine is there, for the first time or again."""
        self._ports.reached_by(event.agent, event.host)
        # If it still is full, it finds that out anew.
        self._ready(event.agent)
        for run in self._runs.values():
            if event.agent in run.pieces:
                run.pieces[event.agent].in_doubt = True

    @property
    def _is_full(self) -> bool:
        """Whether no machine can start anything."""
        return len(self._full) == len(self.settings.agents)

    def _check_runs(self) -> None:
        """Raise AssertionError if something is run that is over."""
        for run in self._runs.values():
            assert not all(piece.is_over for piece in run.pieces.values()), f"job {run.job_id} is over and still here"
