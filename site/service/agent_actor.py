"""The actor of a machine's agent; it imports neither cores nor kernels."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from gridweave.errors import UnavailableError
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.machine.agent import AgentDriver, OutputRead, node_cores
from gridweave.site.messages import Machine, Probed
from gridweave.site.service.calls import (
    GRID_ACTOR,
    Calls,
    Door,
    LiveActor,
    agent_actor,
    encode,
    node_ip,
    run_forever,
    site_actor,
)
from gridweave.site.service.clock import Clock
from gridweave.site.service.probe_server import ProbeServer
from gridweave.site.service.prober import Address, ProbePlan, Prober, Probing


class AgentActor(LiveActor):
    """The actor of a machine's agent: a thin shell around its `AgentDriver`.

    Parameters
    ----------
    virtual : bool
        Whether the machine's nodes are only counted and have no hardware threads of their own.
    probes : ProbePlan, optional
        Set on one machine of each site, which answers probes and measures the paths to other sites.
    peers : tuple of (str, str)
        The sites to measure, each with its machine that answers probes.
    host : str
        Address under which other machines reach this one; by default the address known to Ray.
    """

    def __init__(
        self,
        site: str,
        machine: Machine,
        folder: str,
        virtual: bool,
        probes: ProbePlan | None = None,
        peers: tuple[tuple[str, str], ...] = (),
        clock: Clock | None = None,
        *,
        calls: Calls,
        host: str = "",
        rules: MachineRules = ANY_JOBS,
        **own: str,
    ) -> None:
        super().__init__(agent_actor(site, machine.name), **own)
        self._calls, self._site = calls, site
        cores = () if virtual else node_cores(machine.nodes)
        host = host or node_ip()
        self._driver = AgentDriver(
            machine.name,
            Path(folder),
            self._report,
            host=host,
            cores=cores,
            nodes=machine.nodes,
            rules=rules,
            secret=secrets.token_hex(16),
        )
        self._door = Door(self, ("part",))
        self._opened = asyncio.Event()
        self._host, self._probe_port = host, 0
        self._peers = dict(peers)
        self._tasks = run_forever(self._name, self._run())
        if probes is not None:
            self._tasks += run_forever(self._name, self._probe(probes, clock or Clock()))

    async def _run(self) -> None:
        await self._driver.open()
        self._opened.set()
        await self._driver.run()

    async def _probe(self, plan: ProbePlan, clock: Clock) -> None:
        """Answer the probes of other sites, and measure the paths to the peers."""
        turn = asyncio.Lock()
        async with ProbeServer(plan.secret, turn=turn) as server:
            self._probe_port = await server.start(self._host)
            prober = Prober(plan.secret, turn=turn)
            probing = Probing(
                self._site,
                tuple(self._peers),
                plan,
                prober,
                address_of=self._address_of,
                report=self._probed,
                clock=clock,
            )
            await probing.run()

    async def _address_of(self, peer: str) -> Address:
        host, port = await self._calls.call(agent_actor(peer, self._peers[peer]), "probe_address")
        if not port:
            raise UnavailableError(f"{peer} does not answer probes yet")
        return host, port

    async def _probed(self, probe: Probed) -> None:
        await self._calls.call(GRID_ACTOR, "probed", encode(probe))

    async def probe_address(self) -> Address:
        """Return the address at which this machine answers probes; port 0 if it does not."""
        return self._host, self._probe_port

    async def _report(self, data: bytes) -> None:
        await self._calls.call(site_actor(self._site), "report", data)

    async def ready(self) -> str:
        """Return the name of the machine once it has adopted its running tasks."""
        await self._opened.wait()
        return self._driver.name

    async def order(self, data: bytes) -> None:
        """Execute encoded orders of the site."""
        await self._opened.wait()
        await self._driver.order(data)

    async def part(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a part of a rank's output, and whether the rank is on this machine."""
        return await asyncio.to_thread(self._driver.part, job_id, attempt, rank, stream, offset, limit)

    async def ask(self, method: str, data: bytes) -> bytes:
        """Answer a question of the gateway."""
        return await self._door.ask(method, data)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Answer several questions of one call, in order."""
        return await self._door.ask_all(method, questions)

    async def stop(self, end_jobs: bool = True) -> None:
        """Stop watching the machine's tasks, after ending them if ``end_jobs``."""
        if end_jobs:
            await self._driver.end_all()
        for task in self._tasks:
            task.cancel()
        await self._driver.close()
