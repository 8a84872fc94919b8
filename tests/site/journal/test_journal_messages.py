"""What a journal keeps of messages: all of them come back as they were, and channels go on where they stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.messages import FromSite, GridEvent, GridJobSubmitted
from gridweave.grid.sends import JobData, Sends
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.correction import PairMeasured
from gridweave.site.channel import Channel, Packet
from gridweave.site.job import Job, Resources
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import ChannelState, Codec
from gridweave.site.messages import (
    Answer,
    CancelJob,
    DrainSite,
    Ended,
    EnqueueJob,
    FragmentsMet,
    JobFinished,
    JobSubmitted,
    RenewLeases,
    Request,
    RequestQuote,
    ReservationRequested,
    Reserved,
    ReserveNodes,
    SiteRestarted,
    Started,
)
from gridweave.site.scheduler.contract import ContractEvent


@pytest.mark.parametrize("union", [ContractEvent, GridEvent, Request, Answer])
def test_every_message_comes_back_as_it_was(union: Any) -> None:
    """Every struct of every union can be told apart by its tag, and comes back as it was."""
    job = Job(job_id=2**40, width=3, estimate_ms=10**14, user=7, weight=0.1, resources=Resources(cpu=0.5, disk=0.5))
    values = {
        "job": job,
        "submitted": GridJobSubmitted(job),
        "answer": Started(5, 2, 10**13),
        "reason": "it is full: \u00e9",
        "outcome": "lost",
    }
    values["now_or_never"] = True
    values["changes"] = [{"user": "anna", "runs": 4, "mean_ms": 9_000.0}]
    values["free_from"] = ((5, 3), (9, 4))
    values["factors"] = (1.0, 0.25, 0.0)
    values["pairs"] = (
        PairMeasured(
            origin="a",
            target="b",
            round_trip_ms=1.5,
            least_ms=1.0,
            bandwidth_bps=None,
            round_trips=3,
            bandwidths=0,
            newest_ms=7,
        ),
    )
    values["sends"] = Sends(Communication(fraction=0.1, message_bytes=1e6, pattern="ring"), JobData(input_bytes=2**53))
    codec = Codec(union, "event")
    for kind in union.__args__:
        required = [field.name for field in msgspec.structs.fields(kind) if field.required]
        message = kind(**{name: values.get(name, 3) for name in kind.__struct_fields__ if name in {*values, *required}})
        assert codec.decode_all(codec.encode_all((message, message)), "here") == (message, message)
    assert len({kind.__struct_config__.tag for kind in union.__args__}) == len(union.__args__)


def test_structs_that_cannot_be_told_apart_are_refused() -> None:
    """A union of structs without tags is refused when the journal is opened, and not when it is read."""
    with pytest.raises(OptionError, match="event_type"):
        Codec(Packet | Job, "event")


def test_other_messages_of_the_contract_are_kept(tmp_path: Path) -> None:
    """One step may hold all that a site is told at an instant, of its users and of the grid."""
    job = Job(job_id=1, width=2, estimate_ms=5)
    events = (
        SiteRestarted(),
        JobSubmitted(job),
        ReserveNodes(1, 1, 2, 100, None),
        EnqueueJob(job, 3, 500),
        RenewLeases(7),
        DrainSite(),
        FragmentsMet(1, 2),
        CancelJob(1, 2),
        RequestQuote(1, 2, 3),
        ReservationRequested(1, 2, 3, 4),
    )
    with Journal(tmp_path / "site.journal", event_type=ContractEvent) as journal:
        with journal.step() as step:
            step.input(3, events)
        assert [entry.events for entry in journal.inputs()] == [events]
    grid = Codec(GridEvent, "event")
    told = (GridJobSubmitted(job, 0.5), FromSite(3, Ended(1, 2, 3, "lost")))
    assert grid.decode_all(grid.encode_all(told), "here") == told


def restored(state: ChannelState) -> Channel:
    """Return the end of a connection as it was kept; what is unacknowledged is sent again."""
    channel = Channel(100)
    channel._first, channel._received = state.first, state.received
    channel._unacknowledged = list(state.unacknowledged)
    channel._unsent = len(state.unacknowledged)
    return channel


@pytest.mark.parametrize("seed", range(8))
def test_channels_go_on_where_they_stood(tmp_path: Path, seed: int) -> None:
    """Over failures of one end, and of the network, every message arrives once and in order."""
    rng = np.random.default_rng(seed)
    place = tmp_path / "site.journal"
    kinds: dict[str, Any] = {"event_type": ContractEvent, "message_type": Answer}
    journal = Journal(place, **kinds)
    here, there = Channel(100), Channel(100)
    heard: list[int] = []
    said = told = now_ms = 0
    while (len(heard), told) != (40, 40) or journal.sequence < 40:
        now_ms += 60
        if said < 40:
            there.send(JobFinished(said))
            said += 1
        packet = there.packet(now_ms)
        with journal.step() as step:
            if packet is not None and rng.random() < 0.8:
                step.acknowledged("grid", packet.received)
                for message in here.receive(now_ms, packet):
                    step.received("grid")
                    step.input(now_ms, (message,))
            if told < 40:
                here.send(Reserved(told, 1))
                step.sent("grid", Reserved(told, 1))
                told += 1
        journal.flush()
        if rng.random() < 0.2:
            journal.close()
            journal = Journal(place, **kinds)
            here = restored(journal.channel("grid"))
        answer = here.packet(now_ms)
        if answer is not None and rng.random() < 0.8:
            heard += [message.job_id for message in there.receive(now_ms, answer)]
    assert heard == list(range(40))
    assert [entry.events for entry in journal.inputs()] == [(JobFinished(number),) for number in range(40)]
    journal.close()


def test_what_is_acknowledged_is_kept_no_longer(tmp_path: Path) -> None:
    """Messages are kept until they are acknowledged, per peer, also within one batch."""
    place = tmp_path / "site.journal"
    journal = Journal(place, event_type=ContractEvent, message_type=Answer)
    with journal.step() as step:
        step.sent("grid", *(Reserved(number, 1) for number in range(5)))
        step.sent("other", Reserved(9, 9))
        step.acknowledged("grid", 2)
    journal.flush()
    with journal.step() as step:
        step.acknowledged("grid", 4)
        step.acknowledged("grid", 3)
        step.received("grid", 7)
    journal.close()
    journal = Journal(place, event_type=ContractEvent, message_type=Answer)
    assert journal.peers() == ["grid", "other"]
    assert journal.channel("grid") == ChannelState(4, (Reserved(4, 1),), 7)
    assert journal.channel("nobody") == ChannelState()
    with (
        pytest.raises(InputError, match="grid has received 6 messages, but this journal has sent 5"),
        journal.step() as step,
    ):
        step.acknowledged("grid", 6)
    journal.close()
