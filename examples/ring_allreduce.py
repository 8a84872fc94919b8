"""A parallel job in a single file: its ranks, on one or several sites, sum vectors around a ring.

Every rank of a gridweave job runs this program. It needs Python 3.11 and nothing else. A rank reads its settings from
its environment (docs/live-processes.md, "Environment of a rank"):

1. The ranks meet. Rank 0 listens at GRIDWEAVE_RENDEZVOUS. All others connect to it and send the address at which they
   listen themselves: the local address of that connection, so that others can reach it. Rank 0 sends back the list.
2. Each rank connects to the next one, which closes the ring.
3. In each iteration the ranks compute, and then sum a vector: N-1 exchanges add up its parts, so that each rank has the
   sum of one part, and N-1 exchanges distribute these. In an exchange every rank sends a part to the next rank and
   receives one from the rank before it.
4. Each rank compares the sums with the exact result. Rank 0 prints one line of JSON.

    gridweave submit --nodes 4 -- python3 examples/ring_allreduce.py --iterations 20

Without gridweave it runs as one rank. Any failure (a missing rank, a rank that dies, a broken connection, a wrong sum)
ends the rank with status 1 and one line of text; its neighbours notice, and end as well.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import operator
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from statistics import median
from typing import Any

NUMBER_BYTES = 8
PROBES = 5, 20
"""Before the work: number of rounds and of exchanges in each round for both message sizes; the fastest round counts."""

_HEADER = struct.Struct("!QQ")  # number of bytes that follow, and when they were sent (clock of this machine)
_LONGEST_LINE = 1 << 20
_HELLO_S = 5.0
_AGAIN_S = 0.05


class RingError(Exception):
    """Why this rank cannot continue, in one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """The identity of this rank, and the rendezvous of all ranks.

    Attributes
    ----------
    rank, size : int
    site : str
    rendezvous : str
        ``host:port`` at which rank 0 listens; not needed for a single rank.
    job : str
        Unique for each attempt of each job.
    key : str
        Secret of the job; without a key, anyone who sends the right job is accepted.
    """

    rank: int = 0
    size: int = 1
    site: str = ""
    rendezvous: str = ""
    job: str = ""
    key: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Place:
        """Read the settings of a rank from its environment."""
        return cls(
            rank=int(environment.get("GRIDWEAVE_RANK", "0")),
            size=int(environment.get("GRIDWEAVE_SIZE", "1")),
            site=environment.get("GRIDWEAVE_SITE", ""),
            rendezvous=environment.get("GRIDWEAVE_RENDEZVOUS", ""),
            key=environment.get("GRIDWEAVE_RENDEZVOUS_KEY", ""),
            job=f"{environment.get('GRIDWEAVE_JOB_ID', '')}.{environment.get('GRIDWEAVE_TRY', '')}",
        )


@dataclass(slots=True)
class StandIn:
    """A simulated link between sites: delays each message by the time that it would take on that link.

    For a grid whose sites are all on one machine, so that they have the same clock.
    """

    latency_ms: float
    bandwidth_mbps: float
    _free_s: float = 0.0

    def arrival_s(self, n_bytes: int, sent_s: float) -> float:
        """Return when a message arrives; messages follow each other on the link."""
        self._free_s = max(self._free_s, sent_s) + n_bytes * 8 / (self.bandwidth_mbps * 1e6)
        return self._free_s + self.latency_ms / 1e3


# -- the ring ---------------------------------------------------------------------------------------------------------


