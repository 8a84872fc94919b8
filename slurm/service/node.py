"""The process on each node of an allocation: a machine's agent, which connects to its site over HTTP.

The allocation's script runs ``python -m gridweave.slurm.service.node FOLDER NAME LEASE_S`` and passes the allocation's
ticket on standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.launch import ANY_JOBS
from gridweave.site.machine.agent import AgentDriver, node_cores
from gridweave.site.service.calls import CALL_S
from gridweave.slurm.service.chunk_ranks import chunk_cores, in_chunks, place_in
from gridweave.slurm.service.folder import Ticket, node_folder, read_address, remove_left
from gridweave.slurm.service.hub import WAIT_S, Orders, Welcome
from gridweave.slurm.service.node_http import SiteConnection

logger = logging.getLogger("gridweave.live")

AGAIN_S = 0.5
"""Pause before a node retries its connection to the site [s]."""

END_S = 20.0
"""Time in which ranks must end when the batch system takes the node away [s]."""

TAKEN = "the batch system has taken its node"


class Node:
    """A node of an allocation, from its start until it is given back.

    The node gives itself back when the site orders it to, or when it is idle and has not heard from the site for the
    length of its lease. When the batch system takes the node away (SIGTERM), the node ends its ranks without a report,
    because the site gets the reason from the batch system, and the state of the ranks from the folder.
    """

    def __init__(
        self, folder: Path, ticket: Ticket, name: str, number: int, allocation: str, lease_s: float, chunks: int = 0
    ) -> None:
        self._folder, self._name, self._number, self._allocation = folder, name, number, allocation
        self._chunks = chunks  # number of the job's chunks on this node; 0: the whole node
        self._ticket, self._welcome = ticket, Welcome(ANY_JOBS)
        self._lease_s, self._heard_s = lease_s, time.monotonic()
        self._host = socket.gethostname()
        self._agent: AgentDriver | None = None
        self._works: asyncio.Task[None] | None = None
        self._site: SiteConnection | None = None
        self._taken = asyncio.Event()

    async def run(self) -> None:
        """Execute the site's orders until the node is given back or taken away."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._taken.set)
        serving = asyncio.ensure_future(self._serve())
        taken = asyncio.ensure_future(self._taken.wait())
        await asyncio.wait({serving, taken}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        # Ranks may still be running, because the site also dismisses nodes that it considers lost.
        await self._end_all()
        if self._works is not None:
            self._works.cancel()
        if self._agent is not None:
            await self._agent.close()
        if serving.done() and not serving.cancelled():
            serving.result()

    async def _end_all(self) -> None:
        """End all ranks; wait up to `END_S` until they have ended."""
        agent = self._agent
        if agent is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for key in agent.runner.task_keys() if self._runs() else ():
                    await agent.runner.cancel(*key, TAKEN)
                while self._runs():
                    await asyncio.sleep(0.05)

    def _runs(self) -> bool:
        """Whether any node task is still running."""
        agent = self._agent
        if agent is None:
            return False
        states = (agent.runner.state(*key) for key in agent.runner.task_keys())
        return any(state is None or state.phase != "ended" for state in states)

    async def _serve(self) -> None:
        while self._runs() or time.monotonic() - self._heard_s < self._lease_s:
            try:
                if not await self._follow():
                    return
            except (OSError, UnavailableError, TimeoutError, msgspec.MsgspecError) as error:
                logger.info("%s cannot reach its site, trying again: %s", self._name, error)
                await asyncio.sleep(AGAIN_S)
        logger.warning("%s has not heard from its site for %.0f s, and gives its node back", self._name, self._lease_s)

    async def _follow(self) -> bool:
        """Connect to the site and execute its orders; return False once the node must be given back."""
        address = await asyncio.to_thread(read_address, self._folder)
        self._site = site = SiteConnection(address, self._ticket.door)
        called = (self._ticket.key, self._name)
        try:
            machine = "" if self._agent is None else self._agent.name
            async with asyncio.timeout(CALL_S):
                who = (*called, self._number, self._allocation, self._host, machine, max(1, self._chunks))
                welcome = await site.call("hello", Welcome | None, *who)
            if welcome is not None:
                await self._enter(welcome)
            while welcome is not None:
                async with asyncio.timeout(WAIT_S + CALL_S):
                    answer = await site.call("ask", Orders, *called, self._number)
                self._heard_s = time.monotonic()
                if answer.leaves:
                    return False
                await self._do(answer)
        finally:
            await site.close()
        return False

    async def _enter(self, welcome: Welcome) -> None:
        """Record the site's rules; remove old folders of the user's account, as only this account can remove them."""
        self._welcome = welcome
        if self._ticket.runs_as and self._number == 0:
            await asyncio.to_thread(remove_left, Path(self._ticket.base), welcome.gone)

    async def _do(self, answer: Orders) -> None:
        if answer.orders and self._agent is None:
            self._agent = agent = await self._opened(answer.machine)
            self._works = asyncio.ensure_future(agent.run())
        for data in answer.orders:
            assert self._agent is not None, "orders for no machine"
            has_chunks = self._chunks > 0
            await self._agent.order(in_chunks(data, self._number, self._chunks, os.environ) if has_chunks else data)

    async def _opened(self, machine: str) -> AgentDriver:
        """Create an agent and open its folder; if that fails, try again when the site resends the orders."""
        root = node_folder(Path(self._ticket.base), self._name, self._number)
        rules, shared = self._welcome.rules, bool(self._ticket.runs_as)
        cores = chunk_cores(self._chunks, os.environ) if self._chunks else node_cores(1)
        agent = AgentDriver(
            machine,
            root,
            self._report,
            host=self._host,
            cores=cores,
            environment=os.environ,  # set by the batch system, and describes the resources
            rules=rules,
            shared=shared,
        )
        try:
            await agent.open()
        except BaseException:
            await agent.close()  # otherwise the next agent could not open the folder
            raise
        return agent

    async def _report(self, data: bytes) -> None:
        if self._taken.is_set() or self._site is None:
            raise UnavailableError(TAKEN)
        async with asyncio.timeout(CALL_S):
            await self._site.call("report", None, self._ticket.key, self._name, data)


def main(arguments: list[str]) -> None:
    """Run a node with arguments FOLDER, NAME and LEASE_S; exit with one line if they or the ticket are invalid."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        folder, name, lease_s = arguments
        number, chunks = int(os.environ["GRIDWEAVE_NODE"]), 0
        if layout := os.environ.get("GRIDWEAVE_CHUNKS"):
            number, chunks = place_in(layout, number)
        ticket = msgspec.json.decode(sys.stdin.buffer.readline(), type=Ticket)
        allocation = os.environ["GRIDWEAVE_ALLOCATION"]
        node = Node(Path(folder), ticket, name, number, allocation, float(lease_s), chunks)
    except (KeyError, IndexError, ValueError, msgspec.MsgspecError) as error:
        sys.exit(f"only the script of an allocation can start this program: {error!r}")
    if ticket.runs_as:
        own = pwd.getpwuid(os.geteuid()).pw_name
        if own != ticket.runs_as:
            sys.exit(f"this program must run as {ticket.runs_as}, but runs as {own}; see submit in docs/slurm.md")
        os.umask(0o027)
    try:
        asyncio.run(node.run())
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
