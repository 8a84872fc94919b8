"""A channel: whatever the network does, every message arrives, once, and in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.site.channel import WINDOW, Channel, Packet

RESEND_MS = 10

Fate = Callable[[], list[int]]
"""Returns the delay of each copy of a packet that arrives."""


def play(
    sent: list[tuple[int, int, object]], fate: Fate, *, window: int = WINDOW, longest: int = WINDOW
) -> tuple[list[list[object]], tuple[Channel, Channel], int]:
    """Send (instant, end, message) over a network; return what each end got, the ends, and how many packets it took.

    Of a packet that is too long the first messages alone are sent.
    """
    ends = Channel(RESEND_MS, window=window), Channel(RESEND_MS, window=window)
    got: list[list[object]] = [[], []]
    flying: list[tuple[int, int, int, Packet]] = []
    packets = 0
    due = sorted(sent, key=lambda entry: entry[0])
    now_ms = 0
    while due or flying or not all(end.is_idle for end in ends):
        wakes = [wake for end in ends if (wake := end.next_wakeup_ms()) is not None]
        instants = [*(due[0][:1] if due else ()), *(entry[0] for entry in flying), *(max(w, now_ms + 1) for w in wakes)]
        now_ms = max(now_ms, min(instants))
        while due and due[0][0] <= now_ms:
            _, end, message = due.pop(0)
            ends[end].send(message)
        arrived = sorted((entry for entry in flying if entry[0] <= now_ms), key=lambda entry: entry[1])
        flying = [entry for entry in flying if entry[0] > now_ms]
        for _, _, end, packet in arrived:
            got[end] += ends[end].receive(now_ms, packet)
        for end in (0, 1):
            packet_out = ends[end].packet(now_ms)
            if packet_out is not None and len(packet_out.messages) > longest:
                packet_out = ends[end].shortened(packet_out, longest)
            if packet_out is not None:
                assert len(packet_out.messages) <= window
                flying += [(now_ms + delay_ms, packets, 1 - end, packet_out) for delay_ms in fate()]
                packets += 1
        assert packets < 10_000, "the two ends never come to rest"
    return got, ends, packets


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_message_arrives_once_and_in_order(data: st.DataObject) -> None:
    """Whatever is lost, comes twice or overtakes, both ends get what the other sent, once each and in order."""
    instants = st.tuples(st.integers(0, 60), st.integers(0, 1))
    sent = [(now_ms, end, number) for number, (now_ms, end) in enumerate(data.draw(st.lists(instants, max_size=25)))]
    fates = data.draw(st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=60))
    left = iter(fates)
    window, longest = data.draw(st.sampled_from([1, 2, 5, WINDOW])), data.draw(st.sampled_from([1, 3, WINDOW]))
    got, _, _ = play(sent, lambda: next(left, [1]), window=window, longest=longest)
    for end in (0, 1):
        assert got[end] == [message for _, by, message in sorted(sent, key=lambda entry: entry[0]) if by != end]


def test_a_good_network_carries_each_message_once() -> None:
    """Where nothing is lost there is one packet per message, and an acknowledgement for what has had no answer."""
    got, _, packets = play([(0, 0, "a"), (2, 0, "b"), (20, 1, "c")], lambda: [1])
    assert got == [["c"], ["a", "b"]]
    # a, b, one acknowledgement for both, c, and its acknowledgement.
    assert packets == 5


def test_an_answer_carries_the_acknowledgement() -> None:
    """What is answered at once needs no acknowledgement of its own."""
    here, there = Channel(RESEND_MS), Channel(RESEND_MS)
    here.send("ask")
    packet = here.packet(0)
    assert packet == Packet(0, ("ask",), 0)
    assert there.receive(1, packet) == ("ask",)
    there.send("answer")
    answer = there.packet(1)
    assert answer == Packet(0, ("answer",), 1)
    assert here.receive(2, answer) == ("answer",)
    assert there.next_wakeup_ms() == 1 + RESEND_MS
    assert here.next_wakeup_ms() == 2 + RESEND_MS // 2


def test_a_lost_packet_comes_again_though_more_is_sent() -> None:
    """What is sent later does not put off the repetition of what was lost."""
    here, there = Channel(RESEND_MS), Channel(RESEND_MS)
    here.send(0)
    assert here.packet(0) is not None  # lost
    for now_ms in range(1, RESEND_MS):
        here.send(now_ms)
        packet = here.packet(now_ms)
        assert packet is not None
        assert there.receive(now_ms, packet) == (), "there is a gap"
    assert here.next_wakeup_ms() == RESEND_MS
    packet = here.packet(RESEND_MS)
    assert packet is not None
    assert there.receive(RESEND_MS, packet) == tuple(range(RESEND_MS))


def test_nothing_is_repeated_before_its_time() -> None:
    """What was sent is not sent again before the time to resend is over, and an old acknowledgement changes nothing."""
    here, there = Channel(RESEND_MS), Channel(RESEND_MS)
    here.send("a")
    first = here.packet(0)
    assert first is not None
    assert here.packet(RESEND_MS - 1) is None
    again = here.packet(RESEND_MS)
    assert again == first
    assert there.receive(11, first) == ("a",)
    assert there.receive(12, first) == ()
    acknowledgement = there.packet(11 + RESEND_MS // 2)
    assert acknowledgement == Packet(0, (), 1)
    assert here.receive(20, acknowledgement) == ()
    assert here.is_idle
    here.send("b")
    assert here.packet(21) == Packet(1, ("b",), 0)
    assert here.receive(22, acknowledgement) == ()
    assert not here.is_idle


@pytest.mark.parametrize("end", [0, 1])
def test_a_dead_connection_keeps_everything(end: int) -> None:
    """What could not be delivered for long is delivered when the connection is back, in order."""
    tries = iter([[]] * 30)
    got, ends, packets = play([(now_ms, end, now_ms) for now_ms in range(5)], lambda: next(tries, [3]))
    assert got[1 - end] == [0, 1, 2, 3, 4]
    assert packets > 30
    assert ends[1 - end].heard_ms > 200


def test_what_has_come_together_goes_in_parts_one_after_the_other() -> None:
    """However much waits, a packet has no more than the window; the next part follows the acknowledgement at once."""
    here, there = Channel(RESEND_MS, window=10), Channel(RESEND_MS, window=10)
    for number in range(25):
        here.send(number)
    got: list[int] = []
    for now_ms in range(3):
        part = here.packet(now_ms)
        assert part is not None
        assert here.packet(now_ms) is None, "nothing beyond the window is sent before the acknowledgement"
        got += there.receive(now_ms, part)
        acknowledged = there.packet(now_ms)
        if acknowledged is not None:
            here.receive(now_ms, acknowledged)
    assert got == list(range(25))


def test_a_part_that_is_lost_is_sent_again_from_the_first_message() -> None:
    """Without an acknowledgement the same part comes again, and no other before it."""
    here = Channel(RESEND_MS, window=2)
    for number in range(5):
        here.send(number)
    first = here.packet(0)
    assert first == Packet(0, (0, 1), 0)
    assert here.packet(RESEND_MS - 1) is None
    assert here.packet(RESEND_MS) == first


def test_new_messages_do_not_put_off_the_repetition() -> None:
    """Where there is always something new to send, what was lost comes again all the same."""
    here, there = Channel(RESEND_MS), Channel(RESEND_MS)
    here.send("lost")
    assert here.packet(0) is not None
    got: tuple[object, ...] = ()
    for now_ms in range(1, RESEND_MS + 1):
        here.send(now_ms)
        packet = here.packet(now_ms)
        assert packet is not None
        got += there.receive(now_ms, packet)
    assert got == ("lost", *range(1, RESEND_MS + 1))


def test_the_rest_of_a_packet_that_was_too_long_follows() -> None:
    """What was left out of a packet goes with the next one, in order."""
    here, there = Channel(RESEND_MS), Channel(RESEND_MS)
    for number in range(3):
        here.send(number)
    packet = here.packet(0)
    assert packet is not None
    assert there.receive(0, here.shortened(packet, 1)) == (0,)
    rest = here.packet(1)
    assert rest == Packet(1, (1, 2), 0)
    assert there.receive(1, rest) == (1, 2)
