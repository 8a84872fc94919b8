"""What the machines of a live site run: which ranks of a job where, what has become of each part, and so of the whole.

`SiteSettings` says which machines there are, `Run` what they run of one job, `Runs` what they run of all, what they are
to do now, and what follows from what they tell. No clock, no I/O: docs/live.md, "Machines".
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator

import msgspec

from gridweave.errors import OptionError
from gridweave.settings import Changeable
from gridweave.site.allocation import NO_PORT, Port, Ports
from gridweave.site.disciplines.dictionary import deciding
from gridweave.site.disciplines.entry import Policy
from gridweave.site.elements import Element, count_of, elements_problem, indexes_of
from gridweave.site.job import JobRequest, SignalName
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.launch import (
    ANYONE,
    Launch,
    NodePart,
    NodeSharing,
    Ran,
    TakenUsers,
    Used,
    both_ran,
    total_usage,
)
from gridweave.site.lifecycle import RUN_END, RunEndCause
from gridweave.site.messages import (
    ConfirmRun,
    EndRun,
    FragmentEnding,
    FragmentOpened,
    FragmentReady,
    JobFinished,
    KeepRun,
    LookForRoom,
    Machine,
    MachineForgotten,
    MachineJoined,
    MachineReady,
    MachineTakes,
    OpenRun,
    Order,
    PaceRun,
    Report,
    RunDelayed,
    RunEnded,
    RunReady,
    RunStarted,
    SignalRun,
    SiteOpened,
    SiteShut,
    StartJob,
    StartRun,
    TakesUsers,
    TellGrid,
)
from gridweave.site.needs.beside import SharedTime, partners_of
from gridweave.site.needs.known import UsualNeeds
from gridweave.site.policy import SitePolicy
from gridweave.site.users.book import JobBook
from gridweave.site.users.owner import OwnerPolicy


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a live site is made of; as long as a journal is used, only what is `changeable` may change.

    Raises
    ------
    OptionError
        If two machines have the same name, or there is none.
    """

    name: str
    number: int  # its place among the sites of the grid, from 0
    machines: tuple[Machine, ...]  # the machines, and how many nodes each of them has
    policy: Policy
    owner: OwnerPolicy = OwnerPolicy()
    # As for `ContractCore`.
    rendezvous_ms: int = 30_000
    alone_ms: int = 1_500
    # As for `gridweave.site.kernels.limits.week_of`, on a clock of Unix time; empty where the policy has no windows.
    week: tuple[tuple[int, int], ...] = ()
    needs: UsualNeeds = UsualNeeds()  # what jobs of its own users need that do not say it

    def __post_init__(self) -> None:
        names = [machine.name for machine in self.machines]
        if not names or len(set(names)) != len(names):
            right = "at least one machine, each with its own name"
            raise OptionError("machines", f"of site {self.name} are {names}; {right}")

    @property
    def nodes(self) -> int:
        """Nodes of the site."""
        return sum(machine.nodes for machine in self.machines)

    @property
    def changeable(self) -> Changeable:
        """The settings that may change while a journal is used."""
        known: dict[str, None] = dict.fromkeys(("rendezvous_ms", "alone_ms", "owner.own_users_first", "machines.ports"))
        return known | ({"policy.order": None} if isinstance(self.policy, SitePolicy) else {})


MOST_CODES = 20
"""So many ranks that did not end well are told of."""


class Piece(msgspec.Struct):
    """What one machine runs of a job."""

    launch: Launch
    slots: tuple[int, ...]  # as in `StartRun`
    is_ready: bool = False  # whether its ranks wait at their gate, or have passed it
    has_started: bool = False  # whether the machine has said that it runs, or that it has ended
    has_run: bool = False  # whether it may have run
    in_doubt: bool = False  # whether the machine was away, and may know nothing of it any more
    delayed: str = ""  # why the machine could not start it yet; empty if it has not said so
    end: RunEnded | None = None

    @property
    def is_over(self) -> bool:
        """Whether the machine runs nothing of it any more."""
        return self.end is not None


