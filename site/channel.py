"""Exchange messages between a site and the grid in order and exactly once, over an unreliable network.

A `Channel` is one end of a connection. It does no I/O; its owner transports the packets. The owner records in its
journal what the channel has sent and received, so that the channel can continue after a crash.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

WINDOW = 1_000
"""Maximum number of unacknowledged messages in transit in one direction, and therefore in one packet."""


class Packet(msgspec.Struct, Generic[M], frozen=True):
    """A packet that one end of a connection sends to the other."""

    first: int  # number of the first message
    messages: tuple[M, ...]
    received: int  # number of messages received from the other end without a gap; acknowledges these messages
    journal: str = ""  # id of the sender's journal; "" if the sender is an older release
    other: str = ""  # id of the receiver's journal at the start of this connection; "" if not known yet


class Channel:
    """One end of a connection.

    A message is sent again after ``resend_ms`` without an acknowledgement. An acknowledgement is delayed by up to half
    of this time so that it can travel with a message. An end sends empty packets until it knows the other end's
    journal.

    The protocol is a sliding window with go-back-N: the receiver drops a packet that leaves a gap, and the sender
    repeats from the first missing message. Numbers start at 0 and are never reset.

    The window limits the number of unacknowledged messages in transit. This keeps packets small after a long
    disconnection, and avoids repeating messages that the other end cannot accept yet.
    """

    def __init__(self, resend_ms: int, *, window: int = WINDOW, journal: str = "", other: str = "") -> None:
        self._resend_ms, self._window = resend_ms, window
        self._journal, self.other = journal, other
        self._unacknowledged: list[Any] = []
        self._first = 0
        # Number of unacknowledged messages in transit, counted from the first.
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
        """Return a channel that continues from the state recorded in a journal.

        The unacknowledged messages, the first of which has number ``first``, are sent again. Packets carry the ids of
        this end's ``journal`` and the ``other`` end's journal.
        """
        channel = cls(resend_ms, journal=journal, other=other)
        channel._first, channel._received = first, received
        channel._unacknowledged = list(unacknowledged)
        return channel

    @property
    def sent(self) -> int:
        """Number of messages passed to `send` so far."""
        return self._first + len(self._unacknowledged)

    @property
    def is_idle(self) -> bool:
        """Whether all messages, both sent and received, have been acknowledged."""
        return not self._unacknowledged and self._owed_since_ms is None

    @property
    def _greets(self) -> bool:
        """Whether to send even empty packets, because the other end might not know this end's current journal yet."""
        return bool(self._journal) and not self.other and not self.heard_ms

    def send(self, message: Any) -> None:
        """Queue a message for the next packets."""
        self._unacknowledged.append(message)

    def packet(self, now_ms: int) -> Packet[Any] | None:
        """Return the packet to send at this instant, or None."""
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
            # The timer belongs to the first unacknowledged message; later messages must not delay its resend.
            self._sent_ms = now_ms
        self._under_way = count + len(new)
        self._owed_since_ms = None
        return Packet(self._first + count, new, self._received, self._journal, self.other)

    def shortened(self, packet: Packet[Any], count: int) -> Packet[Any]:
        """Shorten the packet returned by `packet` to its first ``count`` messages; later packets carry the rest."""
        assert packet.first + len(packet.messages) == self._first + self._under_way, "not the packet of this instant"
        assert 0 < count <= len(packet.messages), "a packet that was shortened has some of its messages"
        self._under_way -= len(packet.messages) - count
        return msgspec.structs.replace(packet, messages=packet.messages[:count])

    def is_stranger(self, packet: Packet[Any]) -> str:
        """Return whose journal has changed since the connection began: ``mine``, ``other``, or "".

        An end with a new journal numbers its messages from 0 again, so its packets do not belong to this connection.
        """
        if packet.other and self._journal and packet.other != self._journal:
            return "mine"
        return "other" if packet.journal and self.other and packet.journal != self.other else ""

    def receive(self, now_ms: int, packet: Packet[Any]) -> tuple[Any, ...]:
        """Process a packet from the other end; return its new messages, in order."""
        self.heard_ms = now_ms
        self.other = self.other or packet.journal
        n_acknowledged = packet.received - self._first
        if n_acknowledged > 0:
            del self._unacknowledged[:n_acknowledged]
            self._first = packet.received
            self._under_way = max(0, self._under_way - n_acknowledged)
            self._sent_ms = now_ms
        if packet.journal and not packet.other:
            # The other end needs the id of this journal; answer immediately.
            self._owed_since_ms = now_ms - self._resend_ms
        if not packet.messages:
            return ()
        if self._owed_since_ms is None:
            self._owed_since_ms = now_ms
        if 2 * len(packet.messages) >= self._window:
            # The other end's window may be full until it receives this acknowledgement.
            self._owed_since_ms = now_ms - self._resend_ms
        new = self._received - packet.first
        if new < 0 or new >= len(packet.messages):
            return ()
        self._received = packet.first + len(packet.messages)
        return packet.messages[new:]

    def next_wakeup_ms(self) -> int | None:
        """Return when to call `packet` next if no message is sent or received before that time; None if never."""
        times_ms = [self._sent_ms + self._resend_ms] if self._unacknowledged else []
        if self._owed_since_ms is not None:
            times_ms.append(self._owed_since_ms + self._resend_ms // 2)
        if self._greets:
            times_ms.append(self._greets_at_ms)
        return min(times_ms, default=None)
