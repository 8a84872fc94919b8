"""The ring all-reduce of the examples: its sums, what goes wrong, and the program on two sites of a real grid."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import gridweave
from gridweave.grid.api import SiteInfo
from gridweave.site.job import Traffic
from support.live_grids import GridBehindGateway
from support.machine import PATIENCE_S, until, unused_port

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    """Return a program of the examples as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


ring = example("ring_allreduce")
two_sites = example("ring_two_sites")


def places(size: int, sites: str = "") -> list[Any]:
    """Return the places of some ranks, each on the site of its letter."""
    meeting = f"127.0.0.1:{unused_port()}"
    letters = sites or "a" * size
    return [ring.Place(rank, size, letters[rank], meeting, "7.1", "a key") for rank in range(size)]


def together(ranks: list[Any], work: Callable[[Any], Any], **options: Any) -> list[Any]:
    """Have each rank do some work with its ring, in threads; return what comes of each, or its error."""
    found: list[Any] = [None] * len(ranks)

    def of_rank(number: int) -> None:
        try:
            one = ring.join(ranks[number], **({"timeout_s": PATIENCE_S} | options))
            try:
                found[number] = work(one)
            finally:
                one.close()
        except ring.RingError as error:
            found[number] = error

    threads = [threading.Thread(target=of_rank, args=(number,)) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("elements", [0, 1, 4, 1_003])
def test_sums_are_exact(size: int, elements: int) -> None:
    """All ranks end with the sums of what each has brought, however few the numbers or uneven the parts."""
    vectors = [[(rank + 2) * number**2 - 5 for number in range(elements)] for rank in range(size)]

    def work(one: Any) -> list[int]:
        vector = array("q", vectors[one.place.rank])
        one.all_reduce(vector)
        return vector.tolist()

    wanted = [sum(column) for column in zip(*vectors, strict=True)]
    assert together(places(size), work) == [wanted] * size


def test_large_parts_need_no_buffer() -> None:
    """Parts far larger than what sockets hold go around: nobody waits for a neighbour that waits for it."""
    elements = 3_000_000

    def work(one: Any) -> bool:
        vector = ring.vector_of(one.place.rank, 5, elements)
        one.all_reduce(vector)
        return bool(vector == ring.sum_of(2, 5, elements))

    assert together(places(2), work) == [True, True]


def test_the_sum_is_known_beforehand() -> None:
    """What must come out is the sum of what the ranks bring, and differs from iteration to iteration."""
    for iteration in (0, 3):
        columns = zip(*(ring.vector_of(rank, iteration, 6) for rank in range(4)), strict=True)
        assert [sum(column) for column in columns] == ring.sum_of(4, iteration, 6).tolist()
    assert ring.sum_of(4, 0, 6) != ring.sum_of(4, 1, 6)


@pytest.mark.parametrize("size", [1, 3])
def test_rank_0_reports(size: int) -> None:
    """Rank 0 says what was done and how long it took, the others nothing."""
    reports = together(places(size, "aab"[:size]), lambda one: ring.run(one, elements=50, iterations=3, rounds=10))
    told = reports[0]
    assert reports[1:] == [None] * (size - 1)
    assert (told["ranks"], told["exact"], told["elements"]) == (size, True, 50)
    assert told["sites"] == ["a", "b"][: 1 + (size > 1)]
    assert len(told["iteration_s"]) == len(told["computation_s"]) == len(told["communication_s"]) == 3
    for whole, computed, sent in zip(told["iteration_s"], told["computation_s"], told["communication_s"], strict=True):
        assert whole + 1e-5 >= computed + sent
    assert (told["in_exchanges"] > 0) == (told["part_exchange_ms"] > 0) == (size > 1)


def test_a_wrong_sum_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is wrong ends a rank with an error that names the iteration."""
    right = ring.sum_of

    def wrong(size: int, iteration: int, elements: int) -> array[int]:
        found = right(size, iteration, elements)
        found[7] += iteration == 2
        return array("q", found)

    monkeypatch.setattr(ring, "sum_of", wrong)
    found = together(places(2), lambda one: ring.run(one, elements=20, iterations=4, rounds=1))
    assert [str(error) for error in found] == ["iteration 2: the sum is wrong"] * 2


def test_a_link_that_is_not_there_holds_back() -> None:
    """With a stand-in an exchange takes the time of the link where it crosses sites, and none within one."""
    apart = together(places(2, "ab"), lambda one: one.probe_ms(1_000), stand_in=ring.StandIn(4.0, 1.0))
    assert min(apart) >= 12.0  # 4 ms, and 8,000 bits at 1 Mbit/s
    line = ring.StandIn(4.0, 1.0)
    assert [line.arrival_s(1_000, sent_s) for sent_s in (1.0, 1.001, 2.0)] == pytest.approx([1.012, 1.020, 2.012])
    same = together(places(2, "aa"), lambda one: one._held_back, stand_in=ring.StandIn(4.0, 1.0))
    assert same == [None, None]


def test_a_rank_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rank does not connect in time, the other ranks end with an error that names it."""
    accept = ring._accept

    def accept_in_time(place: Any, listener: socket.socket, until: float, missing: str, **options: Any) -> Any:
        is_over = missing.endswith("missing: 2")  # the time is over once rank 1 has connected
        return accept(place, listener, 0.0 if is_over else until, missing, **options)

    monkeypatch.setattr(ring, "_accept", accept_in_time)
    found = together(places(3)[:2], lambda one: None)
    assert "are missing: 2" in str(found[0])
    assert "rank 0 has not gathered all ranks" in str(found[1])


def test_rank_0_that_comes_last() -> None:
    """Ranks that are at the rendezvous before anybody listens there try again until rank 0 is there."""
    ranks = places(3)
    late = threading.Event()
    refused = socket.create_connection

    def counted(*arguments: Any, **options: Any) -> socket.socket:
        try:
            return refused(*arguments, **options)
        except OSError:
            late.set()
            raise

    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring.socket, "create_connection", counted)
        first = threading.Thread(target=lambda: found.extend(together(ranks[1:], lambda one: one.all_gather({}))))
        first.start()
        assert late.wait(PATIENCE_S)
        found += together(ranks[:1], lambda one: one.all_gather({}))
        first.join(PATIENCE_S)
    assert found == [[{}, {}, {}]] * 3