class Run(msgspec.Struct):
    """An attempt of a job on this site, from its start until no machine runs anything of it."""

    job_id: int
    attempt: int
    request: JobRequest
    width: int  # its nodes on this site
    start_ms: int
    pieces: dict[str, Piece]  # by machine, in the order of the ranks
    # Of a job on several sites: whether the grid has opened the gate at which its ranks wait, and has said that those
    # of all other sites have begun, too.
    is_open: bool = False
    has_met: bool = False
    ending: str = ""  # why its machines were told to end it; empty if they were not
    at_once: bool = False  # whether they were to give it no time
    saves: bool = False  # whether it was to save what it has done first
    # Why the site ends the run, as `RUN_END` has it; empty: it does not.
    killed: str = ""
    why_killed: str = ""  # in one line
    port: Port = NO_PORT  # at which its ranks meet
    is_paused: bool | None = None  # as its machines were told; ``None`` if they were told nothing
    speed: float = 1.0  # as its machines were told: at which part of its full speed it works
    next_run: Run | None = None  # where it goes on when it has saved what it has done and has ended here
    is_evicted: bool = False  # whether it is to leave for others; its job waits again, or starts as the next says
    next_start: StartJob | None = None  # the start that its job was given before it had left
    next_limit_ms: int = 0  # how long the job may run from then on
    is_kept: bool = False  # whether it is not begun, as others that were evicted from its nodes have not left them
    shared: SharedTime | None = None  # how it has shared its nodes, where these are shared by threads
    rate: int = RATE_ONE  # at which its site expects it to work

    @property
    def goes_on(self) -> bool:
        """Whether it has ended here to go on elsewhere, and not by itself or by anybody's wish."""
        found = {piece.end.outcome for piece in self.pieces.values() if piece.end is not None}
        return self.next_run is not None and not self.killed and "cancelled" in found <= {"cancelled", "finished"}

    @property
    def is_gated(self) -> bool:
        """Whether its ranks wait for those of other sites before they begin."""
        return any(piece.launch.alone_ms is not None for piece in self.pieces.values())

    @property
    def has_started(self) -> bool:
        """Whether all its machines have begun."""
        return all(piece.has_started for piece in self.pieces.values())

    @property
    def why_delayed(self) -> str:
        """Why a machine could not start it yet; empty if none has said so."""
        return next((piece.delayed for piece in self.pieces.values() if piece.delayed), "")

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Its nodes: each its machine, and its place there."""
        return [(machine, slot) for machine, piece in self.pieces.items() for slot in piece.slots]

    @property
    def where(self) -> str:
        """Its machines, for people."""
        return ", ".join(self.pieces)

    @property
    def used(self) -> Used:
        """What all its machines used of it."""
        return total_usage(tuple(piece.end.used for piece in self.pieces.values() if piece.end is not None))

    @property
    def ran_ms(self) -> Ran:
        """From when to when all its processes ran."""
        return functools.reduce(both_ran, (piece.end.ran_ms for piece in self.pieces.values() if piece.end), None)

    @property
    def ended_ms(self) -> int | None:
        """When its processes ended, by the clocks of their machines; None if that is not known, or cannot be right."""
        return self.ran_ms[1] if self.ran_ms is not None and self.ran_ms[1] >= self.start_ms else None

    @property
    def exit_codes(self) -> tuple[tuple[int, int | None, int | None], ...]:
        """Rank, exit code and signal of those that did not end well, by rank; not of more than `MOST_CODES`."""
        ranks = [rank for piece in self.pieces.values() if piece.end is not None for rank in piece.end.ranks]
        bad = [(rank.rank, rank.exit_code, rank.signal) for rank in ranks if rank.exit_code != 0]
        return tuple(sorted(bad, key=lambda code: code[0])[:MOST_CODES])

    @property
    def elements(self) -> tuple[Element, ...]:
        """What became of its elements, if it is of a packed array."""
        return tuple(one for piece in self.pieces.values() if piece.end is not None for one in piece.end.elements)

    @property
    def interrupted(self) -> tuple[int, ...]:
        """The elements that were interrupted; of a machine of which nothing is known all may have been."""
        found: list[int] = []
        for piece in self.pieces.values():
            if piece.end is None or not piece.has_run:
                continue
            is_silent = piece.end.outcome == "lost" and not (piece.end.elements or piece.end.interrupted)
            found += indexes_of(piece.launch.elements or ()) if is_silent else piece.end.interrupted
        return tuple(sorted(found))

    def sharing_at_end(self, now_ms: int) -> NodeSharing | None:
        """Return with whom it has shared its nodes, now that it ends; None if it had them alone."""
        return None if self.shared is None or not self.shared.ever else self.shared.at_end(now_ms)

    def end_for(self, cause: RunEndCause, reason: str) -> bool:
        """Record why the site ends the run, as `RUN_END` has it; return whether that is why it ends now."""
        killed = RUN_END.after(self.killed, cause) or self.killed
        is_new = killed != self.killed
        if is_new or cause == "cancel":
            self.killed, self.why_killed = killed, reason
        return is_new

    def meet(self, rendezvous: str) -> None:
        """Have its ranks meet there."""
        for piece in self.pieces.values():
            piece.launch = msgspec.structs.replace(piece.launch, rendezvous=rendezvous)

    def speed_up(self, factor: float) -> None:
        """Have it do so many times as much work in one ms."""
        for piece in self.pieces.values():
            piece.launch = msgspec.structs.replace(piece.launch, rate=factor * piece.launch.rate)

    def outcome(self) -> tuple[str, str]:
        """Return how the whole ended, and why in one line.

        What ended by itself, and well, has finished, even if it was to be ended at that moment. What was lost may
        not have run to its limit; what never ran has reached none: a machine was away, or full, for so long.
        """
        ends = [piece.end for piece in self.pieces.values() if piece.end is not None]
        found = {end.outcome: end.reason for end in reversed(ends)}
        if self._has_run_all():  # what was killed then had nothing left to do
            problem = elements_problem(self.elements)
            return ("failed", problem) if problem else ("finished", "")
        if set(found) == {"finished"}:
            return "finished", ""
        has_run = any(piece.has_run for piece in self.pieces.values())
        if self.killed == "limit" and not has_run:
            return "lost", self.why_delayed or "its machines did not start it within its limit"
        if self.killed == "lost" or ("lost" in found and self.killed != "cancelled"):
            why = found.get("lost", self.why_killed)
            counts = self.has_met or not self.is_gated
            if has_run and counts and self.request.program.if_lost == "fail":
                return "failed", f"lost: {why}"
            return "lost", why
        if self.killed and not found.keys() <= {"finished", "failed"}:
            return self.killed, self.why_killed
        worst = next(worst for worst in ("failed", "limit", "cancelled") if worst in found)
        return worst, found[worst]

    def _has_run_all(self) -> bool:
        """Return whether all elements of a packed array have ended."""
        shares = [piece.launch.elements for piece in self.pieces.values() if piece.launch.elements is not None]
        return bool(shares) and sum(map(count_of, shares)) == len(self.elements)


def repeated_orders(
    runs: Iterable[Run], machines: Collection[str]
) -> Iterator[StartRun | OpenRun | ConfirmRun | EndRun | PaceRun]:
    """Yield what machines should run or end now, as far as they have not said that they do."""
    for run in runs:
        for machine, piece in run.pieces.items():
            if machine not in machines or piece.is_over or (run.is_kept and not run.ending):
                continue
            if piece.in_doubt and (piece.has_started or piece.is_ready):
                yield ConfirmRun(machine, run.job_id, run.attempt)
            if run.ending:
                # A machine that never heard of it makes a note that it is not to be started.
                yield EndRun(machine, run.job_id, run.attempt, run.ending, run.at_once, run.saves)
            elif not piece.has_started and not piece.is_ready:
                yield StartRun(machine, piece.launch, piece.slots)
            elif not piece.has_started and run.is_open:
                yield OpenRun(machine, run.job_id, run.attempt)
            if run.is_paused is not None and not run.ending:
                yield PaceRun(machine, run.job_id, run.attempt, not run.is_paused, speed=run.speed)


def _shares_nodes(other: Run, run: Run) -> bool:
    """Return whether another run still has a node of this one."""
    return any(
        machine in run.pieces and not piece.is_over and not set(piece.slots).isdisjoint(run.pieces[machine].slots)
        for machine, piece in other.pieces.items()
    )


def _ranks_at(run: Run) -> dict[str, tuple[int, NodePart | None]]:
    return {machine: (len(piece.launch.ranks), piece.launch.part) for machine, piece in run.pieces.items()}


PACE_MARGIN_MS = 20
"""How long ahead several machines are told to pause a job, or to let it go on: a guess at what a message takes at most.
"""

CoreEvent = JobFinished | SiteShut | SiteOpened
"""What follows for the core of a site from what its machines tell."""


class RunsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What machines run, which of them are full and why, the ports that jobs have, and how machines are reached."""

    runs: list[Run]
    full: dict[str, str]
    ports: dict[str, list[int]]
    hosts: dict[str, str]
    users: dict[str, TakenUsers] = {}  # whom each machine takes
    secrets: dict[str, str] = {}


