"""What the two ends of a probe say to each other, and how data is measured (docs/netmodel.md, "Probes")."""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
from collections.abc import Callable, Sequence

import msgspec

from gridweave.errors import OptionError

MAGIC, FULL = b"GWP1", b"GWPF"
NONCE_BYTES, MAC_BYTES = 16, 32
LEAST_SECRET_BYTES = 16

ECHO, UPLOAD, DOWNLOAD = b"T", b"U", b"D"
GO, BUSY, RESULT = b"G", b"B", b"R"
WELCOME, REFUSED = b"Y", b"N"
_FRAME = struct.Struct("!cQI")

BLOCK_BYTES = 262_144
_SAMPLE_BYTES = 16_384  # so that nobody fills our memory with samples, one for each byte

Clock = Callable[[], int]
"""Nanoseconds since some instant, never going back."""


class ProbeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe may cost; both ends have limits, and the narrower ones hold.

    Attributes
    ----------
    round_trips : int
        Of one connection.
    bytes : int
        Of one measurement of bandwidth.
    duration_ms : int
        So long data is received for it; then it ends, however little came.
    timeout_ms : int
        So long each answer is waited for.
    connections : int
        Of a server, at once.

    Raises
    ------
    OptionError
        If a number makes no sense.
    """

    round_trips: int = 100
    bytes: int = 16 << 20
    duration_ms: int = 2000
    timeout_ms: int = 5000
    connections: int = 16

    def __post_init__(self) -> None:
        for name, least, most in (
            ("round_trips", 1, 10_000),
            ("bytes", 4 * _SAMPLE_BYTES, 1 << 40),
            ("duration_ms", 1, 600_000),
            ("timeout_ms", 1, 600_000),
            ("connections", 1, 10_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise OptionError(name, f"is {value:,}; a number from {least:,} to {most:,}")


class ProtocolError(Exception):
    """The other end has said what it must not."""


def check_secret(secret: bytes) -> bytes:
    """Return a secret that is long enough.

    Raises
    ------
    OptionError
        If it is not.
    """
    if len(secret) < LEAST_SECRET_BYTES:
        raise OptionError("secret", f"has {len(secret)} bytes; the same {LEAST_SECRET_BYTES} or more at all sites")
    return secret


def proof(secret: bytes, who: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return what shows that one end knows the secret, for this connection alone; the secret itself is never sent."""
    return hmac.digest(secret, MAGIC + who + server_nonce + client_nonce, "sha256")


def frame(kind: bytes, number: int = 0, duration_ms: int = 0) -> bytes:
    """Return a request or an answer."""
    return _FRAME.pack(kind, number, duration_ms)


async def read_frame(reader: asyncio.StreamReader, *kinds: bytes) -> tuple[bytes, int, int]:
    """Return the next request or answer: its kind, number and duration [ms].

    Raises
    ------
    ProtocolError
        If it is none of these kinds.
    """
    kind, number, duration_ms = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in kinds:
        raise ProtocolError(f"said {kind!r}")
    return kind, number, duration_ms


async def send(writer: asyncio.StreamWriter, count: int) -> None:
    """Send so many bytes, which nothing on the way can compress."""
    block = os.urandom(BLOCK_BYTES)
    while count > 0:
        writer.write(block[:count])
        count -= BLOCK_BYTES
        await writer.drain()


async def receive(
    reader: asyncio.StreamReader, most_bytes: int, duration_ms: int, clock_ns: Clock
) -> list[tuple[int, int]]:
    """Take in data until there is no more, or enough, or the time is over.

    Returns
    -------
    list of (int, int)
        When [ns], and how many bytes had come then.
    """
    samples: list[tuple[int, int]] = []
    total = noted = 0
    try:
        async with asyncio.timeout(duration_ms / 1000):
            while total < most_bytes and (block := await reader.read(min(BLOCK_BYTES, most_bytes - total))):
                total += len(block)
                if not samples or total - noted >= _SAMPLE_BYTES:
                    samples.append((clock_ns(), total))
                    noted = total
    except TimeoutError:
        pass
    if total > noted:
        samples.append((clock_ns(), total))
    return samples


def throughput_bps(samples: Sequence[tuple[int, int]]) -> int:
    """Return at which rate data came in, once it was under way.

    A TCP stream begins slowly. So only the later half of the time counts, of however many bytes.

    Parameters
    ----------
    samples : sequence of (int, int)
        As `receive` gives them.

    Returns
    -------
    int
        Bits per second; 0 if that cannot be told, as all came at once.

    Examples
    --------
    >>> throughput_bps([(0, 1000), (500_000_000, 2000), (1_000_000_000, 6000)])
    64000
    >>> throughput_bps([(7, 100_000)])
    0
    """
    if len(samples) < 2:
        return 0
    began, end = samples[0][0], samples[-1]
    middle = next(sample for sample in samples if 2 * (sample[0] - began) >= end[0] - began)
    if middle[0] == end[0]:
        middle = samples[-2]
    took_ns, came = end[0] - middle[0], end[1] - middle[1]
    return 8_000_000_000 * came // took_ns if took_ns > 0 else 0
