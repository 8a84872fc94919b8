"""Track the runs of a live site: each machine's ranks, how each node task ends, and the job's outcome.

`SiteSettings` lists the machines, `Run` is an attempt of a job, and `Runs` contains all runs. `Runs` sends orders to
the machines and applies their reports. It uses no clock and no I/O (docs/live.md, "Machines").
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator

import msgspec

from gridweave.errors import OptionError
from gridweave.settings import Changeable
from gridweave.site.allocation import NO_PORT, Port, Ports
from gridweave.site.array_tasks import ArrayTask, count_of, indexes_of, tasks_problem
from gridweave.site.disciplines.dictionary import counted_kinds, deciding
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import JobRequest, SignalName
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.launch import (
    ANYONE,
    AcceptedUsers,
    Launch,
    NodePart,
    NodeSharing,
    Ran,
    Used,
    both_ran,
    total_usage,
)
from gridweave.site.lifecycle import RUN_END, RunEndCause
from gridweave.site.messages import (
    CheckCapacity,
    ConfirmRun,
    EndRun,
    FragmentEnding,
    FragmentOpened,
    FragmentReady,
    JobFinished,
    KeepRun,
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
    SendToGrid,
    SignalRun,
    SiteOpened,
    SiteShut,
    StartJob,
    StartRun,
    TakesUsers,
)
from gridweave.site.needs.beside import SharedTime, partners_of
from gridweave.site.needs.estimates import UsualNeeds
from gridweave.site.policy import SitePolicy
from gridweave.site.run.numbers import NodeNumbers, RankNeed
from gridweave.site.users.owner import OwnerPolicy
from gridweave.site.users.registry import JobRegistry


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a live site; a site that continues a journal can change only the `changeable` settings.

    Raises
    ------
    OptionError
        If two machines have the same name, or there is no machine.
    """

    name: str
    number: int  # the site's index in the grid, from 0
    machines: tuple[Machine, ...]
    policy: Policy
    owner: OwnerPolicy = OwnerPolicy()
    # See `ContractCore`.
    rendezvous_ms: int = 30_000
    alone_ms: int = 1_500
    # See `gridweave.site.kernels.limits.week_of`, in Unix time; empty if the policy has no windows.
    week: tuple[tuple[int, int], ...] = ()
    needs: UsualNeeds = UsualNeeds()  # default needs of its own users' jobs

    def __post_init__(self) -> None:
        names = [machine.name for machine in self.machines]
        if not names or len(set(names)) != len(names):
            right = "at least one machine, each with its own name"
            raise OptionError("machines", f"of site {self.name} are {names}; {right}")

    @property
    def nodes(self) -> int:
        """The site's number of nodes."""
        return sum(machine.nodes for machine in self.machines)

    @property
    def changeable(self) -> Changeable:
        """The settings that can change while the same journal is used."""
        settings: dict[str, None] = dict.fromkeys(
            ("rendezvous_ms", "alone_ms", "week", "owner.own_users_first", "machines.ports")
        )
        return settings | ({"policy.order": None} if isinstance(self.policy, SitePolicy) else {})


MOST_CODES = 20
"""Largest number of failed ranks that are reported."""


class NodeTask(msgspec.Struct):
    """A node task of a run: the ranks of a job on one machine."""

    launch: Launch
    slots: tuple[int, ...]  # see `StartRun`
    needs: tuple[RankNeed, ...] = ()  # what each rank gets of its node; empty if the site does not count resources
    is_ready: bool = False  # whether the ranks are at the gate or past it
    has_started: bool = False  # whether the machine has reported the task's start or end
    has_run: bool = False  # whether the task may have run
    in_doubt: bool = False  # whether the machine has reconnected and may have lost the task
    delayed: str = ""  # reported reason why the machine cannot start the task yet; empty if there is none
    end: RunEnded | None = None

    @property
    def is_over(self) -> bool:
        """Whether the machine has reported the task's end."""
        return self.end is not None


