"""A live grid in one thread and in virtual time: real drivers and cores on a bad network, killed at random.

Use it for promises that must hold under any fault. `play(seed)` draws a grid, jobs and faults from the seed, runs them,
and raises an error if an invariant is violated; a subclass of `LiveWorld` draws something else.
`python tools/live_world.py FIRST COUNT` runs many seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from gridweave.errors import GridweaveError
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service import driver as grid_driver
from gridweave.grid.service.driver import GridDriver
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.heterogeneous.machines import Cluster
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import OWN_IDS, Accepted, JobForm, JobRequest, Program
from gridweave.site.machine import agent as agent_module
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.messages import (
    ORDERS,
    CommitNodes,
    EndRun,
    LeaseEnded,
    Order,
    PaceRun,
    Reserved,
    ReserveNodes,
    Started,
    StartRun,
)
from gridweave.site.messages import Machine as SiteMachine
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.contract import ALONE_MS
from gridweave.site.service import driver as driver_module
from gridweave.site.service import site_driver
from gridweave.site.service.driver import as_begun
from gridweave.site.service.site_driver import GRID, SiteDriver
from gridweave.site.users.owner import OwnerPolicy
from support.checks import check_notes, check_waits, was_hopeless, with_wishes
from support.fakes import Disk, FakeRunner, Machine, MemoryJournal, Works, replay
from support.stepping import Process, VirtualClock, VirtualLoop

SLACK_MS = 20_000
"""Longest time until an action is done when nothing fails; includes repeated messages and pauses after failures."""

TROUBLE_S = 30
LONGEST_S = 600
_FOREVER_MS = 10**15


_LOST_FOR = (
    "gone for good",
    "its site did not confirm in time that all of its ranks had started",
)  # lost, but not by a machine


class Node:
    """A driver in its own virtual process, which can be killed and started again."""

    def __init__(self, world: LiveWorld, name: str, make: Callable[[Process], Awaitable[Any]]) -> None:
        self._world, self.name, self._make = world, name, make
        self.process = Process(name, world.errors.append)
        self.process.is_alive = False
        self.driver: Any = None
        self.up_since_ms = 0

    def start(self) -> None:
        """Start a new process and open a driver in it."""
        self.process = Process(self.name, self._world.errors.append)
        self.driver = None
        self.up_since_ms = self._world.loop.now_ms()
        self.process.spawn(self._open(self.process), endless=True)

    async def _open(self, process: Process) -> None:
        driver = await self._make(process)
        if process.is_alive:
            self.driver = driver
        await asyncio.Event().wait()

    @property
    def is_up(self) -> bool:
        """Whether the driver is open and can be called."""
        return self.process.is_alive and self.driver is not None

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.driver = None


class LiveWorld:
    """A grid, its users, and its faults.

    Parameters
    ----------
    loop : VirtualLoop
    rng : numpy.random.Generator
    shapes : list of list of int, optional
        Nodes of each machine of each site, under full control and all for the grid; drawn by default.
    evicted : str
        What happens to evicted jobs (``restart``, ``pause``); empty if no job is evicted. With evictions, a site is
        often killed right after it has ordered a job to end or to pause.
    changes : numpy.random.Generator, optional
        Draws new settings at each start of a driver; without it, settings stay the same.
    rendezvous_ms : int
        How long the parts of a job on several sites wait for each other.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        rng: np.random.Generator,
        shapes: list[list[int]] | None = None,
        *,
        evicted: str = "",
        changes: np.random.Generator | None = None,
        rendezvous_ms: int = 3_000,
    ) -> None:
        self.changes = changes
        self.loop, self.rng, self.evicted, self.evicts = loop, rng, evicted, bool(evicted)
        self.errors: list[BaseException] = []
        self.killed_amid = 0
        draw = rng.random
        self.loss, self.twice, self.delay_s = draw() * 0.2, draw() * 0.2, rng.choice([0.002, 0.05, 0.3])
        loop.slowest_s = float(rng.choice([0.05, 0.05, 0.8]))
        if shapes is not None:
            self.loss, self.twice, self.delay_s, loop.slowest_s = 0.0, 0.0, 0.002, 0.01
        self.in_trouble, self.calm_since_ms = True, _FOREVER_MS
        is_slow = self.delay_s > 0.1 or loop.slowest_s > 0.1
        self.rendezvous_ms = rendezvous_ms
        self.alone_ms = 12_000 if is_slow else 3_000 if shapes is None else ALONE_MS
        is_drawn = shapes is None
        n_sites = int(rng.integers(1, 4)) if shapes is None else len(shapes)
        self.machines: list[Machine] = []
        if shapes is None:
            shapes = [[int(rng.integers(1, 4)) for _ in range(int(rng.integers(1, 3)))] for _ in range(n_sites)]
        nodes = [count for shape in shapes for count in shape]
        pauses = [evicted == "pause" and number != QUEUE for number in range(n_sites)]
        shared = [pauses[number] for number, shape in enumerate(shapes) for _ in shape]
        self.history = History(nodes + [0] * n_sites, slices_time=shared + [False] * n_sites)
        self._first_site = len(nodes)
        self.works = Works(loop, rng, self.history, grace_s=1.0 if evicted else 0.02)
        self.settings: list[SiteSettings] = []
        for number, shape in enumerate(shapes):
            agents = tuple(
                SiteMachine(name=f"s{number}m{place}", nodes=count, ports=(2000, 2000 + int(rng.integers(0, 4))))
                for place, count in enumerate(shape)
            )
            policy: Policy = SitePolicy(backfill=str(rng.choice(["easy", "conservative", "none"])))
            if evicted:
                policy = LevelsPolicy(levels=LEVELS) if number == QUEUE else evicting(sum(shape), evicted)
            owner = OwnerPolicy(
                grid_share=1.0 if sum(shape) == 1 or not is_drawn else float(rng.choice([1.0, 0.7])),
                own_users_first=bool(draw() < 0.3),
            )
            self.settings.append(
                SiteSettings(
                    name=f"s{number}", number=number, machines=agents, policy=policy, owner=owner,
                    rendezvous_ms=self.rendezvous_ms, alone_ms=self.alone_ms,
                )
            )  # fmt: skip
            for agent in agents:
                place = len(self.machines)
                self.machines.append(Machine(self.works, place, number, agent.name, agent.nodes, pauses=pauses[number]))
        control = str(rng.choice(["full", "full", "limited", "none"])) if is_drawn else "full"
        sites = tuple((each.name, each.owner.nodes_for_grid(each.nodes)) for each in self.settings)
        mode = "multi-site" if control != "none" else "sharing"
        # Every second grid uses `pjs`. This is derived from the nodes, as one more draw would change all later draws.
        is_mapped = control == "limited" and n_sites > 1 and sum(nodes for _, nodes in sites) % 2
        selection = "pjs" if is_mapped else "best-fit"
        self.grid_settings = GridSettings(
            sites=sites, policy=GridPolicy(mode=mode, control=control, selection=selection),
            margin_ms=4_000, retry_ms=4_000, alone_ms=self.alone_ms,
            lease_ms=int(rng.choice([3_600_000, 3_600_000, 5_000])),
        )  # fmt: skip
        self._open_disks()
        self._agreed: dict[tuple[int, int], tuple[dict[int, int], int]] = {}
        self._until: dict[tuple[int, int, int], int] = {}
        self._make_nodes()
        self.requests: dict[int, JobRequest] = {}
        self._places: dict[str, list[int]] = {}
        self.with_wishes = bool(draw() < 0.7)
        # For the link of each site, whether it is cut from the grid to the site, and from the site to the grid.
        self._cut = [[False, False] for _ in range(n_sites)]

    # -- drivers and journals -----------------------------------------------------------------------------------------

    def _open_disks(self) -> None:
        self.disks = [Disk(settings.name) for settings in self.settings] + [Disk(GRID)]
        for disk in self.disks:
            disk.fails = lambda: self.in_trouble and bool(self.rng.random() < 0.02)
        for number, disk in enumerate(self.disks[:-1]):
            disk.on_sent = lambda _, message, number=number: self._site_sent(number, message)  # type: ignore[misc]
        names = [settings.name for settings in self.settings]
        self.disks[-1].on_sent = lambda peer, message: self._grid_sent(names.index(peer), message)

    def _make_nodes(self) -> None:
        self.sites = [Node(self, each.name, self._site_maker(number)) for number, each in enumerate(self.settings)]
        self.grid = Node(self, GRID, self._make_grid)
        self.agents = {each.name: Node(self, each.name, self._agent_maker(each)) for each in self.machines}

    def _clock(self) -> Any:
        return VirtualClock(self.loop, int(self.rng.integers(-100, 100)))

    def _site_maker(self, number: int) -> Callable[[Process], Awaitable[SiteDriver]]:
        async def make(process: Process) -> SiteDriver:
            async def to_grid(_peer: str, data: bytes) -> None:
                self._carry(number, self.grid, self.settings[number].name, data)

            async def to_machine(name: str, data: bytes) -> None:
                self._order(self.agents[name], data)

            place: Any = self.disks[number]
            settings = self._changed_site(self.settings[number])
            driver = SiteDriver(settings, place, self._clock(), to_grid=to_grid, to_machine=to_machine)
            process.spawn(driver.run(), endless=True)
            process.spawn(driver.repeat_orders(), endless=True)
            return driver

        return make

    async def _make_grid(self, process: Process) -> GridDriver:
        names = [settings.name for settings in self.settings]

        async def to_site(name: str, data: bytes) -> None:
            number = names.index(name)
            self._carry(number, self.sites[number], GRID, data)

        place: Any = self.disks[-1]
        driver = GridDriver(self._changed_grid(self.grid_settings), place, self._clock(), to_site=to_site)
        process.spawn(driver.run(), endless=True)
        return driver

    def _changed_site(self, settings: SiteSettings) -> SiteSettings:
        """Return the settings of a site for its next start."""
        if self.changes is None:
            return settings
        draw = self.changes.choice
        low = int(draw([2000, 3000]))
        machines = tuple(msgspec.structs.replace(each, ports=(low, low + 3)) for each in settings.machines)
        owner = msgspec.structs.replace(settings.owner, own_users_first=bool(draw([True, False])))
        policy = settings.policy
        if isinstance(policy, SitePolicy):
            policy = msgspec.structs.replace(policy, order=str(draw(["fcfs", "sjf", "ljf", "priority"])))
        return msgspec.structs.replace(settings, machines=machines, owner=owner, policy=policy)

    def _changed_grid(self, settings: GridSettings) -> GridSettings:
        """Return the settings of the grid for its next start."""
        if self.changes is None:
            return settings
        draw = self.changes.choice
        policy = msgspec.structs.replace(
            settings.policy,
            order=str(draw(["fcfs", "sjf", "ljf"])),
            head_reservation=str(draw(["anywhere", "single-site", "nothing"])),
            overhead=float(draw([0.0, 0.3])),
        )
        times = {"margin_ms": int(draw([4_000, 6_000])), "retry_ms": int(draw([4_000, 2_000]))}
        return msgspec.structs.replace(settings, policy=policy, **times)

    def _agent_maker(self, machine: Machine) -> Callable[[Process], Awaitable[AgentDriver]]:
        async def make(process: Process) -> AgentDriver:
            async def report(data: bytes) -> None:
                await self._report(self.sites[machine.site], data)

            root: Any = machine
            driver = AgentDriver(machine.name, root, report, environment={})
            await driver.open()
            process.spawn(driver.run(), endless=True)
            return driver

        return make

    # -- messages -----------------------------------------------------------------------------------------------------

    def _copies(self) -> Iterator[float]:
        """Yield the delay in s of each copy of a message that arrives: none if it is lost, two if it is doubled."""
        lost, twice = (self.loss, self.twice) if self.in_trouble else (0.0, 0.0)
        if self.rng.random() >= lost:
            yield self.rng.exponential(self.delay_s)
        if self.rng.random() < twice:
            yield self.rng.exponential(10 * self.delay_s)

    def _carry(self, site: int, to: Node, peer: str, data: bytes) -> None:
        for delay_s in self._copies():
            self.loop.outside(delay_s, self._arrives, site, to, peer, data)

    def _arrives(self, site: int, to: Node, peer: str, data: bytes) -> None:
        if to.is_up and not self._cut[site][to is self.grid]:
            to.driver.packet(peer, data)

    def _order(self, to: Node, data: bytes) -> None:
        life, machine = to.process, self._machine_of(to)
        orders = ORDERS.decode(data)
        is_amid = any(
            (isinstance(order, EndRun) and order.saves) or (isinstance(order, PaceRun) and not order.runs)
            for order in orders
        )
        if self.evicted and is_amid and self.in_trouble and self.rng.random() < 0.3:
            self.loop.outside(self.rng.exponential(0.3), self._kill_amid, self.sites[machine.site])
        self._note_orders(machine, orders)

        def arrives() -> None:
            # Orders for an agent that has died are lost.
            if to.is_up and to.process is life:
                life.spawn(_harmless(to.driver.order(data)))

        for delay_s in self._copies():
            self.loop.outside(delay_s, arrives)

    def _note_orders(self, machine: Machine, orders: Sequence[Order]) -> None:
        """Record a site's orders to a machine, and check that they let only one job work on each node.

        Before a job starts or resumes, the site must pause the other jobs on its nodes, except those ordered to end.
        """
        new = []
        for order in orders:
            if isinstance(order, StartRun):
                key = order.launch.job_id, order.launch.attempt
                new += [key] if key not in machine.slots else []
                machine.slots[key] = order.slots
            elif isinstance(order, PaceRun):
                key = order.job_id, order.attempt
                new += [key] if order.runs and key in machine.slots else []
                machine.apply[key] = order.runs
            elif isinstance(order, EndRun):
                machine.told_to_end.add((order.job_id, order.attempt))
        for key in new if machine.pauses else ():
            if not machine.apply.get(key, True):
                continue
            for other in machine.beside(key):
                if machine.apply.get(other, True) or other in machine.told_to_end:
                    now_ms = self.loop.now_ms()
                    raise ViolationError(f"{now_ms} ms: job {key} is to work on {machine.name} where {other} does")

    async def _report(self, to: Node, data: bytes) -> None:
        copies = list(self._copies())
        for delay_s in copies[1:]:
            self.loop.outside(delay_s, self._report_again, to, data)
        if not copies:
            raise ConnectionError("the report is lost")
        await asyncio.sleep(copies[0])
        await _call(to, lambda: to.driver.report(data))
        if self.in_trouble and self.rng.random() < self.loss:
            raise ConnectionError("the answer is lost")

    def _report_again(self, to: Node, data: bytes) -> None:
        if to.is_up:
            to.process.spawn(_harmless(to.driver.report(data)))

    # -- durable messages ---------------------------------------------------------------------------------------------

    def _grid_sent(self, site: int, message: Any) -> None:
        if isinstance(message, ReserveNodes) and message.start_ms is not None:
            key = message.job_id, message.attempt
            start_ms = _FOREVER_MS if message.ahead else message.start_ms
            self._agreed.setdefault(key, ({}, start_ms))[0][site] = message.width
        elif isinstance(message, CommitNodes):
            key = message.job_id, message.attempt
            if message.start_ms is not None:  # the nodes were reserved ahead: the start is agreed on only now
                self._agreed[key] = self._agreed[key][0], message.start_ms
                self._until |= {held: message.start_ms for held in self._until if held[1:] == key}
            if not self.history.is_committed(*key):
                sites = tuple((self._first_site + each, width) for each, width in self._agreed[key][0].items())
                self.history.committed(self.loop.now_ms(), *key, sites)

    def _site_sent(self, site: int, message: Any) -> None:
        now_ms = self.loop.now_ms()
        key = getattr(message, "job_id", -1), getattr(message, "attempt", 0)
        if isinstance(message, Reserved):
            self.history.reserved(self._first_site + site, *key, _FOREVER_MS)
            self._until[site, *key] = self._agreed[key][1]
        elif isinstance(message, (LeaseEnded, Started)) and (site, *key) in self._until:
            self.history.unreserved(now_ms, self._first_site + site, *key)
            until_ms = max(self._until.pop((site, *key)), self.sites[site].up_since_ms) + SLACK_MS
            if now_ms > until_ms:
                raise ViolationError(f"{now_ms} ms: site {site} held nodes for job {key} that were to be free long ago")
            if isinstance(message, Started):
                agreed_ms = self._agreed[key][1]
                self.history.joined(agreed_ms, self._first_site + site, *key, agreed_ms)
                if message.start_ms < agreed_ms:
                    raise ViolationError(f"{now_ms} ms: a part of job {key} starts before it was to")

    # -- users --------------------------------------------------------------------------------------------------------

    async def use(self, number: int, node: Node, widest: int) -> None:
        """Act as a user: submit a job until it is answered, then perhaps submit it again, or hold or cancel it."""
        rng = self.rng
        await asyncio.sleep(rng.random() * TROUBLE_S * 0.7)
        # A job longer than `SLACK_MS` would count as running alone after one of its parts fails.
        run_ms = int(rng.uniform(4_000, 15_000) if self.evicts else rng.exponential(3_000)) + 1
        limit_ms = run_ms + 30_000 if rng.random() < 0.85 else max(1, run_ms // 2)
        ends_well, goes_on = rng.random() > 0.1, rng.random() < 0.1
        program = Program(
            argv=("work",),
            environment={"RUN_MS": str(run_ms), "OUTCOME": "finished" if ends_well else "failed"},
            ranks="first-node" if rng.random() < 0.2 else "each-node",
            if_lost="fail" if rng.random() < 0.2 and not goes_on else "requeue",
            # Otherwise the remaining ranks of a failed job would run until its limit.
            end_on_failure=not (goes_on and ends_well),
        )
        request = JobRequest(program=program, nodes=int(rng.integers(1, widest + 1)), limit_ms=limit_ms, user="anna")
        if self.evicts:
            request = msgspec.structs.replace(request, priority=float(rng.choice([0, 0, 1, 2])))
        if self.evicted == "pause" and node in self.sites[:QUEUE] + self.sites[QUEUE + 1 :] and rng.random() < 0.5:
            # Some jobs fit into the memory of a machine together with another job.
            forms = (JobForm(width=request.nodes, memory_mb=int(rng.choice([30, 60]))),)
            request = msgspec.structs.replace(request, forms=forms)
        if self.with_wishes:
            request = with_wishes(rng, request, self._places.get(node.name, ()), node.name)
        job_ids = set()
        for _ in range(1 + int(rng.random() < 0.3)):
            answer = await self._until_answered(node, lambda: node.driver.submit([(f"key {number}", request)]))
            if not isinstance(answer[0], Accepted):
                return
            job_ids.add(answer[0].job_id)
        (job_id,) = job_ids
        self.requests[job_id] = request
        self._places.setdefault(node.name, []).append(job_id)
        self.history.accepted(job_id)
        if self.with_wishes:
            await self._hold(node, job_id, request.hold)
            while rng.random() < 0.3:
                await asyncio.sleep(rng.exponential(3.0))
                await self._until_answered(node, lambda: node.driver.apply_action("requeue", [job_id]))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.exponential(3.0))
            self.history.cancelled(job_id)
            await self._until_answered(node, lambda: node.driver.apply_action("cancel", [job_id]))

    async def _hold(self, node: Node, job_id: int, is_held: bool) -> None:
        """Hold and release a job, perhaps several times; release it at the end."""
        rng = self.rng
        while is_held or rng.random() < 0.3:
            await asyncio.sleep(rng.exponential(2.0))
            if not is_held:
                await self._until_answered(node, lambda: node.driver.apply_action("hold", [job_id]))
                await asyncio.sleep(rng.exponential(2.0))
            await self._until_answered(node, lambda: node.driver.apply_action("release", [job_id]))
            is_held = False

    async def _until_answered(self, node: Node, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            with contextlib.suppress(ConnectionError, GridweaveError):
                answer = await _call(node, call)
                if not self.in_trouble or self.rng.random() >= self.loss:
                    return answer
            await asyncio.sleep(self.rng.exponential(0.5))

    # -- faults -------------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        """Inject random faults for `TROUBLE_S` seconds, then repair everything."""
        rng, loop = self.rng, self.loop
        end_s = loop.time() + TROUBLE_S
        while loop.time() < end_s:
            await asyncio.sleep(rng.exponential(1.5))
            self._check()
            what = rng.random()
            if what < 0.5:
                nodes = [*self.sites, self.grid, *self.agents.values()]
                self._kill(nodes[int(rng.integers(len(nodes)))])
            elif what < 0.65:
                self._crash(self.machines[int(rng.integers(len(self.machines)))])
            elif what < 0.8:
                site = int(rng.integers(len(self._cut)))
                # One direction or both; both are twice as likely as each single one.
                for way in ([0], [1], [0, 1], [0, 1])[int(rng.integers(4))]:
                    self._cut[site][way] = True
                    loop.call_later(rng.exponential(4.0), self._cut[site].__setitem__, way, False)
            elif what < 0.87:
                machine = self.machines[int(rng.integers(len(self.machines)))]
                machine.is_full = True
                loop.call_later(rng.exponential(6.0), setattr, machine, "is_full", False)
        await asyncio.sleep(8.0)
        self.in_trouble = False
        self._cut = [[False, False] for _ in self._cut]
        for machine in self.machines:
            machine.is_full = False
        for node in [*self.sites, self.grid, *self.agents.values()]:
            if not node.process.is_alive:
                self._start(node)
        self.calm_since_ms = loop.now_ms()

    def _kill(self, node: Node) -> None:
        if node.process.is_alive:
            node.kill()
            if node.name in self.agents:
                self._machine_of(node).runner = None
            self.loop.call_later(self.rng.exponential(2.0), self._start, node)

    def _kill_amid(self, site: Node) -> None:
        """Kill a site if one of its jobs is being evicted or is paused."""
        if site.is_up and any(run.is_evicted or run.is_paused for run in site.driver.site.runs.state().runs):
            self.killed_amid += 1
            self._kill(site)

    def _machine_of(self, node: Node) -> Machine:
        return next(machine for machine in self.machines if machine.name == node.name)

    def _start(self, node: Node) -> None:
        if not node.process.is_alive:
            if node.name in self.agents:
                self._machine_of(node).is_up = True
            node.start()

    def _crash(self, machine: Machine) -> None:
        """Crash a machine; perhaps wipe its folder, unless the folder has an outcome that the site still waits for."""
        site = self.sites[machine.site]
        wiped = site.is_up and self.rng.random() < 0.4
        if wiped:
            wiped = not any(
                fragment.outcome and site.driver.site.runs.expects(machine.name, *key)
                for key, fragment in machine.folder.items()
            )
        node = self.agents[machine.name]
        was_alive = node.process.is_alive
        if was_alive:
            node.kill()
        machine.crash(wiped=wiped)
        if wiped and was_alive and self.rng.random() < 0.5:
            site.process.spawn(_harmless(self._forget(site, node)))
        elif was_alive:
            self.loop.call_later(self.rng.exponential(4.0), self._start, node)

    async def _forget(self, site: Node, node: Node) -> None:
        """Act as an operator who gives up a machine; the machine comes back only after the site was informed."""
        try:
            await site.driver.forget_machine(node.name)
        finally:
            self.loop.call_later(self.rng.exponential(4.0), self._start, node)

    # -- the run and its checks ---------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Run the grid, its users and its faults until all jobs have ended, and check the history."""
        for node in [*self.sites, self.grid, *self.agents.values()]:
            node.start()
        rng = self.rng
        users: list[Awaitable[None]] = []
        widest = sum(nodes for _, nodes in self.grid_settings.sites)
        for number in range(int(rng.integers(3, 16)) + 15 * self.evicts):
            site = int(rng.integers(len(self.sites)))
            if rng.random() < (0.8 if self.evicts else 0.25):
                users.append(self.use(number, self.sites[site], self.settings[site].nodes))
            else:
                users.append(self.use(number, self.grid, widest))
        await asyncio.gather(self.trouble(), *users)
        until_s = self.loop.time() + LONGEST_S
        while not self._is_over():
            await asyncio.sleep(1.0)
            self._check()
            self.works.check_alone(self.calm_since_ms, self.rendezvous_ms + SLACK_MS)
            self.works.check_shared(self.calm_since_ms, SLACK_MS)
            if self.loop.time() > until_s:
                raise ViolationError(f"not over after {LONGEST_S} s: {self._left()}")
        await asyncio.sleep(5.0)
        self._check()
        self._check_end()

    def on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record errors of callbacks and tasks that nobody awaits; calls of a killed process may fail."""
        error = context.get("exception")
        if error is not None and not isinstance(error, (GridweaveError, ConnectionError)):
            self.errors.append(error)

    def _check(self) -> None:
        for error in self.errors:
            raise error

    def _left(self) -> list[Any]:
        drivers = [self.grid.driver.grid, *(site.driver.site for site in self.sites)]
        return [
            (record.job_id, record.state, record.attempt, record.places, core)
            for core in drivers
            for record in core.registry.records.values()
            if record.state not in ("ended", "refused")
        ]

    def _is_over(self) -> bool:
        self._check()
        nodes = [self.grid, *self.sites]
        if not all(node.is_up for node in nodes) or self._left():
            return False
        channels = [channel for node in nodes for channel in node.driver._channels.values()]
        return all(channel.is_idle for channel in channels) and not any(each.running for each in self.machines)

    def _check_end(self) -> None:
        now_ms = self.loop.now_ms()
        for job_id in sorted(self.requests):
            place = self.grid if job_id < OWN_IDS else self.sites[job_id // OWN_IDS - 1]
            core = place.driver.grid if job_id < OWN_IDS else place.driver.site
            history = place.driver.journal.history(job_id)
            record = core.registry.records[job_id]
            if record.state == "refused":
                self.history.refused(job_id)
                continue
            ends = [note for note in history if note.kind == "ended"]
            if was_hopeless(record, core.registry.records):
                self.history.cancelled(job_id)
            for _ in ends:
                self._check_outcome(now_ms, job_id, record.outcome, record.reason)
        self.history.check_complete(now_ms)
        self._check_cores()

    def _check_outcome(self, now_ms: int, job_id: int, outcome: str, reason: str) -> None:
        request = self.requests[job_id]
        allowed = {
            "failed": job_id in self.works.failed
            or (
                request.program.if_lost == "fail"
                and (job_id in self.works.lost or any(why in reason for why in _LOST_FOR))
            ),
            "limit": job_id in self.works.limited,
        }
        if outcome in allowed:
            if not allowed[outcome]:
                raise ViolationError(f"job {job_id} is reported as {outcome}, and was not")
            self.history.cancelled(job_id)
            outcome = "cancelled"
        self.history.reported(now_ms, job_id, outcome)

    @property
    def evictions(self) -> int:
        """Number of evictions in the journals."""
        return self._noted("evicted")

    @property
    def pauses(self) -> int:
        """Number of pauses in the journals."""
        return self._noted("paused")

    def _noted(self, kind: str) -> int:
        return sum(note["kind"] == kind for disk in self.disks for note in disk.notes)

    def _check_cores(self) -> None:
        for node, disk in zip([*self.sites, self.grid], self.disks, strict=True):
            core = node.driver.grid if node is self.grid else node.driver.site
            core.check_invariants()
            check_waits(core.registry.records, disk.notes)
            check_notes(disk.notes, core.registry.records)
            kept = node.driver.journal.ended(list(core.registry.records))
            assert kept == core.registry.records, (
                f"{disk.name}: what is kept of jobs that are over is not what they were"
            )
            driver = node.driver
            again = type(core)(as_begun(core.settings, driver.journal))
            MemoryJournal.replay(_reopened(driver, disk), again)
            assert again.registry.records == core.registry.records, f"{disk.name}: a replay gives other records"
            assert again.next_wakeup_ms() == core.next_wakeup_ms()


def _reopened(driver: Any, disk: Disk) -> MemoryJournal:
    journal = driver.journal
    again = MemoryJournal.__new__(MemoryJournal)
    again.__dict__.update(journal.__dict__)
    again.disk = disk
    return again


async def _call(node: Node, call: Callable[[], Awaitable[Any]]) -> Any:
    """Call a driver in another process; ConnectionError if the process is down or dies during the call."""
    if not node.is_up:
        raise ConnectionError(f"{node.name} is down")

    async def work() -> Any:
        return await call()

    task = node.process.spawn(work())
    await asyncio.wait([task])
    if task.cancelled():
        raise ConnectionError(f"{node.name} died")
    return task.result()


async def _harmless(work: Awaitable[Any]) -> None:
    with contextlib.suppress(GridweaveError):
        await work


LEVELS = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)


QUEUE = 1
"""Number of the site that is a queue in a world with evictions; the other sites share their machines among jobs."""


def evicting(nodes: int, evicted: str) -> HeterogeneousPolicy:
    """Return the policy of a site where jobs of each level evict lower ones; memory allows two jobs on a node."""
    return HeterogeneousPolicy(
        nodes=nodes,
        evicted=evicted,
        classes=(NodeKind(name="plain", count=nodes, memory_mb=100),),
        clusters=(Cluster(name="all", nodes=f"0-{nodes - 1}"),) if nodes > 1 else (),
        levels=LEVELS,
    )


SMALL_PACKET = 1_000
"""Size of a packet of a few messages."""

ONE_MESSAGE = 300
"""Size of a packet of one message; the link's capacity is then so small that the parts of a job meet slowly."""


def play(
    seed: int, *, evicted: str = "", changes: bool = False, packet_bytes: int | None = None, **world: Any
) -> LiveWorld:
    """Run one grid to its end and check it.

    Parameters
    ----------
    seed : int
    evicted : str
        As for `LiveWorld`.
    changes : bool
        Whether settings change at each start of a driver.
    packet_bytes : int, optional
        Largest size of a packet of several messages; drawn by default.
    **world
        Other arguments of `LiveWorld`.

    Returns
    -------
    LiveWorld
        The final state.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    loop = VirtualLoop(rng)
    every = int(rng.choice([15, 60, 10_000]))
    drawn_bytes = int(rng.choice([SMALL_PACKET, 1 << 20]))
    patches: Sequence[Any] = (
        mock.patch.object(driver_module, "replay", replay),
        mock.patch.object(driver_module, "SNAPSHOT_EVERY", every),
        mock.patch.object(driver_module, "MOST_PACKET_BYTES", packet_bytes or drawn_bytes),
        mock.patch.object(site_driver, "Journal", MemoryJournal),
        mock.patch.object(grid_driver, "Journal", MemoryJournal),
        mock.patch.object(agent_module, "Runner", FakeRunner),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        asyncio.set_event_loop(loop)
        try:
            changing = np.random.default_rng(seed) if changes else None
            world = LiveWorld(loop, rng, evicted=evicted, changes=changing, **world)
            loop.set_exception_handler(world.on_fault)
            loop.run_until_complete(world.play())
            return world
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            asyncio.set_event_loop(None)
            loop.close()
