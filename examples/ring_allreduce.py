"""A parallel job that adds up vectors around a ring of its ranks, wherever they are: a program of one file.

Every rank of a gridweave job runs it, on one site or on several. It needs Python 3.11 and nothing else; what a rank
must know is in its environment (docs/live-processes.md, "Environment of a rank"):

1. The ranks meet. Rank 0 listens at GRIDWEAVE_RENDEZVOUS; all others come there, and tell at which address they
   listen: that by which they have reached the rendezvous, so it is one that leads to them. Rank 0 gives the list back.
2. Each connects to the rank after it, which makes the ring.
3. Again and again they compute, and then sum up a vector in N-1 exchanges that scatter its parts, summed, over the
   ranks, and N-1 that gather them. In each exchange every rank sends a part to the next one, and receives one.
4. Each rank compares the sums with what must come out, to the last number. Rank 0 prints one line of JSON.

    gridweave submit --nodes 4 -- python3 examples/ring_allreduce.py --iterations 20

Without gridweave it runs as one rank. Whatever goes wrong (a rank that does not come, one that dies, a line that is
cut, a wrong sum) ends the rank with status 1 and one line; its neighbours hear of that, and end as well.
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
"""Before the work so many times so many exchanges of either size are timed, of which the quickest time counts."""

_HEADER = struct.Struct("!QQ")  # the bytes that follow, and when they were sent (by the clock of this machine)
_LONGEST_LINE = 1 << 20
_HELLO_S = 5.0
_AGAIN_S = 0.05


class RingError(Exception):
    """Why this rank cannot go on, in one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Who this rank is, and where all meet.

    Attributes
    ----------
    rank, size : int
    site : str
    rendezvous : str
        ``host:port``, at which rank 0 listens; not needed by one rank alone.
    job : str
        What no other job has, nor another attempt at this one.
    key : str
        What nobody else knows; without one, whoever names the job is believed.
    """

    rank: int = 0
    size: int = 1
    site: str = ""
    rendezvous: str = ""
    job: str = ""
    key: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Place:
        """Return what gridweave tells a rank."""
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
    """A link between sites that is not there: what comes over it is held back for as long as it would have taken.

    For a grid whose sites are on one machine, and so have one clock.
    """

    latency_ms: float
    bandwidth_mbps: float
    _free_s: float = 0.0

    def arrival_s(self, n_bytes: int, sent_s: float) -> float:
        """Return when so many bytes have arrived; one message follows the other."""
        self._free_s = max(self._free_s, sent_s) + n_bytes * 8 / (self.bandwidth_mbps * 1e6)
        return self._free_s + self.latency_ms / 1e3


# -- the ring ---------------------------------------------------------------------------------------------------------


class Ring:
    """The connections of a rank to the one before it and the one after it.

    Parameters
    ----------
    place : Place
    before, after : socket.socket, optional
        None: there is one rank.
    timeout_s : float
        So long nothing may come or go in an exchange.
    held_back : StandIn, optional
        On the way from the rank before.
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
        """Let go of both neighbours."""
        for end in (self._before, self._after):
            if end is not None:
                end.close()

    def exchange(self, data: bytes | memoryview) -> bytearray:
        """Send to the rank after this one, and return what the rank before it has sent.

        Both at the same time: if all sent first, large messages would fill what lies between, and nobody would read.

        Raises
        ------
        RingError
            If a neighbour is gone, or silent.
        """
        assert self._before is not None, "one rank alone exchanges nothing"
        assert self._after is not None, "one rank alone exchanges nothing"
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
        """Send what can be sent now; return what is left."""
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
        """Receive what is there; return what is missing."""
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

    # -- what is made of exchanges ------------------------------------------------------------------------------------

    def all_reduce(self, vector: array[int]) -> Timing:
        """Replace a vector by the sum of those of all ranks; return the time that it took.

        After exchange s of the first N-1 this rank has the sum of s+2 ranks' part (rank - s - 1); after all of them
        that of all ranks' part (rank + 1), which the other N-1 hand round.
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
        """Return what each rank tells, in their order."""
        rank, size = self.place.rank, self.place.size
        known, latest = {rank: told}, told
        for step in range(1, size):
            latest = json.loads(self.exchange(json.dumps(latest).encode()))
            known[(rank - step) % size] = latest
        return [known[one] for one in range(size)]

    def probe_ms(self, n_bytes: int) -> float:
        """Return how long an exchange of so many bytes takes, one after the other: a mean, as links may differ."""
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
    """The time of an all-reduce: sending and waiting for others, and adding."""

    exchanges_s: float = 0.0
    adding_s: float = 0.0


def bounds(length: int, parts: int) -> list[tuple[int, int]]:
    """Return where each part of a vector begins and ends; the first ones are longer by one where it does not go even.

    Examples
    --------
    >>> bounds(7, 3), bounds(1, 2)
    ([(0, 3), (3, 5), (5, 7)], [(0, 1), (1, 1)])
    """
    short, longer = divmod(length, parts)
    ends = [part * short + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(ends))


# -- how the ranks find each other ------------------------------------------------------------------------------------


def join(place: Place, *, timeout_s: float = 60.0, stand_in: StandIn | None = None) -> Ring:
    """Meet the other ranks, and close the ring.

    Parameters
    ----------
    place : Place
    timeout_s : float
        So long the others may take to come; and so long they may be silent later.
    stand_in : StandIn, optional
        For links between sites.

    Raises
    ------
    RingError
        If they do not come, or are not reached.
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
    """Have both ends of a connection prove that they know the key of the job; the one that was reached asks first."""
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
        raise RingError(f"the other end is none of job {place.job}: {error}") from error