class Run(msgspec.Struct):
    """An attempt of a job at this site, from its start until all machines have reported the end of their tasks."""

    job_id: int
    attempt: int
    request: JobRequest
    width: int  # number of the job's nodes at this site
    start_ms: int
    node_tasks: dict[str, NodeTask] = msgspec.field(name="pieces")  # by machine, in the order of the ranks
    # For a multi-site job: whether the grid has opened the gate, and whether the ranks at all other sites are running.
    is_open: bool = False
    has_met: bool = False
    ending: str = ""  # why the machines were ordered to end the run; empty if they were not
    at_once: bool = False  # whether this order skips the grace period
    saves: bool = False  # whether the ranks first get the checkpoint signal
    # How the site ends the run, as a state of `RUN_END`; empty: the site is not ending the run.
    killed: str = ""
    why_killed: str = ""  # the reason in one line
    port: Port = NO_PORT  # the ranks' rendezvous port
    is_paused: bool | None = None  # according to the last order; ``None``: no order yet
    speed: float = 1.0  # fraction of full speed according to the last order
    next_run: Run | None = None  # run on other nodes that starts when this run has written a checkpoint and ended
    is_evicted: bool = False  # whether another job gets its nodes; the evicted job is waiting or has `next_start`
    next_start: StartJob | None = None  # the job's next start, decided before this run had left its nodes
    next_limit_ms: int = 0  # wall time limit of the run that begins with `next_start`
    is_kept: bool = False  # whether its start is delayed until an evicted run has left its nodes
    shared: SharedTime | None = None  # history of node sharing, at sites that share nodes by threads
    rate: int = RATE_ONE  # rate of work expected by the site

    @property
    def goes_on(self) -> bool:
        """Whether the run was ended only so that the job continues as `next_run`, and not for another reason."""
        outcomes = {node_task.end.outcome for node_task in self.node_tasks.values() if node_task.end is not None}
        return self.next_run is not None and not self.killed and "cancelled" in outcomes <= {"cancelled", "finished"}

    @property
    def is_gated(self) -> bool:
        """Whether the ranks start behind a gate, where they wait for the ranks at other sites."""
        return any(node_task.launch.alone_ms is not None for node_task in self.node_tasks.values())

    @property
    def has_started(self) -> bool:
        """Whether all machines of the run have reported that their ranks have started."""
        return all(node_task.has_started for node_task in self.node_tasks.values())

    @property
    def why_delayed(self) -> str:
        """The reason a machine cannot start its task yet; empty if all machines have started or reported no delay."""
        return next((node_task.delayed for node_task in self.node_tasks.values() if node_task.delayed), "")

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """The run's nodes, each as a machine and the index of the node on this machine."""
        return [(machine, slot) for machine, node_task in self.node_tasks.items() for slot in node_task.slots]

    @property
    def where(self) -> str:
        """The run's machines, as text for users."""
        return ", ".join(self.node_tasks)

    @property
    def used(self) -> Used:
        """The run's total resource use on all machines that have reported its end."""
        return total_usage(
            tuple(node_task.end.used for node_task in self.node_tasks.values() if node_task.end is not None)
        )

    @property
    def ran_ms(self) -> Ran:
        """The latest start and the latest end of the run's processes; None if no process ran."""
        return functools.reduce(
            both_ran, (node_task.end.ran_ms for node_task in self.node_tasks.values() if node_task.end), None
        )

    @property
    def ended_ms(self) -> int | None:
        """The end time of the run's processes, by machine clocks; None if unknown or before the run's start."""
        return self.ran_ms[1] if self.ran_ms is not None and self.ran_ms[1] >= self.start_ms else None

    @property
    def exit_codes(self) -> tuple[tuple[int, int | None, int | None], ...]:
        """The rank, exit code and signal of each failed rank, sorted by rank; at most `MOST_CODES`."""
        ranks = [
            rank for node_task in self.node_tasks.values() if node_task.end is not None for rank in node_task.end.ranks
        ]
        bad = [(rank.rank, rank.exit_code, rank.signal) for rank in ranks if rank.exit_code != 0]
        return tuple(sorted(bad, key=lambda code: code[0])[:MOST_CODES])

    @property
    def array_tasks(self) -> tuple[ArrayTask, ...]:
        """The ended tasks of a packed array."""
        return tuple(
            task
            for node_task in self.node_tasks.values()
            if node_task.end is not None
            for task in node_task.end.array_tasks
        )

    @property
    def interrupted(self) -> tuple[int, ...]:
        """The interrupted tasks of a packed array, including all tasks of a machine that was lost without a report."""
        indices: list[int] = []
        for node_task in self.node_tasks.values():
            if node_task.end is None or not node_task.has_run:
                continue
            is_silent = node_task.end.outcome == "lost" and not (node_task.end.array_tasks or node_task.end.interrupted)
            indices += indexes_of(node_task.launch.array_tasks or ()) if is_silent else node_task.end.interrupted
        return tuple(sorted(indices))

    def sharing_at_end(self, now_ms: int) -> NodeSharing | None:
        """Return how the run shared its nodes until its end; None if it never shared them."""
        return None if self.shared is None or not self.shared.ever else self.shared.at_end(now_ms)

    def end_for(self, cause: RunEndCause, reason: str) -> bool:
        """Record why the site ends the run, according to the table `RUN_END`; return whether its state changed."""
        killed = RUN_END.after(self.killed, cause) or self.killed
        is_new = killed != self.killed
        if is_new or cause == "cancel":
            self.killed, self.why_killed = killed, reason
        return is_new

    def meet(self, rendezvous: str) -> None:
        """Set the ranks' rendezvous address."""
        for node_task in self.node_tasks.values():
            node_task.launch = msgspec.structs.replace(node_task.launch, rendezvous=rendezvous)

    def speed_up(self, factor: float) -> None:
        """Multiply the run's work per ms by `factor`."""
        for node_task in self.node_tasks.values():
            node_task.launch = msgspec.structs.replace(node_task.launch, rate=factor * node_task.launch.rate)

    def outcome(self) -> tuple[str, str]:
        """Return the outcome of the whole run, and the reason in one line.

        A run that succeeded by itself has finished, even if it was just being ended. A run that never started cannot
        have reached its limit: it is lost, because its machines were unreachable or full until then.
        """
        ends = [node_task.end for node_task in self.node_tasks.values() if node_task.end is not None]
        reasons = {end.outcome: end.reason for end in reversed(ends)}
        if self._has_run_all():  # a rank that was killed afterwards had no task left
            problem = tasks_problem(self.array_tasks)
            return ("failed", problem) if problem else ("finished", "")
        if set(reasons) == {"finished"}:
            return "finished", ""
        has_run = any(node_task.has_run for node_task in self.node_tasks.values())
        if self.killed == "limit" and not has_run:
            return "lost", self.why_delayed or "its machines did not start it within its limit"
        if self.killed == "lost" or ("lost" in reasons and self.killed != "cancelled"):
            why = reasons.get("lost", self.why_killed)
            counts = self.has_met or not self.is_gated
            if has_run and counts and self.request.program.if_lost == "fail":
                return "failed", f"lost: {why}"
            return "lost", why
        if self.killed and not reasons.keys() <= {"finished", "failed"}:
            return self.killed, self.why_killed
        worst = next(worst for worst in ("failed", "limit", "cancelled") if worst in reasons)
        return worst, reasons[worst]

    def _has_run_all(self) -> bool:
        """Whether all tasks of a packed array have ended."""
        shares = [
            node_task.launch.array_tasks
            for node_task in self.node_tasks.values()
            if node_task.launch.array_tasks is not None
        ]
        return bool(shares) and sum(map(count_of, shares)) == len(self.array_tasks)


