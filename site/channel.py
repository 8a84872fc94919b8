"""Messages between a site and the grid in order and exactly once, over a network that delays, loses and repeats.

A `Channel` is one end of a connection. It does no I/O: whoever owns it carries the packets. What it keeps (what it has
sent and what it has received) belongs to its owner's journal, so that it goes on after a crash where it stood.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

WINDOW = 1_000
"""So many messages at most are on their way in one direction, and so in one packet."""


class Packet(msgspec.Struct, Generic[M], frozen=True):
    """What is sent at one time."""

    first: int  # number of the first of the messages
    messages: tuple[M, ...]
    received: int  # how many messages of the other end have arrived without a gap: it need not send them again


class Channel:
    """One end of a connection.

    What was sent is sent again after ``resend_ms`` without an acknowledgement; an acknowledgement that has nothing to
    travel with is sent after half of that.

    This is the sliding window of every reliable protocol, going back to the first message that is missing: a packet
    that leaves a gap is dropped and comes again. Numbers start at 0 and never begin anew.

    Of what is not acknowledged no more than a window is on its way. So a packet stays small however much has come
    together while the connection was cut, and nothing is sent again and again that the other end cannot take in yet.
    """

    def __init__(self, resend_ms: int, *, window: int = WINDOW) -> None:
        self._resend_ms, self._window = resend_ms, window
        self._unacknowledged: list[Any] = []
        self._first = 0
        # So many of them, from the first on, are on their way.
        self._under_way = 0
        self._received = 0
        self._owed_since_ms: int | None = None
        self._sent_ms = 0
        self.heard_ms = 0

    @classmethod
    def restored(cls, resend_ms: int, *, first: int, unacknowledged: tuple[Any, ...], received: int) -> Channel:
        """Return an end that goes on after a failure where its journal says that it stood.

        The unacknowledged messages, from number ``first`` on, are sent again.
        """
        channel = cls(resend_ms)
        channel._first, channel._received = first, received
        channel._unacknowledged = list(unacknowledged)
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

    def packet(self, now_ms: int) -> Packet[Any] | None:
        """Return what is to be sent at this instant, if anything."""
        if self._under_way and now_ms >= self._sent_ms + self._resend_ms:
            self._under_way = 0
        count = self._under_way
        new = tuple(self._unacknowledged[count : self._window])
        owed = self._owed_since_ms is not None and now_ms >= self._owed_since_ms + self._resend_ms // 2
        if not new and not owed:
            return None
        if new and not count:
            # The clock runs for the first that is missing: what is sent after it must not put off its repetition.
            self._sent_ms = now_ms
        self._under_way = count + len(new)
        self._owed_since_ms = None
        return Packet(self._first + count, new, self._received)

    def shortened(self, packet: Packet[Any], count: int) -> Packet[Any]:
        """Return the packet of this instant with so many of its messages alone; others follow with the next ones."""
        assert packet.first + len(packet.messages) == self._first + self._under_way, "not the packet of this instant"
        assert 0 < count <= len(packet.messages), "a packet that was shortened has some of its messages"
        self._under_way -= len(packet.messages) - count
        return Packet(packet.first, packet.messages[:count], packet.received)

    def receive(self, now_ms: int, packet: Packet[Any]) -> tuple[Any, ...]:
        """Take in a packet from the other end; return the messages that are new, in order."""
        self.heard_ms = now_ms
        known = packet.received - self._first
        if known > 0:
            del self._unacknowledged[:known]
            self._first = packet.received
            self._under_way = max(0, self._under_way - known)
            self._sent_ms = now_ms
        if not packet.messages:
            return ()
        if self._owed_since_ms is None:
            self._owed_since_ms = now_ms
        if 2 * len(packet.messages) >= self._window:
            # The other end may wait with what it has to send until it hears of this.
            self._owed_since_ms = now_ms - self._resend_ms
        new = self._received - packet.first
        if new < 0 or new >= len(packet.messages):
            return ()
        self._received = packet.first + len(packet.messages)
        return packet.messages[new:]

    def next_wakeup_ms(self) -> int | None:
        """Return when `packet` is to be asked for though nothing is sent or received."""
        repeat_ms = self._sent_ms + self._resend_ms if self._unacknowledged else None
        if self._owed_since_ms is None:
            return repeat_ms
        owed_ms = self._owed_since_ms + self._resend_ms // 2
        return owed_ms if repeat_ms is None or owed_ms < repeat_ms else repeat_ms
