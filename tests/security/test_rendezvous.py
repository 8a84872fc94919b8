"""Where the ranks of a job meet nobody else listens, and they know each other by a key."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gridweave.errors import UnavailableError
from gridweave.site.allocation import Ports
from gridweave.site.launch import Launch, Meeting, Rank, meeting_of
from gridweave.site.machine import environment
from gridweave.site.machine.environment import SOCKET_VARIABLE, hold_meeting, rank_environment
from gridweave.site.messages import Machine
from support.machine import unused_port

if TYPE_CHECKING:
    from conftest import Place

# What a job does with the socket that it was given, and what it does without.
TAKES = f"""
import os, socket
held = socket.socket(fileno=int(os.environ['{SOCKET_VARIABLE}']))
port = int(os.environ['MASTER_PORT'])
assert held.getsockname()[1] == port
other = socket.create_connection(('127.0.0.1', port))
held.accept()[0].send(b'met')
print(other.recv(3).decode(), len(os.environ['GRIDWEAVE_RENDEZVOUS_KEY']))
"""
BINDS = """
import os, socket
held = socket.create_server(('', int(os.environ['MASTER_PORT'])))
other = socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT'])))
held.accept()[0].send(b'met')
print(other.recv(3).decode(), len(os.environ['GRIDWEAVE_RENDEZVOUS_KEY']))
"""
SEIZES = """
import socket
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        one.bind(('', {port}))
        one.listen()
        print('GOT')
    except OSError:
        print('held')
    one.close()
"""


@pytest.fixture
def port() -> int:
    """Return a port that nobody has."""
    return unused_port()


@contextlib.contextmanager
def seized(port: int) -> Iterator[None]:
    """Have another program listen at a port."""
    with socket.create_server(("", port)):
        yield


def launch(port: int, *, ranks: int = 1, size: int | None = None, handed: bool = False) -> Launch:
    """Return the piece with rank 0 of a job."""
    return Launch(
        job_id=1,
        attempt=1,
        ranks=tuple(map(Rank, range(ranks))),
        size=size,
        argv=("true",),
        rendezvous=Meeting("5ec7e7", "127.0.0.1", port).text,
        environment={SOCKET_VARIABLE: "yes"} if handed else {},
    )


@pytest.mark.parametrize(("script", "more"), [(TAKES, {SOCKET_VARIABLE: "yes"}), (BINDS, {})])
def test_ranks_meet_at_the_port_that_was_held_for_them(
    place: Place, port: int, script: str, more: dict[str, str]
) -> None:
    """Rank 0 of a user's job gets the socket if the job wants it; otherwise it binds the port by itself."""
    rendezvous = Meeting("5ec7e7", "127.0.0.1", port).text
    _, _, said = place.run("alice", "/usr/bin/python3", "-c", script, rendezvous=rendezvous, environment=more)
    assert said == "met 6\n"


def test_nobody_takes_a_port_that_is_held(place: Place, port: int) -> None:
    """Not as another user, nor by the options that let programs share a port."""
    for handed in (True, False):
        held, _ = hold_meeting(launch(port, handed=handed))
        assert held is not None
        with held:
            said = place.run("alice", "/usr/bin/python3", "-c", SEIZES.format(port=port))[2]
        assert said.split() == ["held", "held"]


def test_nobody_is_let_in_before_rank_0_is_there(port: int) -> None:
    """A rank that comes too early is neither taken for a friend nor cut off: its packets are dropped."""
    held, _ = hold_meeting(launch(port))
    assert held is not None
    with held, socket.socket() as early:
        early.setblocking(False)
        with pytest.raises(BlockingIOError):
            early.connect(("127.0.0.1", port))
        held.setblocking(False)
        with pytest.raises(BlockingIOError):
            held.accept()


def test_a_job_on_one_machine_gets_another_port_for_one_that_is_taken(port: int) -> None:
    """All of its ranks are told that one."""
    with seized(port):
        held, found = hold_meeting(launch(port, ranks=2))
    meeting = meeting_of(found.rendezvous)
    assert held is not None
    assert meeting is not None
    assert meeting.port == held.getsockname()[1] != port
    assert meeting.key == "5ec7e7"
    held.close()


def test_a_job_on_several_machines_does_not_start_where_its_port_is_taken(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other ranks would take whoever listens there for rank 0."""
    monkeypatch.setattr(environment, "_PORT_S", 0.0)
    with (
        seized(port),
        pytest.raises(UnavailableError, match=f"another program listens on port {port}"),
    ):
        hold_meeting(launch(port, ranks=1, size=2))


def test_only_the_machine_of_rank_0_holds_the_port(port: int) -> None:
    """All others go there."""
    there = Launch(job_id=1, attempt=1, ranks=(Rank(1),), size=2, argv=("true",), rendezvous=f"127.0.0.1:{port}")
    assert hold_meeting(there) == (None, there)


def test_the_key_is_that_of_the_attempt_alone() -> None:
    """No two attempts have the same key, and none can be computed without the secret; the state brings them back."""
    ports = Ports([Machine(name="n0", nodes=4, ports=(2000, 2010))])
    ports.reached_by("n0", "north", "a secret")
    keys = {}
    for job_id, attempt in ((1, 1), (1, 2), (2, 1)):
        port = ports.take("n0", job_id, attempt)
        ports.give(port)
        meeting = meeting_of(port.meeting)
        assert meeting is not None
        assert (meeting.place, len(meeting.key)) == ("north:2000", 32)
        keys[job_id, attempt] = meeting.key
    assert len(set(keys.values())) == 3
    again = Ports([Machine(name="n0", nodes=4, ports=(2000, 2010))])
    again.restore(*ports.state())
    assert again.take("n0", 1, 2).meeting.partition("@")[0] == keys[1, 2]
    ports.reached_by("n0", "north", "another secret")
    assert ports.take("n0", 1, 2).meeting.partition("@")[0] != keys[1, 2]


def test_the_environment_has_the_key_beside_the_place(port: int) -> None:
    """What programs read as an address is one; a job cannot say which descriptor it gets."""
    for handed in (True, False):
        there = rank_environment(launch(port, handed=handed), Path("/folder"), Rank(0), 0, "token", {})
        assert there["GRIDWEAVE_RENDEZVOUS"] == f"127.0.0.1:{port}"
        assert there["GRIDWEAVE_RENDEZVOUS_KEY"] == "5ec7e7"
        assert there.get(SOCKET_VARIABLE) == ("3" if handed else None)
    other = rank_environment(launch(port, ranks=2, handed=True), Path("/folder"), Rank(1), 1, "token", {})
    assert SOCKET_VARIABLE not in other
