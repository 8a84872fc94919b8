"""The actor of a machine's agent. This module imports neither cores nor kernels."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gridweave.errors import UnavailableError
from gridweave.site.launch import ANY_JOBS, MachineRules
from gridweave.site.machine.agent import AgentDriver, OutputRead, node_cores
from gridweave.site.machine.hardware.bind import HostShare, bind
from gridweave.site.machine.hardware.find import Hardware, find_hardware
from gridweave.site.messages import Machine, Probed
from gridweave.site.resources.chunks import NodeKind
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

logger = logging.getLogger("gridweave.live")


class AgentActor(LiveActor):
    """The actor of a machine's agent: a thin shell around its `AgentDriver`.

    Parameters
    ----------
    virtual : bool
        Whether the nodes are virtual: only counted, with no hardware threads of their own.
    probes : ProbePlan, optional
        Set for one machine per site, which answers probes and measures the paths to other sites.
    peers : tuple of (str, str)
        The sites to measure, each with the name of the machine that answers probes there.
    host : str
        Address at which other machines reach this machine; by default the address known to Ray.
    kinds : tuple of NodeKind
        The kind of each node of this machine, if the site counts resources.
    share : HostShare, optional
        Which of the host's cores and GPUs its nodes get, if other machines of the grid are on the same host.
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
        kinds: tuple[NodeKind, ...] = (),
        share: HostShare | None = None,
        **own: str,
    ) -> None:
        super().__init__(agent_actor(site, machine.name), **own)
        self._calls, self._site = calls, site
        real: dict[str, Any] = {"cores": () if virtual else node_cores(machine.nodes)}
        if kinds:
            real = _real_nodes(machine.name, kinds, share, virtual=virtual)
        host = host or node_ip()
        self._driver = AgentDriver(
            machine.name,
            Path(folder),
            self._report,
            host=host,
            **real,
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
        """Answer probes from other sites, and measure the paths to the peers."""
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
        """Return the host and port at which this machine answers probes; the port is 0 if the machine answers none."""
        return self._host, self._probe_port

    async def _report(self, data: bytes) -> None:
        await self._calls.call(site_actor(self._site), "report", data)

    async def ready(self) -> str:
        """Wait until the agent has adopted the tasks already running; return the machine's name."""
        await self._opened.wait()
        return self._driver.name

    async def order(self, data: bytes) -> None:
        """Execute encoded orders from the site."""
        await self._opened.wait()
        await self._driver.order(data)

    async def part(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a range of a rank's output, and whether the rank ran on this machine."""
        return await asyncio.to_thread(self._driver.part, job_id, attempt, rank, stream, offset, limit)

    async def ask(self, method: str, data: bytes) -> bytes:
        """Answer an encoded question from the gateway."""
        return await self._door.ask(method, data)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Answer several questions in one call, in order."""
        return await self._door.ask_all(method, questions)

    async def stop(self, end_jobs: bool = True) -> None:
        """Close the agent. If ``end_jobs``, first end the machine's tasks; otherwise, leave the tasks running."""
        if end_jobs:
            await self._driver.end_all()
        for task in self._tasks:
            task.cancel()
        await self._driver.close()


def _real_nodes(name: str, kinds: Sequence[NodeKind], share: HostShare | None, *, virtual: bool) -> dict[str, Any]:
    """Return the arguments of an `AgentDriver` for nodes of these kinds; log how the machine differs from them."""
    hardware = Hardware(cores=0, memory_mb=0) if virtual else find_hardware()
    binding = bind(hardware, kinds, share)
    for note in () if virtual else binding.notes:
        logger.warning("machine %s: %s", name, note)
    devices = {gpu.number: gpu.device for gpu in hardware.gpus if gpu.device is not None}
    return {"cores": binding.cores, "gpus": binding.gpus, "gpu_devices": devices}