class Runs:
    """The jobs that the machines of a site run, and the machines that can start nothing.

    What happens to jobs is noted in the book of the site, and what machines are to do is added to its commands. `over`
    has what has ended at this instant, by job, and `begun` what was kept from its nodes until now.
    """

    def __init__(self, settings: SiteSettings, book: JobBook) -> None:
        self.ports = Ports(settings.machines)
        self.over: dict[int, Run] = {}
        self.begun: list[Run] = []
        self._book = book
        _, traits = deciding(settings.policy)
        self._n_machines, self._has_forms = len(settings.machines), traits.forms
        self._shares_nodes, self._pauses = traits.uses_resources, traits.pauses
        self._runs: dict[int, Run] = {}
        # Machines that cannot start anything, and why; and whom each that has said so takes.
        self._full: dict[str, str] = {}
        self._users: dict[str, TakenUsers] = {}

    def state(self) -> RunsState:
        """Return what is known between two instants."""
        ports, hosts, secrets = self.ports.state()
        return RunsState(list(self._runs.values()), self._full, ports, hosts, self._users, secrets)

    def use_ports(self, machines: Collection[Machine]) -> None:
        """Give ports of other ranges from now on; those that jobs have they keep."""
        ports = Ports(machines)
        ports.restore(*self.ports.state())
        self.ports = ports

    def restore(self, state: RunsState) -> None:
        """Take in what was known of the same machines."""
        self._runs = {run.job_id: run for run in state.runs}
        self._full, self._users = state.full, state.users
        self.ports.restore(state.ports, state.hosts, state.secrets)

    def begin(self) -> None:
        """Begin an instant."""
        self.over, self.begun = {}, []

    @property
    def is_full(self) -> bool:
        """Whether no machine can start anything."""
        return len(self._full) == self._n_machines

    @property
    def users(self) -> TakenUsers:
        """Whom the site takes: whom all of its machines take that have said so."""
        taken = functools.reduce(TakenUsers.both, self._users.values()) if self._users else ANYONE
        return msgspec.structs.replace(taken, forms=self._has_forms, shares=self._shares_nodes)

    def orders(self, *machines: str) -> Iterator[Order]:
        """Yield what machines should do now and have not said that they have: safe to repeat."""
        yield from repeated_orders(self._runs.values(), set(machines))
        yield from (LookForRoom(machine) for machine in self._full if machine in machines)

    def expects(self, machine: str, job_id: int, attempt: int) -> bool:
        """Return whether a machine is thought to run a part of this attempt."""
        run = self._run_of(job_id, attempt)
        piece = None if run is None else run.pieces.get(machine)
        return piece is not None and not piece.is_over

    def _run_of(self, job_id: int, attempt: int) -> Run | None:
        """Return the run of this attempt of a job; None if it is not run here."""
        run = self._runs.get(job_id)
        return run if run is not None and run.attempt == attempt else None

    def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return which machine runs a rank of an attempt; empty if none does now."""
        run = self._run_of(job_id, attempt)
        if run is None:
            return ""
        ranks = {each.rank: machine for machine, piece in run.pieces.items() for each in piece.launch.ranks}
        return ranks.get(rank, "")

    def unfinished(self, job_id: int) -> list[tuple[str, int, int]]:
        """Return the machines that may run a part of a job still, each with the attempt and its node of the job."""
        run = self._runs.get(job_id)
        if run is None:
            return []
        pieces = [(machine, piece) for machine, piece in run.pieces.items() if not piece.is_over]
        return [(machine, run.attempt, piece.launch.ranks[0].node) for machine, piece in pieces]

    def problem_of(self, machine: str) -> str:
        """Return why a machine can start nothing now; empty if it can, as far as it has said."""
        return self._full.get(machine, "")

    def paused(self) -> tuple[int, ...]:
        """Return the jobs that stand still until their time slice comes."""
        return tuple(job_id for job_id, run in sorted(self._runs.items()) if run.is_paused)

    # -- what the site wants ------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Have the machines start what they have to run of a job, once all that was evicted from its nodes has left."""
        self._runs[run.job_id] = run
        run.is_kept = bool(self.in_way(run))
        if not run.is_kept:
            self._begin(run)

    def _begin(self, run: Run) -> None:
        self._book.out += [StartRun(machine, piece.launch, piece.slots) for machine, piece in run.pieces.items()]
        if run.is_paused is not None:
            told = run.job_id, run.attempt, not run.is_paused
            self._book.out += [PaceRun(machine, *told, speed=run.speed) for machine in run.pieces]

    def in_way(self, run: Run) -> list[int]:
        """Return the jobs that have to leave nodes of this run before it begins, and have not left them."""
        others = ((job_id, other) for job_id, other in self._runs.items() if other is not run and self._leaves(other))
        return [job_id for job_id, other in others if _shares_nodes(other, run)]

    def _leaves(self, run: Run) -> bool:
        """Return whether others that have nodes of a job begin when it has left: what is to end cannot stand still."""
        return run.is_evicted or (self._pauses and bool(run.ending))

    def put_off(self, command: StartJob, limit_ms: int) -> bool:
        """Keep the start of a job until it has left the nodes that it was evicted from; False if it has."""
        run = self._runs.get(command.job_id)
        if is_put_off := run is not None and run.is_evicted:
            run.next_start, run.next_limit_ms = command, limit_ms
        return is_put_off

    def not_begun(self) -> list[tuple[int, int]]:
        """Return the jobs that have nodes which others have not left, and how long each may run once they have."""
        found = [(job_id, run.next_limit_ms) for job_id, run in self._runs.items() if run.next_start is not None]
        kept = [run for run in self._runs.values() if run.is_kept and not (run.ending or run.is_evicted)]
        return found + [(run.job_id, next(iter(run.pieces.values())).launch.limit_ms or 0) for run in kept]

    def evict(self, job_id: int, reason: str) -> None:
        """Have the machines let a job save what it has done and end, as others have its nodes now."""
        run = self._runs[job_id]
        run.is_evicted, run.next_start, run.is_paused = True, None, None
        run.saves = run.end_for("evict", reason) or run.saves
        self._end_pieces(run, reason)

    def open(self, job_id: int) -> None:
        """Have the machines let the ranks of a job begin."""
        run = self._runs.get(job_id)
        if run is not None and not run.ending:
            run.is_open = True
            self._book.out += [OpenRun(machine, job_id, run.attempt) for machine in run.pieces]

    def met(self, job_id: int, attempt: int) -> None:
        """Take note that the ranks of a job have begun on all its sites."""
        run = self._run_of(job_id, attempt)
        if run is not None:
            run.has_met = True

    def cancel(self, job_id: int) -> bool:
        """Take note that the user of a job wants it no more; return False if none of it is run."""
        run = self._runs.get(job_id) or self.over.get(job_id)
        if run is not None:
            run.end_for("cancel", "cancelled")
            self._ends(job_id)
        return run is not None

    def has(self, job_id: int, attempt: int) -> bool:
        """Return whether this attempt of a job is run here."""
        return self._run_of(job_id, attempt) is not None

    def signal(self, job_id: int, attempt: int, signal: SignalName) -> None:
        """Have the machines send the ranks of a job a signal, those that run.

        Each knows what has begun there, also before it has said so here.
        """
        run = self._run_of(job_id, attempt)
        if run is not None and not (run.ending or run.is_kept):
            machines = [machine for machine, piece in run.pieces.items() if not piece.is_over]
            self._book.out += [SignalRun(machine, job_id, attempt, signal) for machine in machines]

    def _ends(self, job_id: int) -> None:
        """Enter that a job of the site's own users was told to end."""
        record = self._book.records.get(job_id)
        if record is not None:
            self._book.change(record, "stop")

    def kill(self, job_id: int, reason: str, *, at_once: bool = False) -> None:
        """Have the machines end a job, as the core has decided."""
        run = self._runs.get(job_id)
        if run is not None:
            is_new = run.end_for("limit" if reason == "reached its limit" else "kill", reason)
            if is_new and run.killed == "limit" and job_id not in self._book.records:
                # Every other reason came from the grid, or is none that ends the job.
                self._book.out.append(TellGrid(FragmentEnding(job_id, run.attempt)))
            self._ends(job_id)
            self._end_pieces(run, reason, at_once=at_once)

    def requeue(self, job_id: int, attempt: int, reason: str) -> None:
        """Have the machines let a job save what it has done and end; then it is lost, and runs again."""
        run = self._run_of(job_id, attempt)
        if run is not None and not run.ending and run.end_for("requeue", reason):
            run.saves = True
            self._end_pieces(run, reason)

    def has_as_many(self, run: Run) -> bool:
        """Return whether each machine runs as many ranks of a job, which need as much, as in another run of it."""
        old = self._runs.get(run.job_id)
        return old is not None and _ranks_at(old.next_run or old) == _ranks_at(run)

    def move(self, run: Run) -> None:
        """Have a job go on as another run: it saves what it has done and ends, and then starts there."""
        old = self._runs.get(run.job_id)
        if old is not None and not old.killed and (not old.ending or old.next_run is not None):
            old.next_run, old.saves = run, True
            self._end_pieces(old, "it is moved to other nodes")

    def pace(self, now_ms: int, job_id: int, *, runs: bool, speed: float = 1.0) -> bool:
        """Have the machines let a job stand still, or go on; return False if they were told so, or it is to end there.

        Where there are several, they do so at one instant, by their clocks: who leaves and who comes change together.
        While it stands still its speed is of no concern. One that has yet to leave other nodes begins at that pace.
        """
        run = self._runs.get(job_id)
        if run is None or (bool(run.is_paused) != runs and not (runs and run.speed != speed)):
            return False
        starts_later = run.next_start is not None
        if run.ending and run.next_run is None and not starts_later:
            return False
        run.is_paused, run.speed = not runs, speed if runs else run.speed
        if not (starts_later or run.is_kept):
            at_ms = now_ms + PACE_MARGIN_MS if self._n_machines > 1 else 0
            told = runs, at_ms, run.speed
            self._book.out += [PaceRun(machine, job_id, run.attempt, *told) for machine in run.pieces]
        return True

    def hand_back(self) -> None:
        """Give the grid what cannot start here for now; the site's own users have nowhere else to go, and wait."""
        if not self.is_full:
            return
        for run in self._runs.values():
            is_grids = run.job_id not in self._book.records
            if run.why_delayed and is_grids and run.end_for("hand back", run.why_delayed):
                self._end_pieces(run, run.why_delayed)

    def _end_pieces(self, run: Run, reason: str, *, at_once: bool = False) -> None:
        if not run.ending or (at_once and not run.at_once):
            run.ending, run.at_once = run.ending or reason, at_once
            for machine, piece in run.pieces.items():
                if not piece.is_over:
                    self._book.out.append(EndRun(machine, run.job_id, run.attempt, run.ending, at_once, run.saves))

    def note_rate(self, job_id: int, rate: int) -> None:
        """Note at which rate the site expects a job to work from now on."""
        if job_id in self._runs:
            self._runs[job_id].rate = rate

    def change_sharing(self, now_ms: int) -> list[Run]:
        """Note who shares nodes with whom now; return the runs beside which somebody has come, or has left."""
        found = [(run, run.shared) for run in self._runs.values() if run.shared is not None]
        partners = partners_of({run.job_id: run.nodes for run, _ in found})
        return [run for run, shared in found if shared.change(now_ms, run.rate, partners[run.job_id])]

    # -- what machines tell -------------------------------------------------------------------------------------------

    def take_in(self, event: Report | MachineForgotten) -> list[CoreEvent]:
        """Take note of what a machine says; return what the core is to be told of that.

        What it says of anything but the present attempt is passed over.
        """
        match event:
            case RunReady():
                return self._waits_at_gate(event)
            case RunStarted():
                return self._started(event)
            case RunEnded():
                return self._ended(event)
            case RunDelayed():
                return self._delayed(event)
            case MachineReady(machine=machine):
                return self._ready(machine)
            case MachineJoined():
                self._takes(event)
                return self._joined(event)
            case MachineTakes():
                self._takes(event)
                return []
            case MachineForgotten(machine=machine):
                return self._forgotten(machine)

    def _takes(self, event: MachineJoined | MachineTakes) -> None:
        """Take note of whom a machine takes; the grid hears whom the whole site does, if that is others than before."""
        before = self.users if self._users else ANYONE
        self._users[event.machine] = event.users
        if self.users != before:
            self._book.out.append(TellGrid(TakesUsers(self.users)))

    def _waits_at_gate(self, event: RunReady) -> list[CoreEvent]:
        """Take note that a machine's ranks are ready; the grid hears when those of all machines are."""
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run = self._runs[event.job_id]
        piece = run.pieces[event.machine]
        was_ready, piece.is_ready, piece.in_doubt, piece.delayed = piece.is_ready, True, False, ""
        if run.is_gated and not was_ready and all(other.is_ready for other in run.pieces.values()):
            self._book.out.append(TellGrid(FragmentReady(run.job_id, run.attempt)))
        return []

    def _started(self, event: RunStarted) -> list[CoreEvent]:
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run, record = self._runs[event.job_id], self._book.records.get(event.job_id)
        piece = run.pieces[event.machine]
        had_started = run.has_started
        piece.has_started, piece.has_run, piece.in_doubt, piece.delayed = True, True, False, ""
        if run.is_gated and run.has_started:
            if not had_started:
                self._book.out.append(TellGrid(FragmentOpened(run.job_id, run.attempt)))
            # A machine that says so again has not heard it.
            machines = [event.machine] if had_started else run.pieces
            self._book.out += [KeepRun(machine, run.job_id, run.attempt) for machine in machines]
        if record is not None and run.has_started and not had_started:
            record.starts += 1
        # The job's start stays the instant at which it was given its nodes, as for the jobs of the grid.
        if record is not None and run.has_started and self._book.change(record, "run"):
            self._book.note(event.job_id, "runs", f"on {run.where}")
        return []

    def _forgotten(self, machine: str) -> list[CoreEvent]:
        why = f"machine {machine} is gone for good"
        lost = [RunEnded(machine, run.job_id, run.attempt, "lost", why) for run in self._runs.values()]
        return [told for end in lost for told in self._ended(end)]

    def _ended(self, event: RunEnded) -> list[CoreEvent]:
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run = self._runs[event.job_id]
        if event.outcome == "cancelled" and not run.ending:
            # Nobody here wanted that: the machine was shut down, or had lost what it knew.
            event = msgspec.structs.replace(event, outcome="lost")
        piece, program = run.pieces[event.machine], run.request.program
        piece.has_started, piece.has_run = True, piece.has_run or event.has_run
        piece.end = event
        again = event.outcome == "lost" and program.if_lost == "requeue"
        if again or (event.outcome != "finished" and piece.launch.end_on_failure):
            self._end_pieces(run, f"its part on {event.machine} has ended: {event.outcome}")
        if self._leaves(run):
            self._runs_that_waited(event.machine)
        if not all(other.is_over for other in run.pieces.values()):
            return []
        if run.next_run is not None and run.goes_on:
            self._go_on(run, run.next_run)
            return []
        del self._runs[event.job_id]
        self.ports.give(run.port)
        self.over[event.job_id] = run
        # For the core what was evicted has left long ago; what it is told depends on how that has ended.
        return [] if run.is_evicted else [JobFinished(event.job_id, run.outcome()[0] == "finished", run.ended_ms)]

    def _runs_that_waited(self, machine: str) -> None:
        """Begin the runs on a machine that nothing is in the way of any more, by job id."""
        for _, run in sorted(self._runs.items()):
            if run.is_kept and not run.ending and machine in run.pieces and not self.in_way(run):
                run.is_kept = False
                self.begun.append(run)
                self._begin(run)

    def _go_on(self, old: Run, new: Run) -> None:
        """Have a job of the site's own users begin where it was moved to; for the core it has run all the while."""
        self.ports.give(old.port)
        new.port = self.ports.take(next(iter(new.pieces)), new.job_id, new.attempt)
        new.meet(new.port.meeting)
        record = self._book.records[new.job_id]
        record.attempt = new.attempt
        self._book.change(record, "move")
        self._book.note(new.job_id, "moved", f"to {new.where}")
        new.is_paused, new.speed = old.is_paused, old.speed
        self.start(new)

    def _delayed(self, event: RunDelayed) -> list[CoreEvent]:
        """Take note that a machine has no room; a site with no other starts nothing for the grid until one has."""
        was_full = self.is_full
        self._full[event.machine] = event.reason
        if self.expects(event.machine, event.job_id, event.attempt):
            piece = self._runs[event.job_id].pieces[event.machine]
            if not piece.has_started:
                piece.delayed = event.reason
                self._book.note(event.job_id, "delayed", event.reason)
        return [SiteShut(event.reason)] if self.is_full and not was_full else []

    def _ready(self, machine: str) -> list[CoreEvent]:
        """Take note that a machine can start what it is asked for."""
        was_full = self.is_full
        self._full.pop(machine, None)
        return [SiteOpened()] if was_full and not self.is_full else []

    def _joined(self, event: MachineJoined) -> list[CoreEvent]:
        """Take note that a machine is there, for the first time or again."""
        self.ports.reached_by(event.machine, event.host, event.secret)
        for run in self._runs.values():
            if event.machine in run.pieces:
                run.pieces[event.machine].in_doubt = True
        # If it still is full, it finds that out anew.
        return self._ready(event.machine)

    def check_invariants(self, running: Collection[int], given: Collection[Port]) -> None:
        """Raise AssertionError if not exactly these jobs are run, or ports beside those given to them are taken."""
        leaving = {job_id for job_id, run in self._runs.items() if run.is_evicted and run.next_start is None}
        assert set(running) == self._runs.keys() - leaving, "what runs is not what is run"
        for run in self._runs.values():
            assert not all(piece.is_over for piece in run.pieces.values()), f"job {run.job_id} is over and still here"
        every = [*given, *(run.port for run in self._runs.values())]
        ports = [(port.machine, port.number) for port in every if port.number]
        assert len(ports) == len(set(ports)), "a port is given twice"
        assert sorted(ports) == sorted(self.ports.taken()), "a port is lost"