def _hello(place: Place, to: int) -> dict[str, Any]:
    return _whose(place, place.rank, to) | {"rank": place.rank, "site": place.site}


def _whose(place: Place, rank: int, to: int) -> dict[str, Any]:
    """Return how a rank shows another one that it is of the same job."""
    return {"job": place.job, "proof": hmac.new(place.key.encode(), f"{rank} {to}".encode(), "sha256").hexdigest()}


def _be_met(place: Place, listener: socket.socket, until: float) -> list[Any]:
    """Wait for all other ranks, and tell each where all are; return that."""
    came: dict[int, tuple[socket.socket, Any]] = {}
    try:
        while len(came) < place.size - 1:
            missing = ", ".join(str(rank) for rank in range(1, place.size) if rank not in came)
            peer, told = _accept(
                place, listener, until, f"of {place.size} ranks have not come: {missing}", gathers=True
            )
            before = came.pop(int(told["rank"]), None)  # it has tried twice
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
    """Connect to the rank after this one, and be connected to by the one before."""
    behind, ahead = (place.rank - 1) % place.size, (place.rank + 1) % place.size
    after = _reach((addresses[ahead][0], addresses[ahead][1]), f"rank {ahead}", until)
    try:
        _say(after, _hello(place, ahead))
        while True:
            before, told = _accept(place, listener, until, f"rank {behind} has not come")
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

    In a machine with several networks, the machine's name may resolve to a different address here than elsewhere or, as
    in a container, to an address that is not its own.
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
    """Connect to an address at which somebody listens, or will in a moment."""
    while True:
        left_s = until - time.monotonic()
        try:
            return socket.create_connection(address, timeout=max(_AGAIN_S, left_s))
        except OSError as error:
            if left_s <= 0:
                raise RingError(f"{who} is not reached at {address[0]}:{address[1]}: {error}") from error
        time.sleep(_AGAIN_S)


def _accept(
    place: Place, listener: socket.socket, until: float, missing: str, *, gathers: bool = False
) -> tuple[socket.socket, dict[str, Any]]:
    """Return the next connection of a rank of this job, and what it says; whoever else comes is let go of."""
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
        raise RingError(f"a rank that came is gone again: {error}") from error


def _hear(peer: socket.socket, until: float, missing: str) -> dict[str, Any]:
    """Return a line of JSON; not one byte beyond it is read."""
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
    """Return the outcome of some work that takes equally long each time: the digest of a digest of a digest ..."""
    digest = b""
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest


def vector_of(rank: int, iteration: int, elements: int) -> array[int]:
    """Return what a rank brings into an iteration: no two are alike, and the sum of all is known beforehand."""
    times = rank + 1
    return array("q", range(times * iteration, times * (iteration + elements), times))


def sum_of(size: int, iteration: int, elements: int) -> array[int]:
    """Return what must come out."""
    return vector_of(size * (size + 1) // 2 - 1, iteration, elements)


def run(ring: Ring, *, elements: int, iterations: int, rounds: int) -> dict[str, Any] | None:
    """Do the work; return what rank 0 prints, None at all other ranks.

    Ranks are in exchanges while a message is on its way, and while they wait for one that computes still; links between
    sites make only the former longer. So it is told beside, as what as many exchanges take when all ranks are ready, of
    the quickest iteration, which other work on the machines has disturbed least.

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
    parser.add_argument("--elements", type=int, default=100_000, help="numbers in the vector")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20_000, help="of computation in each iteration")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="so long a rank may be late, or silent")
    parser.add_argument(
        "--stand-in", metavar="MS,MBPS", help="hold back what crosses sites, as a link of that latency and bandwidth"
    )
    options = parser.parse_args(arguments)
    if min(options.elements, options.iterations, options.rounds) < 0 or options.timeout_s <= 0:
        parser.error("numbers are from 0 up, and the timeout is above 0")
    stand_in = None
    if options.stand_in:
        try:
            stand_in = StandIn(*map(float, options.stand_in.split(",")))
        except (ValueError, TypeError):
            parser.error(f"--stand-in {options.stand_in!r}: write milliseconds and Mbit/s, such as 5,1000")
        if not (0 <= stand_in.latency_ms < 1e6 and 0 < stand_in.bandwidth_mbps < 1e9):
            parser.error(f"--stand-in {options.stand_in!r}: the latency is from 0 up, the bandwidth above 0")
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
