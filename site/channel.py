"""Messages between a site and the grid in order and exactly once, over a network that delays, loses and repeats.

A `Channel` is one end of a connection. It does no I/O: whoever owns it carries the packets. What it keeps (what it has
sent and what it has received) belongs to its owner's journal, so that it goes on after a crash where it stood.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")


class Packet(msgspec.Struct, Generic[M], frozen=True):
    """What is sent at one time.

    Attributes
    ----------
    first : int
        Number of the first of the messages.
    messages : tuple
    received : int
        How many messages of the other end have arrived without a gap: it need not send them again.
    """

    first: int
    messages: tuple[M, ...]
    received: int


class Channel:
    """One end of a connection.

    Parameters
    ----------
    resend_ms : int
        After how long without an acknowledgement what was sent is sent again; an acknowledgement that has nothing to
        travel with is sent after half of that.

    Notes
    -----
    This is the sliding window of every reliable protocol, going back to the first message that is missing: a packet
    that leaves a gap is dropped and comes again. Numbers start at 0 and never begin anew.
    """

    def __init__(self, resend_ms: int) -> None:
        self._resend_ms = resend_ms
        self._unacknowledged: list[Any] = []
        self._first = 0
        self._unsent = 0
        self._received = 0
        self._owed_since_ms: int | None = None
        self._sent_ms = 0
        self.heard_ms = 0

    @classmethod
    def restored(cls, resend_ms: int, *, first: int, unacknowledged: tuple[Any, ...], received: int) -> Channel:
        """Return an end that goes on after a failure where its journal says that it stood.

        Parameters
        ----------
        resend_ms : int
        first : int
            Number of the first message that the other end is not known to have.
        unacknowledged : tuple
            That message and all after it; they are sent again.
        received : int
            How many messages of the other end were taken in.
        """
        channel = cls(resend_ms)
        channel._first, channel._received = first, received
        channel._unacknowledged = list(unacknowledged)
        channel._unsent = len(unacknowledged)
        return channel

    @property
    def sent(self) -> int:
        """How many messages were ever put into it."""
        return self._first + len(self._unacknowledged)

    @property
    def is_idle(self) -> bool:
        """Whether everything has arrived, as far as this end knows, and no acknowledgement is owed."""
        return not self._unacknowledged and self._owed_since_ms is None

    def send(self, message: Any) -> None:
        """Put a message at the end of what is to be sent."""
        self._unacknowledged.append(message)
        self._unsent += 1

    def packet(self, now_ms: int) -> Packet[Any] | None:
        """Return what is to be sent at this instant, if anything."""
        if self._unacknowledged and not self._unsent and now_ms >= self._sent_ms + self._resend_ms:
            self._unsent = len(self._unacknowledged)
        owed = self._owed_since_ms is not None and now_ms >= self._owed_since_ms + self._resend_ms // 2
        if not self._unsent and not owed:
            return None
        count = len(self._unacknowledged) - self._unsent
        packet = Packet(self._first + count, tuple(self._unacknowledged[count:]), self._received)
        if self._unsent and not count:
            # The clock runs for the first that is missing: what is sent after it must not put off its repetition.
            self._sent_ms = now_ms
        self._unsent = 0
        self._owed_since_ms = None
        return packet

    def receive(self, now_ms: int, packet: Packet[Any]) -> tuple[Any, ...]:
        """Take in a packet from the other end; return the messages that are new, in order."""
        self.heard_ms = now_ms
        known = packet.received - self._first
        if known > 0:
            del self._unacknowledged[:known]
            self._first = packet.received
            self._unsent = min(self._unsent, len(self._unacknowledged))
            self._sent_ms = now_ms
        if not packet.messages:
            return ()
        if self._owed_since_ms is None:
            self._owed_since_ms = now_ms
        new = self._received - packet.first
        if new < 0 or new >= len(packet.messages):
            return ()
        self._received = packet.first + len(packet.messages)
        return packet.messages[new:]

    def next_wakeup_ms(self) -> int | None:
        """Return when `packet` is to be asked for though nothing is sent or received."""
        instants = []
        if self._unacknowledged:
            instants.append(self._sent_ms + self._resend_ms)
        if self._owed_since_ms is not None:
            instants.append(self._owed_since_ms + self._resend_ms // 2)
        return min(instants, default=None)