def test_strangers_at_the_rendezvous() -> None:
    """Whoever is no rank of this job is let go of, whatever it says, and keeps nobody from meeting."""
    ranks = places(2)
    port = int(ranks[0].rendezvous.rpartition(":")[2])
    strangers = [b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b'{"job": "8.1", "rank": 1}\n', b'{"job": "7.1", "rank": "x"}\n']
    found: list[Any] = []
    meeting = threading.Thread(target=lambda: found.extend(together(ranks[:1], lambda one: one.all_gather({}))))
    meeting.start()
    for says in strangers:
        with ring._reach(("127.0.0.1", port), "rank 0", ring.time.monotonic() + PATIENCE_S) as stranger:
            stranger.sendall(says)
            stranger.settimeout(PATIENCE_S)
            with suppress(ConnectionResetError):
                while stranger.recv(4096):  # it is asked for the key first
                    pass
    found += together(ranks[1:], lambda one: one.all_gather({}))
    meeting.join(PATIENCE_S)
    assert found == [[{}, {}]] * 2


def test_a_rank_without_the_key_is_none_of_the_job() -> None:
    """It refuses the rank 0 that it finds, which refuses it, too, and goes on waiting for its own rank 1."""
    ranks = places(2)
    stranger = ring.Place(1, 2, "a", ranks[0].rendezvous, "7.1", "another key")
    found: list[Any] = []
    meeting = threading.Thread(target=lambda: found.extend(together(ranks[:1], lambda one: one.all_gather({}))))
    meeting.start()
    (refused,) = together([stranger], lambda one: one.all_gather({}))
    assert str(refused).startswith("the other end does not belong to job 7.1")
    found += together(ranks[1:], lambda one: one.all_gather({}))
    meeting.join(PATIENCE_S)
    assert found == [[{}, {}]] * 2


