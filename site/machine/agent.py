"""The agent of a machine: executes the site's orders, and resends reports until the site has received them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.site.launch import (
    ANY_JOBS,
    ANYONE,
    AcceptedUsers,
    Launch,
    Limits,
    MachineRules,
    NodePart,
    NodeTaskEvent,
    NodeTaskReady,
    NodeTaskStarted,
    Rank,
    Removal,
)
from gridweave.site.machine.cgroups import (
    CONFINING,
    CONTROLLERS,
    machine_memory_bytes,
    memory_problem,
    missing_groups,
    open_cgroups,
    parts_problem,
    unconfined,
)
from gridweave.site.machine.environment import PASSED, PASSED_FROM
from gridweave.site.machine.folders import (
    USAGE,
    Key,
    read_launch,
    read_regular,
    result_path,
    task_folder,
    user_folder,
)
from gridweave.site.machine.output import STREAMS, output_path
from gridweave.site.machine.runner import Runner
from gridweave.site.machine.starter import ask_launcher
from gridweave.site.messages import (
    ENCODER,
    LOCAL,
    ORDERS,
    CheckCapacity,
    ConfirmRun,
    EndRun,
    KeepRun,
    MachineJoined,
    MachineReady,
    MachineTakes,
    OpenRun,
    PaceRun,
    Report,
    RunDelayed,
    RunEnded,
    RunReady,
    RunStarted,
    SignalRun,
    StartRun,
)

logger = logging.getLogger("gridweave.live")

RESULT, USAGE_OVER_TIME = "result", "usage"
"""Stream names for a callable's return value, and for the resource use over time (`UsageCurve`)."""

MOST_OUTPUT = 4 << 20
"""Largest amount of output returned by one request [bytes]."""

LOOK_AT_USERS_S = 30.0
"""Interval between requests to the launcher for its accepted users [s]."""

SYSFS = Path("/sys/devices/system/cpu")

_GROUP = "gridweave"

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_REPORTS = 1_000


def written_path(folder: Path, own: Path, rank: int, stream: str) -> Path:
    """Return the file of an output stream, `RESULT` or `USAGE_OVER_TIME`; ``own`` is the user's subfolder."""
    if stream == RESULT:
        return result_path(own, rank)
    return folder / USAGE if stream == USAGE_OVER_TIME else output_path(folder, rank, stream)


class OutputRead(msgspec.Struct, frozen=True):
    """A part of a rank's output."""

    is_here: bool  # whether the rank belongs to this machine and its folder still exists
    data: bytes
    size: int  # size of the whole output after reading this part
    removal: Removal | None = None  # when and why the machine removed the output, if it did