class Ring:
    """The connections of a rank to the one before it and the one after it.

    Parameters
    ----------
    place : Place
    before, after : socket.socket, optional
        None if there is only one rank.
    timeout_s : float
        Longest time without progress in an exchange.
    held_back : StandIn, optional
        Delays messages from the rank before this one.
    """

    def __init__(
        self,
        place: Place,
        before: socket.socket | None = None,
        after: socket.socket | None = None,
        *,
        timeout_s: float = 60.0,
        held_back: StandIn | None = None,
    ) -> None:
        self.place, self._before, self._after = place, before, after
        self._timeout_s, self._held_back = timeout_s, held_back
        for end in (before, after):
            if end is not None:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setblocking(False)

    def close(self) -> None:
        """Close both connections."""
        for end in (self._before, self._after):
            if end is not None:
                end.close()

    def exchange(self, data: bytes | memoryview) -> bytearray:
        """Send data to the next rank, and return the data from the rank before this one.

        Both happen at the same time: if all ranks sent first, large messages would fill the buffers and block every
        rank.

        Raises
        ------
        RingError
            If a neighbour is gone or silent.
        """
        assert self._before is not None, "a single rank exchanges nothing"
        assert self._after is not None, "a single rank exchanges nothing"
        size = self.place.size
        ahead, behind = (self.place.rank + 1) % size, (self.place.rank - 1) % size
        outgoing = [memoryview(_HEADER.pack(len(data), time.monotonic_ns())), memoryview(data)]
        header, body = bytearray(_HEADER.size), None
        missing = memoryview(header)
        while outgoing or missing or body is None:
            want_read = [self._before] if missing or body is None else []
            readable, writable, _ = select.select(want_read, [self._after] * bool(outgoing), [], self._timeout_s)
            if not readable and not writable:
                raise RingError(f"ranks {behind} and {ahead} are silent for {self._timeout_s:g} s")
            if writable:
                outgoing = self._send(outgoing, ahead)
            if readable:
                missing = self._receive(missing, behind)
                if not missing and body is None:
                    body = bytearray(_HEADER.unpack(header)[0])
                    missing = memoryview(body)
        if self._held_back is not None:
            arrival_s = self._held_back.arrival_s(len(body), _HEADER.unpack(header)[1] / 1e9)
            time.sleep(max(0.0, arrival_s - time.monotonic()))
        return body

    def _send(self, outgoing: list[memoryview], ahead: int) -> list[memoryview]:
        """Send as much as possible without blocking; return the rest."""
        assert self._after is not None
        try:
            sent = self._after.sendmsg(outgoing)
        except BlockingIOError:
            return outgoing
        except OSError as error:
            raise RingError(f"rank {ahead} is gone: {error.strerror}") from error
        left = []
        for part in outgoing:
            if sent < len(part):
                left.append(part[sent:])
            sent = max(0, sent - len(part))
        return left

    def _receive(self, missing: memoryview, behind: int) -> memoryview:
        """Receive as much as there is without blocking; return the missing part of the buffer."""
        assert self._before is not None
        try:
            count = self._before.recv_into(missing)
        except BlockingIOError:
            return missing
        except OSError as error:
            raise RingError(f"rank {behind} is gone: {error.strerror}") from error
        if not count:
            raise RingError(f"rank {behind} is gone: it has closed its connection")
        return missing[count:]

    # -- collective operations ----------------------------------------------------------------------------------------

    def all_reduce(self, vector: array[int]) -> Timing:
        """Replace a vector by the sum of all ranks' vectors; return the elapsed time.

        After exchange s of the first N-1, this rank has the sum of part (rank - s - 1) over s+2 ranks. After all of
        these it has the sum of part (rank + 1) over all ranks, which the other N-1 exchanges pass around.
        """
        rank, size = self.place.rank, self.place.size
        parts = bounds(len(vector), size)
        timing = Timing()
        numbers = memoryview(vector).cast("B")
        for step in range(2 * (size - 1)):
            first, last = parts[(rank - step) % size]
            began = time.perf_counter()
            came = self.exchange(numbers[first * NUMBER_BYTES : last * NUMBER_BYTES])
            timing.exchanges_s += time.perf_counter() - began
            first, last = parts[(rank - step - 1) % size]
            if len(came) != (last - first) * NUMBER_BYTES:
                raise RingError(f"rank {(rank - 1) % size} sends vectors of another length; give all ranks the same")
            began = time.perf_counter()
            if step < size - 1:
                came_numbers = memoryview(came).cast("q")
                added = array("q", map(operator.add, memoryview(vector)[first:last], came_numbers))
                numbers[first * NUMBER_BYTES : last * NUMBER_BYTES] = memoryview(added).cast("B")
            else:
                numbers[first * NUMBER_BYTES : last * NUMBER_BYTES] = came
            timing.adding_s += time.perf_counter() - began
        return timing

    def all_gather(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the data of all ranks, in the order of the ranks."""
        rank, size = self.place.rank, self.place.size
        known, latest = {rank: told}, told
        for step in range(1, size):
            latest = json.loads(self.exchange(json.dumps(latest).encode()))
            known[(rank - step) % size] = latest
        return [known[one] for one in range(size)]

    def probe_ms(self, n_bytes: int) -> float:
        """Return the time of an exchange of `n_bytes`, one after the other: a mean, since links may differ."""
        if self.place.size == 1:
            return 0.0
        data, spans_s = bytes(n_bytes), []
        for _ in range(PROBES[0]):
            began = time.perf_counter()
            for _ in range(PROBES[1]):
                self.exchange(data)
            spans_s.append(time.perf_counter() - began)
        return min(spans_s) / PROBES[1] * 1e3


@dataclass(slots=True)
class Timing:
    """The time of an all-reduce: for exchanges, including the wait for other ranks, and for additions."""

    exchanges_s: float = 0.0
    adding_s: float = 0.0


def bounds(length: int, parts: int) -> list[tuple[int, int]]:
    """Return the bounds of each part of a vector; if it cannot be split evenly, the first parts are longer by one.

    Examples
    --------
    >>> bounds(7, 3), bounds(1, 2)
    ([(0, 3), (3, 5), (5, 7)], [(0, 1), (1, 1)])
    """
    short, longer = divmod(length, parts)
    ends = [part * short + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(ends))


# -- connecting the ranks ---------------------------------------------------------------------------------------------


def join(place: Place, *, timeout_s: float = 60.0, stand_in: StandIn | None = None) -> Ring:
    """Connect to the other ranks, and close the ring.

    Parameters
    ----------
    place : Place
    timeout_s : float
        Longest wait for the other ranks, and later the longest time without progress in an exchange.
    stand_in : StandIn, optional
        Delays messages between sites.

    Raises
    ------
    RingError
        If the other ranks do not connect or cannot be reached.
    """
    if place.size == 1:
        return Ring(place)
    host, _, port = place.rendezvous.rpartition(":")
    if not port.isdecimal():
        raise RingError(f"the rendezvous is {place.rendezvous!r}; {place.size} ranks need one as host:port")
    until = time.monotonic() + timeout_s
    address = (host.strip("[]"), int(port))
    if place.rank == 0:
        with _listen(address) as listener:
            addresses = _be_met(place, listener, until)
            return _close_ring(place, listener, addresses, until, timeout_s, stand_in)
    with _reach(address, "the rendezvous", until) as meeting, _listen((meeting.getsockname()[0], 0)) as listener:
        _prove(place, meeting, asks=False)
        _say(meeting, _hello(place, 0) | {"address": listener.getsockname()[:2]})
        addresses = _hear(meeting, until, "rank 0 has not gathered all ranks")["addresses"]
        addresses[0] = address
        return _close_ring(place, listener, addresses, until, timeout_s, stand_in)


def _prove(place: Place, peer: socket.socket, *, asks: bool) -> None:
    """Have both ends of a connection prove that they know the key of the job; the end that accepted it asks first."""
    if not place.key:
        return
    steps = (deliver_challenge, answer_challenge)
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_HELLO_S), 0))
    try:
        with Connection(os.dup(peer.fileno())) as line:
            for step in steps if asks else reversed(steps):
                step(line, place.key.encode())
    except (OSError, EOFError, AuthenticationError) as error:
        raise RingError(f"the other end does not belong to job {place.job}: {error}") from error


def _hello(place: Place, to: int) -> dict[str, Any]:
    return _whose(place, place.rank, to) | {"rank": place.rank, "site": place.site}


def _whose(place: Place, rank: int, to: int) -> dict[str, Any]:
    """Return the proof that a rank belongs to this job, for one other rank."""
    return {"job": place.job, "proof": hmac.new(place.key.encode(), f"{rank} {to}".encode(), "sha256").hexdigest()}


def _be_met(place: Place, listener: socket.socket, until: float) -> list[Any]:
    """Wait for all other ranks, and send each of them the addresses of all; return these."""
    came: dict[int, tuple[socket.socket, Any]] = {}
    try:
        while len(came) < place.size - 1:
            missing = ", ".join(str(rank) for rank in range(1, place.size) if rank not in came)
            peer, told = _accept(place, listener, until, f"of {place.size} ranks are missing: {missing}", gathers=True)
            before = came.pop(int(told["rank"]), None)  # the rank has connected twice
            if before is not None:
                before[0].close()
            came[int(told["rank"])] = (peer, told["address"])
        addresses = [None, *(came[rank][1] for rank in range(1, place.size))]
        for peer, _ in came.values():
            _say(peer, {"addresses": addresses})
        return addresses
    finally:
        for peer, _ in came.values():
            peer.close()


def _close_ring(
    place: Place,
    listener: socket.socket,
    addresses: list[Any],
    until: float,
    timeout_s: float,
    stand_in: StandIn | None,
) -> Ring:
    """Connect to the next rank, and accept the connection of the rank before this one."""
    behind, ahead = (place.rank - 1) % place.size, (place.rank + 1) % place.size
    after = _reach((addresses[ahead][0], addresses[ahead][1]), f"rank {ahead}", until)
    try:
        _say(after, _hello(place, ahead))
        while True:
            before, told = _accept(place, listener, until, f"rank {behind} is missing")
            if told["rank"] == behind:
                break
            before.close()
    except BaseException:
        after.close()
        raise
    crosses = told.get("site") != place.site
    return Ring(place, before, after, timeout_s=timeout_s, held_back=stand_in if crosses else None)


def _listen(address: tuple[str, int]) -> socket.socket:
    """Listen at an address; with a fixed port, on all addresses of this machine, unless the address is loopback.

    On a machine with several networks, its name may resolve to a different address here than elsewhere or, in a
    container, to an address that is not its own.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    host = address[0] if not address[1] or _is_loopback(address[0]) else ""
    try:
        return socket.create_server((host, address[1]), family=family, backlog=128)
    except OSError as error:
        raise RingError(f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}") from error


def _is_loopback(host: str) -> bool:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(str(each).startswith("127.") or each == "::1" for each in found)


def _reach(address: tuple[str, int], who: str, until: float) -> socket.socket:
    """Connect to an address, and retry until somebody listens there."""
    while True:
        left_s = until - time.monotonic()
        try:
            return socket.create_connection(address, timeout=max(_AGAIN_S, left_s))
        except OSError as error:
            if left_s <= 0:
                raise RingError(f"{who} cannot be reached at {address[0]}:{address[1]}: {error}") from error
        time.sleep(_AGAIN_S)


def _accept(
    place: Place, listener: socket.socket, until: float, missing: str, *, gathers: bool = False
) -> tuple[socket.socket, dict[str, Any]]:
    """Return the next connection from a rank of this job, and its greeting; close all other connections."""
    while True:
        left_s = until - time.monotonic()
        listener.settimeout(max(0.001, left_s))
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            raise RingError(missing) from None
        try:
            if gathers:
                _prove(place, peer, asks=True)
            told = _hear(peer, time.monotonic() + min(_HELLO_S, max(0.001, left_s)), "")
            if 0 <= int(told["rank"]) < place.size and told == told | _whose(place, int(told["rank"]), place.rank):
                return peer, told
        except (RingError, KeyError, TypeError, ValueError, AttributeError):
            pass
        peer.close()


def _say(peer: socket.socket, what: dict[str, Any]) -> None:
    try:
        peer.sendall(json.dumps(what).encode() + b"\n")
    except OSError as error:
        raise RingError(f"a rank connected and is gone again: {error}") from error


def _hear(peer: socket.socket, until: float, missing: str) -> dict[str, Any]:
    """Read one line of JSON, and no byte beyond it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        peer.settimeout(max(0.001, until - time.monotonic()))
        try:
            byte = peer.recv(1)
        except OSError as error:
            raise RingError(f"{missing}: {error}") from error
        if not byte or len(line) > _LONGEST_LINE:
            raise RingError(f"{missing}: the connection was closed")
        line += byte
    told: dict[str, Any] = json.loads(line)
    return told


# -- the job ----------------------------------------------------------------------------------------------------------


def compute(rounds: int) -> bytes:
    """Return the result of some work that takes the same time in each iteration: a hash, repeated `rounds` times."""
    digest = b""
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest


def vector_of(rank: int, iteration: int, elements: int) -> array[int]:
    """Return the vector of a rank in an iteration; all vectors differ, and their sum is known in advance."""
    times = rank + 1
    return array("q", range(times * iteration, times * (iteration + elements), times))


def sum_of(size: int, iteration: int, elements: int) -> array[int]:
    """Return the exact sum of all ranks' vectors."""
    return vector_of(size * (size + 1) // 2 - 1, iteration, elements)


def run(ring: Ring, *, elements: int, iterations: int, rounds: int) -> dict[str, Any] | None:
    """Do the work; return the report that rank 0 prints, None on all other ranks.

    The time in exchanges includes the wait for ranks that still compute, but links between sites lengthen only the
    messages. So ``in_messages`` reports the time of as many exchanges between ranks that are all ready, as a fraction
    of the fastest iteration, which other work on the machines has disturbed least.

    Raises
    ------
    RingError
        If a sum is wrong, or a neighbour is gone.
    """
    place = ring.place
    part_bytes = -(-elements // place.size) * NUMBER_BYTES
    probes_ms = [ring.probe_ms(n_bytes) for n_bytes in (0, part_bytes)]
    seconds, computing_s, exchanges_s, adding_s = [], [], [], []
    for iteration in range(iterations):
        vector = vector_of(place.rank, iteration, elements)
        began = time.perf_counter()
        compute(rounds)
        computed = time.perf_counter()
        timing = ring.all_reduce(vector)
        seconds.append(time.perf_counter() - began)
        computing_s.append(computed - began)
        exchanges_s.append(timing.exchanges_s)
        adding_s.append(timing.adding_s)
        if vector != sum_of(place.size, iteration, elements):
            raise RingError(f"iteration {iteration}: the sum is wrong")
    told = {"site": place.site, "probe_ms": probes_ms, "exchanges_s": sum(exchanges_s), "total_s": sum(seconds)}
    every = ring.all_gather(told)
    if place.rank:
        return None
    total_s = sum(one["total_s"] for one in every)
    part_ms = median(one["probe_ms"][1] for one in every)
    messages_s = 2 * (place.size - 1) * part_ms / 1e3
    quickest_s = min(seconds, default=0.0)
    return {
        "ranks": place.size,
        "sites": list(dict.fromkeys(one["site"] for one in every)),
        "elements": elements,
        "part_bytes": part_bytes,
        "iterations": iterations,
        "exact": True,
        "iteration_s": [round(value, 6) for value in seconds],
        "computation_s": [round(one + other, 6) for one, other in zip(computing_s, adding_s, strict=True)],
        "communication_s": [round(value, 6) for value in exchanges_s],
        "in_exchanges": sum(one["exchanges_s"] for one in every) / total_s if total_s else 0.0,
        "in_messages": min(1.0, messages_s / quickest_s) if quickest_s else 0.0,
        "empty_exchange_ms": median(one["probe_ms"][0] for one in every),
        "part_exchange_ms": part_ms,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; return its exit status."""
    parser = argparse.ArgumentParser(description="Adds up vectors around a ring of the ranks of a gridweave job.")
    parser.add_argument("--elements", type=int, default=100_000, help="length of the vector")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument(
        "--rounds", type=int, default=20_000, help="number of hashes that each rank computes per iteration"
    )
    parser.add_argument("--timeout-s", type=float, default=60.0, help="seconds for which a rank may be late or silent")
    parser.add_argument(
        "--stand-in",
        metavar="MS,MBPS",
        help="delay messages between sites like a link of this latency (ms) and bandwidth (Mbit/s), e.g. 5,1000",
    )
    options = parser.parse_args(arguments)
    if min(options.elements, options.iterations, options.rounds) < 0 or options.timeout_s <= 0:
        parser.error("numbers must be at least 0, and the timeout above 0")
    stand_in = None
    if options.stand_in:
        try:
            stand_in = StandIn(*map(float, options.stand_in.split(",")))
        except (ValueError, TypeError):
            parser.error(f"--stand-in {options.stand_in!r}: write milliseconds and Mbit/s, such as 5,1000")
        if not (0 <= stand_in.latency_ms < 1e6 and 0 < stand_in.bandwidth_mbps < 1e9):
            parser.error(f"--stand-in {options.stand_in!r}: the latency must be at least 0, the bandwidth above 0")
    place = Place.of_environment(os.environ)
    try:
        ring = join(place, timeout_s=options.timeout_s, stand_in=stand_in)
        try:
            report = run(ring, elements=options.elements, iterations=options.iterations, rounds=options.rounds)
        finally:
            ring.close()
    except RingError as error:
        print(f"rank {place.rank}: {error}", file=sys.stderr)
        return 1
    if report is not None:
        print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
