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
    journal: str = ""  # id of the sender's journal; empty: of an older release
    other: str = ""  # id of the journal that the other end had when this connection began; empty: not heard of yet


class Channel:
    """One end of a connection.

    What was sent is sent again after ``resend_ms`` without an acknowledgement; an acknowledgement that has nothing to
    travel with is sent after half of that. An end that has not heard of the other one's journal greets it until it has.

    This is the sliding window of every reliable protocol, going back to the first message that is missing: a packet
    that leaves a gap is dropped and comes again. Numbers start at 0 and never begin anew.

    Of what is not acknowledged no more than a window is on its way. So a packet stays small however much has come
    together while the connection was cut, and nothing is sent again and again that the other end cannot take in yet.
    """

    def __init__(self, resend_ms: int, *, window: int = WINDOW, journal: str = "", other: str = "") -> None:
        self._resend_ms, self._window = resend_ms, window
        self._journal, self.other = journal, other
        self._unacknowledged: list[Any] = []
        self._first = 0
        # So many of them, from the first on, are on their way.
        self._under_way = 0
        self._received = 0
        self._owed_since_ms: int | None = None
        self._sent_ms = 0
        self._greets_at_ms = 0
        self.heard_ms = 0

    @classmethod
    def restored(
        cls,
        resend_ms: int,
        *,
        first: int,
        unacknowledged: tuple[Any, ...],
        received: int,
        journal: str = "",
        other: str = "",
    ) -> Channel:
        """Return an end that goes on after a failure where its journal says that it stood.

        The unacknowledged messages, from number ``first`` on, are sent again. Packets say the ids of this ``journal``
        and of the ``other`` end's.
        """
        channel = cls(resend_ms, journal=journal, other=other)
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

    @property
    def _greets(self) -> bool:
        """Whether it sends packets without messages, too: the other end may know another journal of this one."""
        return bool(self._journal) and not self.other and not self.heard_ms

    def send(self, message: Any) -> None:
        """Put a message at the end of what is to be sent."""
        self._unacknowledged.append(message)

    def packet(self, now_ms: int) -> Packet[Any] | None:
        """Return what is to be sent at this instant, if anything."""
        if self._under_way and now_ms >= self._sent_ms + self._resend_ms:
            self._under_way = 0
        greets = self._greets and now_ms >= self._greets_at_ms
        count = self._under_way
        new = tuple(self._unacknowledged[count : self._window])
        owed = self._owed_since_ms is not None and now_ms >= self._owed_since_ms + self._resend_ms // 2
        if not new and not owed and not greets:
            return None
        self._greets_at_ms = now_ms + self._resend_ms
        if new and not count:
            # The clock runs for the first that is missing: what is sent after it must not put off its repetition.
            self._sent_ms = now_ms
        self._under_way = count + len(new)
        self._owed_since_ms = None
        return Packet(self._first + count, new, self._received, self._journal, self.other)

    def shortened(self, packet: Packet[Any], count: int) -> Packet[Any]:
        """Return the packet of this instant with so many of its messages alone; others follow with the next ones."""
        assert packet.first + len(packet.messages) == self._first + self._under_way, "not the packet of this instant"
        assert 0 < count <= len(packet.messages), "a packet that was shortened has some of its messages"
        self._under_way -= len(packet.messages) - count
        return msgspec.structs.replace(packet, messages=packet.messages[:count])

    def is_stranger(self, packet: Packet[Any]) -> str:
        """Return whose journal is another than when this connection began: ``mine``, ``other``, or empty.

        An end that has begun with a new journal counts from 0 again: what it says of numbers is of another connection.
        """
        if packet.other and self._journal and packet.other != self._journal:
            return "mine"
        return "other" if packet.journal and self.other and packet.journal != self.other else ""

    def receive(self, now_ms: int, packet: Packet[Any]) -> tuple[Any, ...]:
        """Take in a packet from the other end; return the messages that are new, in order."""
        self.heard_ms = now_ms
        self.other = self.other or packet.journal
        known = packet.received - self._first
        if known > 0:
            del self._unacknowledged[:known]
            self._first = packet.received
            self._under_way = max(0, self._under_way - known)
            self._sent_ms = now_ms
        if packet.journal and not packet.other:
            # It asks for the journal of this end: that is answered at once.
            self._owed_since_ms = now_ms - self._resend_ms
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
        times_ms = [self._sent_ms + self._resend_ms] if self._unacknowledged else []
        if self._owed_since_ms is not None:
            times_ms.append(self._owed_since_ms + self._resend_ms // 2)
        if self._greets:
            times_ms.append(self._greets_at_ms)
        return min(times_ms, default=None)