def test_a_neighbour_that_leaves() -> None:
    """When a rank ends in the midst of it, its neighbours end with an error, and so do theirs."""

    def work(one: Any) -> None:
        for _ in range(1_000):
            if one.place.rank == 2:
                return
            one.exchange(b"x" * 1_000)

    found = together(places(4), work)
    assert found[2] is None
    assert all(isinstance(found[rank], ring.RingError) and "is gone" in str(found[rank]) for rank in (0, 1, 3))


def test_a_neighbour_that_is_silent() -> None:
    """A rank that sends nothing more, but does not close, is not waited for forever."""
    done = threading.Event()

    def work(one: Any) -> None:
        if one.place.rank == 1:
            done.wait(PATIENCE_S)
            return
        one._timeout_s = 1.0
        try:
            one.exchange(b"")
        finally:
            done.set()

    found = together(places(2), work)
    assert "silent for 1 s" in str(found[0])


@contextmanager
def processes(size: int, *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield the ranks as processes with the environment that gridweave gives them; those that run are killed."""
    meeting = f"127.0.0.1:{unused_port()}"
    common = {"GRIDWEAVE_SIZE": str(size), "GRIDWEAVE_RENDEZVOUS": meeting, "GRIDWEAVE_JOB_ID": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLES / "ring_allreduce.py"), *options],
            env=os.environ | common | {"GRIDWEAVE_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_ranks_as_processes() -> None:
    """Processes with the environment of ranks find each other; rank 0 prints one line, the others none."""
    with processes(3, "--elements=10", "--iterations=2", "--rounds=1") as ranks:
        said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert json.loads(said[0][0])["ranks"] == 3
    assert said[1:] == [("", "")] * 2


def has_closed_the_ring(pid: int) -> bool:
    """Whether a rank is connected to its neighbours, and no longer listens for others."""
    return [one.status for one in psutil.Process(pid).net_connections("tcp")] == ["ESTABLISHED"] * 2


def test_a_rank_that_is_killed() -> None:
    """After kill -9 of a rank the others end with status 1 and one line that says who is gone."""
    with processes(3, "--elements=1000", "--iterations=1000000", "--rounds=1") as ranks:
        until(lambda: all(has_closed_the_ring(rank.pid) for rank in ranks))
        ranks[1].kill()
        said = [ranks[rank].communicate(timeout=PATIENCE_S)[1] for rank in (0, 2)]
        assert [ranks[0].returncode, ranks[2].returncode] == [1, 1]
    assert all("is gone" in text and len(text.splitlines()) == 1 for text in said)


@pytest.mark.parametrize(
    "bad",
    [
        ("--stand-in", "5"),
        ("--stand-in", "5,0"),
        ("--stand-in", "1,2,x"),
        ("--stand-in", "nan,1"),
        ("--iterations", "-1"),
    ],
)
def test_bad_options(bad: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that makes no sense ends with status 2 before anything is done."""
    with pytest.raises(SystemExit) as ended:
        ring.main(bad)
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err


def test_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gridweave there is one rank, which meets nobody."""
    for name in [name for name in os.environ if name.startswith("GRIDWEAVE_")]:
        monkeypatch.delenv(name)
    assert ring.main(["--elements=10", "--iterations=1", "--rounds=1"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 1


def test_no_rendezvous(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks without an address to meet at are told what is missing."""
    monkeypatch.setenv("GRIDWEAVE_SIZE", "2")
    monkeypatch.setenv("GRIDWEAVE_RENDEZVOUS", "")
    assert ring.main([]) == 1
    assert "need one as host:port" in capsys.readouterr().err


# -- on one site and on two -------------------------------------------------------------------------------------------


def site(name: str, free: int) -> SiteInfo:
    """Return a site with so many free nodes."""
    return SiteInfo(name=name, nodes=8, for_grid=8, free=free)


def test_which_sites() -> None:
    """The job goes to the sites with the most free nodes, or to those that are named; halves may differ by one."""
    sites = [site("a", 2), site("b", 5), site("c", 8)]
    assert two_sites.chosen_sites(sites, 5, []) == {"c": 2, "b": 3}
    assert two_sites.chosen_sites(sites, 4, ["b", "a"]) == {"b": 2, "a": 2}
    with pytest.raises(gridweave.InputError, match="free are: a 2, b 5, c 8"):
        two_sites.chosen_sites(sites, 9, [])
    with pytest.raises(gridweave.InputError, match="'x' is not one of a, b, c"):
        two_sites.chosen_sites(sites, 2, ["x", "a"])
    with pytest.raises(gridweave.InputError, match="1 ranks"):
        two_sites.chosen_sites(sites, 1, [])
    with pytest.raises(gridweave.InputError, match="4 ranks need a site with 4 free nodes, and another with 2"):
        two_sites.chosen_sites(sites, 4, ["c", "c"])


def test_the_forecast_by_timed_links() -> None:
    """Of four ranks in halves two connections cross: netmodel's forecast is their mean, worked out by hand."""
    traffic = Traffic(pattern="ring", fraction=0.1, message_bytes=50_000)
    links = two_sites.Links(local_ms=0.1, local_bps=8e9, latency_ms=5.0, bandwidth_bps=8e8)
    within, across = 0.1 + 0.1, 0.1 + 5.0 + 1.0  # 100,000 bytes at 8 Gbit/s; at 800 Mbit/s
    wanted = 1 + 0.1 * ((within + across) / 2 / within - 1)
    assert two_sites.model_factor(traffic, links, [2, 2]) == pytest.approx(wanted)


@pytest.mark.slow
def test_on_a_real_grid(tmp_path: Path) -> None:
    """On real sites the ring runs on one and on two, its sums are exact, and a link that stands between costs time."""
    options = ["--elements=1000", "--iterations=5", "--rounds=2000", "--stand-in=20,1000"]
    with (
        GridBehindGateway(tmp_path, (("alpha", (2, 2)), ("beta", (4,)))) as grid,
        gridweave.SyncClient(grid.url) as client,
    ):
        found = two_sites.compare(client, ranks=4, sites=[], options=options)
        left = [record for own in ("", "alpha", "beta") for record in client.jobs(own=own) if record.state != "ended"]
    one, two = found["one_site"], found["two_sites"]
    assert one["exact"]
    assert two["exact"]
    assert one["places"] == "alpha 4"
    assert two["places"] == "alpha 2 + beta 2"
    assert two["sites"] == ["alpha", "beta"]
    assert left == []
    # Three of the six exchanges of an iteration wait for the link, but for what was sent before rank 0 began.
    assert two["median_s"] > 0.03
    assert found["links"]["latency_ms"] > 15
    assert found["overhead"]["forecast_by_timed_links"] > 0
    assert found["overhead"]["forecast_by_grid"] == 0  # this grid knows of no links, and of no overhead
    two_sites.print_report(found)


def test_no_grid(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no grid can be named the command says so in one line."""
    assert two_sites.main(["--url", "nonsense"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_rendezvous_is_met_at_any_address_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's name may stand for an address in a network that other sites are not in, as in docker-compose.yml."""
    monkeypatch.setattr(ring.socket, "getaddrinfo", lambda host, port: [(0, 0, 0, "", ("192.0.2.1", 0))])
    with ring._listen(("alpha", unused_port())) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    with ring._listen(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