class AgentDriver:
    """Runs node tasks on a machine on behalf of its site.

    Parameters
    ----------
    report : callable
        Sends encoded reports to the site; returns once the site has stored them, and raises if that is uncertain.
    cores : sequence of Cores
        The hardware threads of each core, for each node. Ranks on a node without an entry are not pinned.
    gpus : sequence of tuple of int, optional
        For each node, the machine's numbers of its GPUs; None if the site does not count resources.
    gpu_devices : mapping from int to tuple of int
        The major and minor number of the device file of each GPU of the machine.
    secret : str
        Secret for deriving the keys with which a job's ranks authenticate each other; empty: no keys.

    Notes
    -----
    Orders may arrive twice, late or never. `Runner` starts a node task at most once. A late order to an earlier agent
    process could start a task that has since been forgotten, so a site's orders are bound to one agent process.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        report: Callable[[bytes], Awaitable[None]],
        *,
        host: str = LOCAL,
        cores: Sequence[Cores] = (),
        gpus: Sequence[tuple[int, ...]] | None = None,
        gpu_devices: Mapping[int, tuple[int, int]] | None = None,
        nodes: int = 1,
        environment: Mapping[str, str] | None = None,
        rules: MachineRules = ANY_JOBS,
        shared: bool = False,
        secret: str = "",
    ) -> None:
        self.name, self.host, self._secret = name, host, secret
        self._rules, self._nodes = rules, nodes
        environment = own_environment() if environment is None else environment
        self.runner = Runner(root, environment, others=bool(rules.launcher), shared=shared, output=rules.output)
        self._groups: dict[str, str] | None = None
        self._users = ANYONE
        self._report, self._cores = report, tuple(cores)
        self._gpus, self._gpu_devices = gpus, gpu_devices or {}
        self._queue: deque[Report] = deque()
        self._news = asyncio.Event()
        # Tasks that cannot be started for now, e.g. because the disk is full, and have been reported as delayed.
        self._delayed: set[Key] = set()
        # The last pace ordered for tasks that have not started yet.
        self._paces: dict[Key, PaceRun] = {}
        # Started parts of split jobs that the site has not confirmed yet, and pending cancellations of these parts.
        self._unheard: set[Key] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Lock the folder, adopt its running tasks, and announce this machine to the site."""
        await self.runner.open()
        await self.runner.adopt()
        self._users = await self._asked_users() or ANYONE
        if not self._rules.launcher:
            limits_jobs = self._rules.limits is not None or self._rules.gives_parts or self._gpus is not None
            controllers = CONTROLLERS if limits_jobs else ()
            confining = () if self._gpus is None else CONFINING
            self._groups = open_cgroups(_GROUP, controllers=(*controllers, *confining)).paths
            if self._rules.gives_parts and (problem := parts_problem(self._groups)):
                logger.warning("machine %s: %s", self.name, problem)
        groups, has_gpus = self._groups or {}, bool(self._gpu_devices)
        if self._gpus is not None and (problem := unconfined(groups, cores=bool(self._cores), gpus=has_gpus)):
            logger.warning("machine %s: %s", self.name, problem)
        limits = self._rules.limits
        if limits is not None and (problem := memory_problem({self.name: (self._nodes, limits.memory_bytes)})):
            logger.warning("machine %s: %s", self.name, problem)
        self._say(MachineJoined(self.name, self.host, self._users, self._secret))

    async def run(self) -> None:
        """Send reports to the site, forever."""
        listening = [asyncio.ensure_future(self._listen())]
        if self._rules.launcher:
            listening.append(asyncio.ensure_future(self._watch_users()))
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._send_reports()
        finally:
            for task in listening:
                task.cancel()

    async def _asked_users(self) -> AcceptedUsers | None:
        """Return the accepted users, from the launcher if there is one; None if the launcher does not answer."""
        if not self._rules.launcher:
            return self._rules.users
        try:
            return await self._ask_launcher()
        except UnavailableError as error:
            logger.warning("%s: %s", self.name, error)
            return None

    async def _ask_launcher(self) -> AcceptedUsers:
        """Return the users accepted by the launcher, and record its control groups for jobs."""
        answer = await asyncio.to_thread(ask_launcher, self._rules.launcher, {"do": "hello"})
        self._groups = dict(answer["groups"])
        return AcceptedUsers(anyone=answer.get("anyone", True), names=tuple(answer.get("users", ())), is_mapped=True)

    async def _watch_users(self) -> None:
        """Report changes to the accepted users; each check also updates the launcher's control groups."""
        while True:
            await asyncio.sleep(LOOK_AT_USERS_S)
            users = await self._asked_users()
            if users is not None and users != self._users:
                self._users = users
                self._say(MachineTakes(self.name, users))

    async def order(self, data: bytes) -> None:
        """Decode and execute the site's orders for this machine."""
        for order in ORDERS.decode(data):
            if order.machine != self.name:
                logger.error("an order for machine %s arrived at machine %s", order.machine, self.name)
            elif isinstance(order, EndRun):
                self._paces.pop((order.job_id, order.attempt), None)
                how = {"at_once": order.at_once, "saves": order.saves}
                await self.runner.cancel(order.job_id, order.attempt, order.reason, **how)
            elif isinstance(order, OpenRun):
                await self.runner.open_gate(order.job_id, order.attempt)
            elif isinstance(order, KeepRun):
                self._unheard.discard((order.job_id, order.attempt))
            elif isinstance(order, ConfirmRun):
                await self._confirm(order)
            elif isinstance(order, PaceRun):
                await self._pace(order)
            elif isinstance(order, SignalRun):
                self.runner.signal(order.job_id, order.attempt, order.signal)
            elif isinstance(order, CheckCapacity):
                self._check_capacity()
            else:
                await self._start(order)

    async def _start(self, order: StartRun) -> None:
        """Start a node task; if that is impossible for now, report a delay, and the site will repeat the order."""
        key = order.launch.job_id, order.launch.attempt
        refusal = self._rules.refusal(order.launch.user)
        try:
            if self._rules.launcher and self._groups is None:
                await self._ask_launcher()
            launch = self._counted(self._ruled(self._pinned(order)))
            if refusal is None:
                refusal = missing_groups(launch)
            if refusal is None and launch.part is not None:
                refusal = parts_problem(launch.groups)
            if refusal is not None:
                self._say(RunEnded(self.name, *key, "failed", f"machine {self.name}: {refusal}", has_run=False))
                return
            await self.runner.start(launch)
            if (pace := self._paces.pop(key, None)) is not None:
                await self._pace(pace)
        except UnavailableError as error:
            if key not in self._delayed:
                logger.warning("%s cannot start job %d now: %s", self.name, key[0], error)
                self._delayed.add(key)
                self._say(RunDelayed(self.name, *key, f"machine {self.name} cannot start it now: {error}"))

    def _ruled(self, launch: Launch) -> Launch:
        """Add this machine's launcher, limits and control groups to a launch."""
        rules = self._rules
        limits = rules.limits
        if rules.counts_parts:
            launch = msgspec.structs.replace(launch, part=None)
        if launch.part is not None:
            limits = self._limits_of(launch.part, limits or Limits())
        elif limits is not None:
            limits = limits.times(len({rank.node for rank in launch.ranks}))
        return msgspec.structs.replace(launch, launcher=rules.launcher, limits=limits, groups=self._groups or {})

    def _counted(self, launch: Launch) -> Launch:
        """Add the limits that enforce a job's cores, memory and GPUs on this machine, if the site counts resources.

        A resource is not enforced if the machine has no control group for it.
        """
        if self._gpus is None:
            return launch
        limits, groups = launch.limits or Limits(), launch.groups
        memory_bytes = launch.memory_mb * 10**6
        if memory_bytes and "memory" in groups:
            limits = msgspec.structs.replace(
                limits, memory_bytes=min(memory_bytes, limits.memory_bytes or memory_bytes)
            )
        threads = launch.bound_threads
        if threads and "cpuset" not in groups and "cpu" in groups:
            limits = msgspec.structs.replace(limits, cpus=min(len(threads), limits.cpus or len(threads)))
        own = {device for rank in launch.ranks if rank.resources for device in rank.resources.devices or ()}
        denied = tuple(device for number, device in self._gpu_devices.items() if number not in own)
        return msgspec.structs.replace(launch, limits=limits, denied=denied)

    def _limits_of(self, part: NodePart, node: Limits) -> Limits:
        """Return the limits for a fraction of a node; without configured limits, nodes share the machine equally."""
        cpus = node.cpus or len(os.sched_getaffinity(0)) / self._nodes
        memory_bytes = node.memory_bytes or machine_memory_bytes() // self._nodes
        return msgspec.structs.replace(node, cpus=part.cpu * cpus, memory_bytes=int(part.memory * memory_bytes))

    def _check_capacity(self) -> None:
        """Report that the machine is ready if its disk has space again."""
        if self.runner.disk_problem(trial=True) is None:
            self._delayed.clear()
            self._say(MachineReady(self.name))

    async def _pace(self, order: PaceRun) -> None:
        """Pause, resume or slow a node task; a task whose start order has not arrived yet will start at this pace."""
        key = order.job_id, order.attempt
        if not self.runner.knows(*key):
            self._paces[key] = order
        await self.runner.pace(*key, runs=order.runs, at_unix_ms=order.at_ms, speed=order.speed)

    async def _confirm(self, order: ConfirmRun) -> None:
        """Report whether this machine has a node task; if not, make sure that a late order cannot start it."""
        if self.runner.knows(order.job_id, order.attempt):
            is_at_gate = self.runner.is_at_gate(order.job_id, order.attempt)
            self._say((RunReady if is_at_gate else RunStarted)(self.name, order.job_id, order.attempt))
            await self.runner.report_again(order.job_id, order.attempt)
            return
        reason = f"machine {self.name} no longer knows it"
        self._say(RunEnded(self.name, order.job_id, order.attempt, "lost", reason))
        await self.runner.cancel(order.job_id, order.attempt, reason)

    def part(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a part of a rank's output, and whether the rank belongs to this machine."""
        data = self.output(job_id, attempt, rank, stream, offset, limit)
        folder = task_folder(self.runner.root, (job_id, attempt))
        launch = read_launch(folder)
        is_here = launch is not None and any(other.rank == rank for other in launch.ranks)
        removal = None if launch is not None else self.runner.removal(job_id, attempt)
        try:
            size = self._written_path(folder, rank, stream).lstat().st_size
        except OSError:
            size = 0
        return OutputRead(is_here, data, size, removal)

    def output(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> bytes:
        """Return a part of a rank's ``out`` or ``err`` stream, or of its ``result`` or ``usage`` as JSON."""
        if stream not in (*STREAMS, RESULT, USAGE_OVER_TIME):
            raise OptionError("stream", f"is {stream!r:.20}; expected out, err, result or usage")
        if min(job_id, attempt, rank, offset, limit) < 0:
            raise OptionError("offset", "or another number is below 0; expected at least 0")
        path = self._written_path(task_folder(self.runner.root, (job_id, attempt)), rank, stream)
        return read_regular(path, offset, min(limit, MOST_OUTPUT))

    async def end_all(self) -> None:
        """Cancel all tasks on this machine."""
        for key in self.runner.task_keys():
            await self.runner.cancel(*key, "the grid is being shut down")

    async def close(self) -> None:
        """Stop watching the tasks; they keep running."""
        await self.runner.close()

    def _pinned(self, order: StartRun) -> Launch:
        """Replace the site's thread numbers in a launch with the operating system's."""
        launch = order.launch
        if self._gpus is not None:
            slots = zip(launch.ranks, order.slots, strict=True)
            ranks = tuple(self._with_devices(rank, slot, self._gpus[slot]) for rank, slot in slots)
        elif not self._cores or launch.part is not None:
            ranks = tuple(msgspec.structs.replace(rank, threads=None) for rank in launch.ranks)
        else:
            slots = zip(launch.ranks, order.slots, strict=True)
            ranks = tuple(self._on(rank, slot, launch.lanes) for rank, slot in slots)
        return msgspec.structs.replace(launch, ranks=ranks)

    def _with_devices(self, rank: Rank, slot: int, gpus: Sequence[int]) -> Rank:
        """Add this machine's hardware threads and GPU numbers for a rank's cores and GPUs on its node."""
        resources = rank.resources
        if not resources:
            return msgspec.structs.replace(rank, threads=None)
        threads = None
        if self._cores:
            threads = tuple(sorted(thread for core in resources.cores for thread in self._cores[slot][core]))
        devices = tuple(gpus[gpu] for gpu in resources.gpus)
        return msgspec.structs.replace(
            rank, threads=threads, resources=msgspec.structs.replace(resources, devices=devices)
        )

    def _on(self, rank: Rank, slot: int, lanes: tuple[int, int] | None) -> Rank:
        cores = self._cores[slot] if slot < len(self._cores) else ()
        if rank.threads is None or lanes is None:
            chosen = tuple(thread for core in cores for thread in core)
        else:
            chosen = tuple(sorted({thread for lane in rank.threads for thread in lane_threads(cores, lanes, lane)}))
        return msgspec.structs.replace(rank, threads=chosen or None)

    def _written_path(self, folder: Path, rank: int, stream: str) -> Path:
        return written_path(folder, user_folder(folder, launcher=self._rules.launcher), rank, stream)

    def _say(self, report: Report) -> None:
        self._queue.append(report)
        self._news.set()

    async def _listen(self) -> None:
        async for event in self.runner.events():
            if isinstance(event, NodeTaskStarted) and event.alone_ms is not None:
                self._watch((event.job_id, event.attempt), event.alone_ms)
            self._say(_report_of(self.name, event))

    def _watch(self, key: Key, alone_ms: int) -> None:
        """Cancel a started task of a split job if the site does not confirm in time that all of its ranks started."""

        def late() -> None:
            if key in self._unheard:
                self._unheard.discard(key)
                reason = "its site did not confirm in time that all of its ranks had started"
                task = asyncio.ensure_future(self.runner.cancel(*key, reason, at_once=True))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

        self._unheard.add(key)
        self.runner.heard(*key)
        asyncio.get_running_loop().call_later(alone_ms / 1000, late)

    async def _send_reports(self) -> None:
        """Send the queued reports, retrying until the site has received them."""
        pause_s = _FIRST_PAUSE_S
        while self._queue:
            part = [self._queue[number] for number in range(min(len(self._queue), _MOST_REPORTS))]
            try:
                await self._report(ENCODER.encode(part))
            except Exception as error:
                # After an error, the site may or may not have the reports; it ignores repeated reports.
                logger.info("%s cannot reach its site, trying again: %s", self.name, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            for report in part:
                self._queue.popleft()
                if isinstance(report, RunEnded):
                    self.runner.release(report.job_id, report.attempt)


def _report_of(agent: str, event: NodeTaskEvent) -> Report:
    if isinstance(event, NodeTaskReady):
        return RunReady(agent, event.job_id, event.attempt)
    if isinstance(event, NodeTaskStarted):
        return RunStarted(agent, event.job_id, event.attempt)
    # A lost task may have run without reporting it.
    has_run = event.started_ms is not None or event.outcome == "lost"
    key = event.job_id, event.attempt
    report = RunEnded(agent, *key, event.outcome, event.reason, event.ranks, event.usage, has_run)
    ran_ms = None if event.started_ms is None else (event.started_ms, event.ended_ms)
    return msgspec.structs.replace(report, array_tasks=event.array_tasks, interrupted=event.interrupted, ran_ms=ran_ms)


def own_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that jobs running as the service's user inherit, by `PASSED` and `PASSED_FROM`.

    Examples
    --------
    >>> own_environment({"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "s", "OLDPWD": "/home/anna"})
    {'PATH': '/bin', 'LC_ALL': 'C'}
    """
    return {name: value for name, value in environment.items() if name in PASSED or name.startswith(PASSED_FROM)}


Cores = tuple[tuple[int, ...], ...]
"""The hardware threads of each core, as numbered by the operating system."""


def lane_threads(cores: Cores, lanes: tuple[int, int], lane: int) -> tuple[int, ...]:
    """Return the hardware threads of a node that correspond to one thread of the site's model.

    The node's cores are divided among the model's cores. The first thread of a model core gets the first sibling of
    each of its hardware cores, the second thread the second sibling, and so on. If the hardware has fewer threads per
    core, the model's threads divide the hardware threads among themselves, and share one if there are too few.

    Parameters
    ----------
    cores : tuple of tuple of int
        Hardware cores of the node.
    lanes : (int, int)
        Cores per node and threads per core in the site's model.
    lane : int
        Index of the thread in the site's model, counted core by core.

    Examples
    --------
    >>> smt = ((0, 2), (1, 3))
    >>> lane_threads(smt, (1, 2), 0), lane_threads(smt, (1, 2), 1), lane_threads(smt, (2, 2), 3)
    ((0, 1), (2, 3), (3,))
    >>> plain = ((0,), (1,))
    >>> lane_threads(plain, (1, 2), 1), lane_threads(plain, (2, 2), 2), lane_threads(plain, (2, 2), 3)
    ((1,), (1,), (1,))
    """
    if not cores:
        return ()
    n_cores, n_threads = lanes
    core, thread = divmod(lane, n_threads)
    own = cores[core * len(cores) // n_cores : (core + 1) * len(cores) // n_cores] or (cores[core % len(cores)],)
    if all(len(siblings) >= n_threads for siblings in own):
        return tuple(number for siblings in own for number in siblings[thread::n_threads])
    threads = [number for siblings in own for number in siblings]
    return tuple(threads[thread::n_threads]) or (threads[thread % len(threads)],)


def node_cores(nodes: int, sysfs: Path = SYSFS) -> tuple[Cores, ...]:
    """Divide the cores that this process may use among nodes, without splitting a core.

    The result is empty if there are fewer cores than nodes, or if the kernel lists no cores, as in some containers.
    """
    try:
        cores = usable_cores(sysfs)
    except InputError as error:
        logger.warning("ranks are not bound to hardware threads: %s", error)
        return ()
    share = len(cores) // nodes
    if not share:
        return ()
    return tuple(cores[node * share : (node + 1) * share] for node in range(nodes))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list of hardware threads in the kernel's format.

    Examples
    --------
    >>> parse_cpu_list("0-2,8")
    (0, 1, 2, 8)
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
            raise InputError(f"list of hardware threads {text.strip()!r} is invalid; expected e.g. '0-3,8'")
        numbers.update(range(int(first), int(last) + 1))
    return tuple(sorted(numbers))


def thread_siblings(sysfs: Path = SYSFS) -> tuple[tuple[int, ...], ...]:
    """Return the hardware threads of each core, sorted by first thread.

    Offline threads are missing because the kernel lists no topology for them. A thread without a list of siblings
    counts as a separate core.
    """
    cores: set[tuple[int, ...]] = set()
    for folder in sysfs.glob("cpu[0-9]*"):
        number = folder.name.removeprefix("cpu")
        if not number.isdecimal() or not (folder / "topology").is_dir():
            continue
        # Newer kernels call the file core_cpus_list, but keep the older name as well.
        for name in ("thread_siblings_list", "core_cpus_list"):
            if (folder / "topology" / name).is_file():
                cores.add(parse_cpu_list((folder / "topology" / name).read_text(encoding="ascii")))
                break
        else:
            cores.add((int(number),))
    if not cores:
        raise InputError(f"{sysfs}: has no hardware threads; expected folders such as cpu0/topology")
    return tuple(sorted(cores))


def usable_cores(sysfs: Path = SYSFS, allowed: set[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Return the hardware threads of each core, limited to those that this process's container or cpuset allows."""
    may = os.sched_getaffinity(0) if allowed is None else allowed
    kept = (tuple(thread for thread in core if thread in may) for core in thread_siblings(sysfs))
    return tuple(core for core in kept if core)