def repeated_orders(
    runs: Iterable[Run], machines: Collection[str]
) -> Iterator[StartRun | OpenRun | ConfirmRun | EndRun | PaceRun]:
    """Yield the orders that machines have not confirmed yet; all orders can safely be repeated."""
    for run in runs:
        for machine, node_task in run.node_tasks.items():
            if machine not in machines or node_task.is_over or (run.is_kept and not run.ending):
                continue
            if node_task.in_doubt and (node_task.has_started or node_task.is_ready):
                yield ConfirmRun(machine, run.job_id, run.attempt)
            if run.ending:
                # A machine that does not know the run records that it must never start it.
                yield EndRun(machine, run.job_id, run.attempt, run.ending, run.at_once, run.saves)
            elif not node_task.has_started and not node_task.is_ready:
                yield StartRun(machine, node_task.launch, node_task.slots)
            elif not node_task.has_started and run.is_open:
                yield OpenRun(machine, run.job_id, run.attempt)
            if run.is_paused is not None and not run.ending:
                yield PaceRun(machine, run.job_id, run.attempt, not run.is_paused, speed=run.speed)


def _shares_nodes(other: Run, run: Run) -> bool:
    """Whether ``other`` still occupies a node of ``run``."""
    return any(
        machine in run.node_tasks
        and not node_task.is_over
        and not set(node_task.slots).isdisjoint(run.node_tasks[machine].slots)
        for machine, node_task in other.node_tasks.items()
    )


