"""Links with a delay and a rate between network namespaces, for kernels without netem: `SlowLinks` carries the packets.

Each namespace gets a TUN device, and routes through it to the addresses of the others. Programs notice nothing, since
all addresses stay the same. A packet leaves when the link is free, takes size / bandwidth to send, and arrives after
the latency. Needs root.

    python benchmarks/slow_links.py     two namespaces, with 10 ms and 1 Gbit/s between them, and the output of ping
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gridweave.errors import UnavailableError

DEVICE = "slow0"

_MTU = 32_768  # with few long packets, an interpreter carries some Gbit/s
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_DESTINATION = slice(16, 20)  # of an IPv4 packet
_SPIN_S = 150e-6
"""How long before a packet is due the loop stops sleeping [s]: a sleep ends too late by about this time."""


class Line(NamedTuple):
    """A link in one direction."""

    latency_ms: float
    bandwidth_bps: float


class End(NamedTuple):
    """A network namespace (a file such as /proc/PID/ns/net), and its address."""

    namespace: str
    address: str


class SlowLinks:
    """Carries all IPv4 packets between some ends, each over the line between its two ends.

    Parameters
    ----------
    ends : mapping from str to End
        The ends, by name.
    lines : mapping from (str, str) to Line
        The lines, by origin and target; may be changed at any time.
    """

    def __init__(self, ends: Mapping[str, End], lines: Mapping[tuple[str, str], Line]) -> None:
        self.lines = dict(lines)
        self._names = {socket.inet_aton(end.address): name for name, end in ends.items()}
        self._devices = {name: _opened(end, others_of(ends, name)) for name, end in ends.items()}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._free_s: dict[tuple[str, str], float] = {}
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the devices; packets go as before."""
        self._is_over = True
        self._thread.join()
        for device in self._devices.values():
            os.close(device)

    def _run(self) -> None:
        names = {device: name for name, device in self._devices.items()}
        while not self._is_over:
            due_s = self._under_way[0][0] if self._under_way else time.monotonic() + 0.2
            wait_s = due_s - time.monotonic() - _SPIN_S
            for device in select.select(list(names), [], [], max(0.0, wait_s))[0]:
                self._take(names[device], os.read(device, _MTU + 64))
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(self._under_way)
                os.write(target, packet)

    def _take(self, origin: str, packet: bytes) -> None:
        """Send a packet on its way if it is for another end."""
        target = self._names.get(packet[_DESTINATION])
        if packet[0] >> 4 != 4 or target is None:
            return
        line, way = self.lines[origin, target], (origin, target)
        now_s = time.monotonic()
        sent_s = max(now_s, self._free_s.get(way, 0.0)) + 8 * len(packet) / line.bandwidth_bps
        self._free_s[way] = sent_s
        self._count += 1
        arrival = sent_s + line.latency_ms / 1000, self._count
        heapq.heappush(self._under_way, (*arrival, self._devices[target], packet))


def both_ways(latency_ms: Mapping[tuple[str, str], float], bandwidth_bps: float) -> dict[tuple[str, str], Line]:
    """Return the lines in both directions between pairs of ends with these latencies."""
    there = {pair: Line(latency, bandwidth_bps) for pair, latency in latency_ms.items()}
    return there | {(far, near): line for (near, far), line in there.items()}


def others_of(ends: Mapping[str, End], name: str) -> list[str]:
    """Return the addresses of all ends but one."""
    return [end.address for other, end in ends.items() if other != name]


def _opened(end: End, others: list[str]) -> int:
    """Return the TUN device of an end, through which its packets to the others go."""
    with within(end.namespace):
        device = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", DEVICE, "mtu", str(_MTU), "txqueuelen", "10000", "up")
        for other in others:
            _ip("route", "replace", f"{other}/32", "dev", DEVICE, "src", end.address)
    return device


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def within(namespace: str) -> Iterator[None]:
    """Run this thread in a network namespace until the end of the block."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise UnavailableError(f"{namespace}: {os.strerror(ctypes.get_errno())}; run it as root")

    own, other = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", namespace))
    try:
        enter(other)
        yield
    finally:
        enter(own)
        os.close(own)
        os.close(other)


@contextmanager
def two_namespaces() -> Iterator[dict[str, End]]:
    """Yield two network namespaces that reach each other by a veth pair."""
    names = f"slow-{os.getpid()}-a", f"slow-{os.getpid()}-b"
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "pair0", "netns", names[0], "type", "veth", "peer", "name", "pair0", "netns", names[1])
        for number, name in enumerate(names, 1):
            _ip("-n", name, "address", "add", f"10.98.0.{number}/24", "dev", "pair0")
            for device in ("lo", "pair0"):
                _ip("-n", name, "link", "set", device, "up")
        yield {name: End(f"/run/netns/{name}", f"10.98.0.{number}") for number, name in enumerate(names, 1)}
    finally:
        for name in names:
            if Path(f"/run/netns/{name}").exists():
                _ip("netns", "delete", name)


def main() -> None:
    """Print the output of ping over a slow link."""
    with two_namespaces() as ends:
        one, other = ends
        links = SlowLinks(ends, both_ways({(one, other): 10.0}, 1e9))
        ping = ["ip", "netns", "exec", one, "ping", "-c", "5", "-i", "0.2", ends[other].address]
        print(subprocess.run(ping, capture_output=True, text=True, check=True).stdout)
        links.close()


if __name__ == "__main__":
    main()