def _open_tasks(runs: Iterable[Run]) -> Iterator[tuple[str, NodeTask]]:
    return (item for run in runs for item in run.node_tasks.items() if not item[1].is_over)


def _ranks_at(run: Run) -> dict[str, tuple[int, NodePart | None]]:
    return {
        machine: (len(node_task.launch.ranks), node_task.launch.part) for machine, node_task in run.node_tasks.items()
    }


PACE_MARGIN_MS = 20
"""How far in advance an order to pause or resume a job on several machines is sent: about the longest message delay."""

CoreEvent = JobFinished | SiteShut | SiteOpened
"""The events for a site's core that result from its machines' reports."""


class RunsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of `Runs`: runs, full machines with reasons, ports in use, and the machines' addresses."""

    runs: list[Run]
    full: dict[str, str]
    ports: dict[str, list[int]]
    hosts: dict[str, str]
    users: dict[str, AcceptedUsers] = {}  # each machine's accepted users
    secrets: dict[str, str] = {}


class Runs:
    """A site's runs, and the machines that cannot start tasks.

    `Runs` records the jobs' histories in the site's registry, and adds orders for machines to the registry's commands.
    `over` contains the runs that ended at the current time, by job id; `begun` the delayed runs that got their nodes.
    """

    def __init__(self, settings: SiteSettings, registry: JobRegistry) -> None:
        self.ports = Ports(settings.machines)
        self.numbers = NodeNumbers(settings.machines, counted_kinds(settings.policy))
        self.over: dict[int, Run] = {}
        self.begun: list[Run] = []
        self._registry = registry
        _, traits = deciding(settings.policy)
        self._n_machines, self._has_forms = len(settings.machines), traits.forms
        self._uses_resources, self._pauses = traits.uses_resources, traits.pauses
        self._runs: dict[int, Run] = {}
        # The machines that cannot start tasks, with the reasons, and the accepted users of each machine that has
        # reported.
        self._full: dict[str, str] = {}
        self._users: dict[str, AcceptedUsers] = {}

    def state(self) -> RunsState:
        """Return the state; it does not include `over` and `begun`, which are reset by `begin`."""
        ports, hosts, secrets = self.ports.state()
        return RunsState(list(self._runs.values()), self._full, ports, hosts, self._users, secrets)

    def use_ports(self, machines: Collection[Machine]) -> None:
        """Replace the machines' port ranges; running jobs keep their ports."""
        ports = Ports(machines)
        ports.restore(*self.ports.state())
        self.ports = ports

    def restore(self, state: RunsState) -> None:
        """Restore a state that was saved with the same machines."""
        self._runs = {run.job_id: run for run in state.runs}
        self._full, self._users = state.full, state.users
        self.numbers.restore(_open_tasks(state.runs))
        self.ports.restore(state.ports, state.hosts, state.secrets)

    def begin(self) -> None:
        """Clear `over` and `begun` before the events of a new point in time."""
        self.over, self.begun = {}, []

    @property
    def is_full(self) -> bool:
        """Whether no machine can start tasks."""
        return len(self._full) == self._n_machines

    @property
    def users(self) -> AcceptedUsers:
        """The users accepted by every machine that has reported."""
        taken = functools.reduce(AcceptedUsers.both, self._users.values()) if self._users else ANYONE
        return msgspec.structs.replace(taken, forms=self._has_forms, shares=self._uses_resources)

    def orders(self, *machines: str) -> Iterator[Order]:
        """Yield the orders that these machines have not confirmed yet; all orders can safely be repeated."""
        yield from repeated_orders(self._runs.values(), set(machines))
        yield from (CheckCapacity(machine) for machine in self._full if machine in machines)

    def expects(self, machine: str, job_id: int, attempt: int) -> bool:
        """Whether a machine has an open task of this attempt."""
        run = self._run_of(job_id, attempt)
        node_task = None if run is None else run.node_tasks.get(machine)
        return node_task is not None and not node_task.is_over

    def _run_of(self, job_id: int, attempt: int) -> Run | None:
        """Return the run of this attempt of a job, or None."""
        run = self._runs.get(job_id)
        return run if run is not None and run.attempt == attempt else None

    def machine_of(self, job_id: int, attempt: int, rank: int) -> str:
        """Return the machine of a rank; empty if this site does not have the attempt or rank."""
        run = self._run_of(job_id, attempt)
        if run is None:
            return ""
        ranks = {
            launch_rank.rank: machine
            for machine, node_task in run.node_tasks.items()
            for launch_rank in node_task.launch.ranks
        }
        return ranks.get(rank, "")

    def unfinished(self, job_id: int) -> list[tuple[str, int, int]]:
        """Return machine, attempt and first node of each open task of a job; nodes are numbered within the job."""
        run = self._runs.get(job_id)
        if run is None:
            return []
        node_tasks = [(machine, node_task) for machine, node_task in run.node_tasks.items() if not node_task.is_over]
        return [(machine, run.attempt, node_task.launch.ranks[0].node) for machine, node_task in node_tasks]

    def problem_of(self, machine: str) -> str:
        """Return why a machine cannot start tasks now; empty if it can."""
        return self._full.get(machine, "")

    def paused(self) -> tuple[int, ...]:
        """Return the ids of the paused jobs, in ascending order."""
        return tuple(job_id for job_id, run in sorted(self._runs.items()) if run.is_paused)

    # -- orders -------------------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Start a run now, or as soon as evicted runs have left its nodes."""
        self._runs[run.job_id] = run
        run.is_kept = bool(self.in_way(run))
        if not run.is_kept:
            self._begin(run)

    def _begin(self, run: Run) -> None:
        self.numbers.take(run.node_tasks)
        self._registry.out += [
            StartRun(machine, node_task.launch, node_task.slots) for machine, node_task in run.node_tasks.items()
        ]
        if run.is_paused is not None:
            args = run.job_id, run.attempt, not run.is_paused
            self._registry.out += [PaceRun(machine, *args, speed=run.speed) for machine in run.node_tasks]

    def in_way(self, run: Run) -> list[int]:
        """Return the jobs that must leave this run's nodes before it can begin."""
        if self.numbers.has_free(run.node_tasks):
            return []
        others = ((job_id, other) for job_id, other in self._runs.items() if other is not run and self._leaves(other))
        return [job_id for job_id, other in others if _shares_nodes(other, run)]

    def _leaves(self, run: Run) -> bool:
        """Whether other runs must wait for this run to leave its nodes.

        True for an evicted run, and for an ending run at a site that usually pauses jobs, because an ending run cannot
        be paused.
        """
        return run.is_evicted or (self._pauses and bool(run.ending))

    def put_off(self, command: StartJob, limit_ms: int) -> bool:
        """Postpone a job's start if the job has not left its previous nodes yet; return whether it was postponed."""
        run = self._runs.get(command.job_id)
        if is_put_off := run is not None and run.is_evicted:
            run.next_start, run.next_limit_ms = command, limit_ms
        return is_put_off

    def not_begun(self) -> list[tuple[int, int]]:
        """Return the jobs whose start is delayed until other runs have ended, with their wall time limits [ms]."""
        waiting = [(job_id, run.next_limit_ms) for job_id, run in self._runs.items() if run.next_start is not None]
        kept = [run for run in self._runs.values() if run.is_kept and not (run.ending or run.is_evicted)]
        return waiting + [(run.job_id, next(iter(run.node_tasks.values())).launch.limit_ms or 0) for run in kept]

    def evict(self, job_id: int, reason: str) -> None:
        """Order the machines to make a job write a checkpoint and end, because another job gets its nodes."""
        run = self._runs[job_id]
        run.is_evicted, run.next_start, run.is_paused = True, None, None
        run.saves = run.end_for("evict", reason) or run.saves
        self._end_tasks(run, reason)

    def open(self, job_id: int) -> None:
        """Order the machines to open the gate for a job's ranks."""
        run = self._runs.get(job_id)
        if run is not None and not run.ending:
            run.is_open = True
            self._registry.out += [OpenRun(machine, job_id, run.attempt) for machine in run.node_tasks]

    def met(self, job_id: int, attempt: int) -> None:
        """Record that a job's ranks have started at all its sites."""
        run = self._run_of(job_id, attempt)
        if run is not None:
            run.has_met = True

    def cancel(self, job_id: int) -> bool:
        """Record that the user has cancelled a job; return False if no machine has a task of it."""
        run = self._runs.get(job_id) or self.over.get(job_id)
        if run is not None:
            run.end_for("cancel", "cancelled")
            self._ends(job_id)
        return run is not None

    def has(self, job_id: int, attempt: int) -> bool:
        """Whether this attempt of a job has a run at this site."""
        return self._run_of(job_id, attempt) is not None

    def signal(self, job_id: int, attempt: int, signal: SignalName) -> None:
        """Order the machines to send a signal to a job's running ranks.

        All machines with open tasks get the order, because a machine knows before the site that its ranks have started.
        """
        run = self._run_of(job_id, attempt)
        if run is not None and not (run.ending or run.is_kept):
            machines = [machine for machine, node_task in run.node_tasks.items() if not node_task.is_over]
            self._registry.out += [SignalRun(machine, job_id, attempt, signal) for machine in machines]

    def _ends(self, job_id: int) -> None:
        """Record that a job is ending; only for jobs of the site's own users."""
        record = self._registry.records.get(job_id)
        if record is not None:
            self._registry.change(record, "stop")

    def kill(self, job_id: int, reason: str, *, at_once: bool = False) -> None:
        """Order the machines to end a job; `at_once` skips the grace period."""
        run = self._runs.get(job_id)
        if run is not None:
            is_new = run.end_for("limit" if reason == "reached its limit" else "kill", reason)
            if is_new and run.killed == "limit" and job_id not in self._registry.records:
                # For all other reasons, the order came from the grid, or the job does not end.
                self._registry.out.append(SendToGrid(FragmentEnding(job_id, run.attempt)))
            self._ends(job_id)
            self._end_tasks(run, reason, at_once=at_once)

    def requeue(self, job_id: int, attempt: int, reason: str) -> None:
        """Order the machines to make a job write a checkpoint and end; its outcome ``lost`` makes it run again."""
        run = self._run_of(job_id, attempt)
        if run is not None and not run.ending and run.end_for("requeue", reason):
            run.saves = True
            self._end_tasks(run, reason)

    def has_as_many(self, run: Run) -> bool:
        """Whether a run has the same number of ranks and node fractions on each machine as the job's current run."""
        old = self._runs.get(run.job_id)
        return old is not None and _ranks_at(old.next_run or old) == _ranks_at(run)

    def move(self, run: Run) -> None:
        """Move a job to the nodes of a new run: the old run writes a checkpoint and ends, then the new run starts."""
        old = self._runs.get(run.job_id)
        if old is not None and not old.killed and (not old.ending or old.next_run is not None):
            old.next_run, old.saves = run, True
            self._end_tasks(old, "it is moved to other nodes")

    def pace(self, now_ms: int, job_id: int, *, runs: bool, speed: float = 1.0) -> bool:
        """Order the machines to pause or resume a job, or to change its speed.

        Several machines act at the same time by their clocks, so that one job pauses when another resumes. The speed of
        a paused job does not matter. A job that has not left its previous nodes yet will start with this pace.

        Returns
        -------
        bool
            False if the same pace was already ordered, or the job is ending.
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
            args = runs, at_ms, run.speed
            self._registry.out += [PaceRun(machine, job_id, run.attempt, *args) for machine in run.node_tasks]
        return True

    def hand_back(self) -> None:
        """If no machine can start tasks, hand delayed grid jobs back to the grid.

        Jobs of the site's own users keep waiting.
        """
        if not self.is_full:
            return
        for run in self._runs.values():
            is_grids = run.job_id not in self._registry.records
            if run.why_delayed and is_grids and run.end_for("hand back", run.why_delayed):
                self._end_tasks(run, run.why_delayed)

    def _end_tasks(self, run: Run, reason: str, *, at_once: bool = False) -> None:
        if not run.ending or (at_once and not run.at_once):
            run.ending, run.at_once = run.ending or reason, at_once
            for machine, node_task in run.node_tasks.items():
                if not node_task.is_over:
                    self._registry.out.append(EndRun(machine, run.job_id, run.attempt, run.ending, at_once, run.saves))

    def note_rate(self, job_id: int, rate: int) -> None:
        """Record the rate at which the site expects a job to work from now on."""
        if job_id in self._runs:
            self._runs[job_id].rate = rate

    def change_sharing(self, now_ms: int) -> list[Run]:
        """Record which jobs now share nodes; return the runs whose rate or partners have changed."""
        shared_runs = [(run, run.shared) for run in self._runs.values() if run.shared is not None]
        partners = partners_of({run.job_id: run.nodes for run, _ in shared_runs})
        return [run for run, shared in shared_runs if shared.change(now_ms, run.rate, partners[run.job_id])]

    # -- reports of machines ------------------------------------------------------------------------------------------

    def take_in(self, event: Report | MachineForgotten) -> list[CoreEvent]:
        """Apply a report; return the resulting events for the core.

        Reports about attempts other than the current one are ignored.
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
        """Record a machine's accepted users; notify the grid if the site's set has changed."""
        before = self.users if self._users else ANYONE
        self._users[event.machine] = event.users
        if self.users != before:
            self._registry.out.append(SendToGrid(TakesUsers(self.users)))

    def _waits_at_gate(self, event: RunReady) -> list[CoreEvent]:
        """Record that a machine's ranks are ready; notify the grid once all machines are ready."""
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run = self._runs[event.job_id]
        node_task = run.node_tasks[event.machine]
        was_ready, node_task.is_ready, node_task.in_doubt, node_task.delayed = node_task.is_ready, True, False, ""
        if run.is_gated and not was_ready and all(other.is_ready for other in run.node_tasks.values()):
            self._registry.out.append(SendToGrid(FragmentReady(run.job_id, run.attempt)))
        return []

    def _started(self, event: RunStarted) -> list[CoreEvent]:
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run, record = self._runs[event.job_id], self._registry.records.get(event.job_id)
        node_task = run.node_tasks[event.machine]
        had_started = run.has_started
        node_task.has_started, node_task.has_run, node_task.in_doubt, node_task.delayed = True, True, False, ""
        if run.is_gated and run.has_started:
            if not had_started:
                self._registry.out.append(SendToGrid(FragmentOpened(run.job_id, run.attempt)))
            # A machine that repeats its report has not received this order.
            machines = [event.machine] if had_started else run.node_tasks
            self._registry.out += [KeepRun(machine, run.job_id, run.attempt) for machine in machines]
        if record is not None and run.has_started and not had_started:
            record.starts += 1
        # The job's start remains the time of its placement, as for grid jobs.
        if record is not None and run.has_started and self._registry.change(record, "run"):
            self._registry.note(event.job_id, "runs", f"on {run.where}")
        return []

    def _forgotten(self, machine: str) -> list[CoreEvent]:
        why = f"machine {machine} is gone for good"
        lost = [RunEnded(machine, run.job_id, run.attempt, "lost", why) for run in self._runs.values()]
        return [event for end in lost for event in self._ended(end)]

    def _ended(self, event: RunEnded) -> list[CoreEvent]:
        if not self.expects(event.machine, event.job_id, event.attempt):
            return []
        run = self._runs[event.job_id]
        if event.outcome == "cancelled" and not run.ending:
            # The site did not order this end: the machine was shut down, or had lost its files.
            event = msgspec.structs.replace(event, outcome="lost")
        node_task, program = run.node_tasks[event.machine], run.request.program
        node_task.has_started, node_task.has_run = True, node_task.has_run or event.has_run
        node_task.end = event
        self.numbers.give(event.machine, node_task)
        again = event.outcome == "lost" and program.if_lost == "requeue"
        if again or (event.outcome != "finished" and node_task.launch.end_on_failure):
            self._end_tasks(run, f"its part on {event.machine} has ended: {event.outcome}")
        if self._leaves(run):
            self._runs_that_waited(event.machine)
        if not all(other.is_over for other in run.node_tasks.values()):
            return []
        if run.next_run is not None and run.goes_on:
            self._go_on(run, run.next_run)
            return []
        del self._runs[event.job_id]
        self.ports.give(run.port)
        self.over[event.job_id] = run
        # For the core, an evicted job left its nodes when it was evicted; the next step depends on its outcome.
        return [] if run.is_evicted else [JobFinished(event.job_id, run.outcome()[0] == "finished", run.ended_ms)]

    def _runs_that_waited(self, machine: str) -> None:
        """Start a machine's waiting runs whose nodes are now all free, ordered by job id."""
        for _, run in sorted(self._runs.items()):
            if run.is_kept and not run.ending and machine in run.node_tasks and not self.in_way(run):
                run.is_kept = False
                self.begun.append(run)
                self._begin(run)

    def _go_on(self, old: Run, new: Run) -> None:
        """Start a moved job of the site's own users on its new nodes; for the core, the job never stopped."""
        self.ports.give(old.port)
        new.port = self.ports.take(next(iter(new.node_tasks)), new.job_id, new.attempt)
        new.meet(new.port.meeting)
        record = self._registry.records[new.job_id]
        record.attempt = new.attempt
        self._registry.change(record, "move")
        self._registry.note(new.job_id, "moved", f"to {new.where}")
        new.is_paused, new.speed = old.is_paused, old.speed
        self.start(new)

    def _delayed(self, event: RunDelayed) -> list[CoreEvent]:
        """Record that a machine cannot start a task; if no machine can, the site accepts no new grid jobs."""
        was_full = self.is_full
        self._full[event.machine] = event.reason
        if self.expects(event.machine, event.job_id, event.attempt):
            node_task = self._runs[event.job_id].node_tasks[event.machine]
            if not node_task.has_started:
                node_task.delayed = event.reason
                self._registry.note(event.job_id, "delayed", event.reason)
        return [SiteShut(event.reason)] if self.is_full and not was_full else []

    def _ready(self, machine: str) -> list[CoreEvent]:
        """Record that a machine can start tasks again."""
        was_full = self.is_full
        self._full.pop(machine, None)
        return [SiteOpened()] if was_full and not self.is_full else []

    def _joined(self, event: MachineJoined) -> list[CoreEvent]:
        """Record that a machine has connected or reconnected."""
        self.ports.reached_by(event.machine, event.host, event.secret)
        for run in self._runs.values():
            if event.machine in run.node_tasks:
                run.node_tasks[event.machine].in_doubt = True
        # A machine that is still full will report it again.
        return self._ready(event.machine)

    def check_invariants(self, running: Collection[int], expected_ports: Collection[Port]) -> None:
        """Raise AssertionError unless the runs match the jobs in `running`, and no port is lost or used twice.

        `expected_ports` are the ports of jobs that have not started yet.
        """
        leaving = {job_id for job_id, run in self._runs.items() if run.is_evicted and run.next_start is None}
        assert set(running) == self._runs.keys() - leaving, "what runs is not what is run"
        for run in self._runs.values():
            assert not all(node_task.is_over for node_task in run.node_tasks.values()), (
                f"job {run.job_id} is over and still here"
            )
        self.numbers.check_invariants(_open_tasks(self._runs.values()))
        every = [*expected_ports, *(run.port for run in self._runs.values())]
        ports = [(port.machine, port.number) for port in every if port.number]
        assert len(ports) == len(set(ports)), "a port is given twice"
        assert sorted(ports) == sorted(self.ports.taken()), "a port is lost"
