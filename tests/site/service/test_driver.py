"""The driver of a core: nothing is seen before it is durable, and nothing that comes in can take it down."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.site.channel import Packet
from gridweave.site.job import Accepted, Declined, DescribeJob, Job, JobRequest, Program
from gridweave.site.journal import journal as journal_module
from gridweave.site.launch import Used
from gridweave.site.messages import (
    ENCODER,
    ORDERS,
    EnqueueJob,
    Machine,
    MachineJoined,
    Order,
    RequestQuote,
    ReserveNodes,
    RunEnded,
    RunStarted,
    StartRun,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service import driver as driver_module
from gridweave.site.service.site_driver import GRID, SiteDriver
from support.machine import PATIENCE_S

SETTINGS = SiteSettings(name="north", number=0, machines=(Machine(name="n0", nodes=4),), policy=SitePolicy())
FIRST = 1_000_000_000_001


class StoppedClock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.ms = 1000

    def now_ms(self) -> int:
        """Return what it shows."""
        return self.ms

    def real_ms(self, span_ms: float) -> int:
        """Return how long a span takes."""
        return int(span_ms)


class Wires:
    """What a driver has sent, to the grid and to machines."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.orders: list[tuple[str, bytes]] = []
        self.refusal: str | None = None

    async def to_grid(self, _peer: str, data: bytes) -> str | None:
        """Keep a packet, and answer as the grid does."""
        self.packets.append(data)
        return self.refusal

    async def to_machine(self, agent: str, data: bytes) -> None:
        """Keep orders."""
        self.orders.append((agent, data))

    @property
    def kinds(self) -> list[str]:
        """The kinds of messages that went to the grid."""
        sent = [message for data in self.packets for message in msgspec.msgpack.decode(data)["messages"]]
        return [message["type"] for message in sent]


class Life:
    """A driver, what it has sent, and its clock."""

    def __init__(self, place: Path, clock: StoppedClock | None = None, **options: Any) -> None:
        self.wires, self.clock = Wires(), clock or StoppedClock()
        shown: Any = self.clock
        doors = {"to_grid": self.wires.to_grid, "to_machine": self.wires.to_machine}
        self.driver = SiteDriver(SETTINGS, place, shown, **doors, **options)

    async def turn(self) -> None:
        """Take a turn, and let what it sends go out."""
        await self.driver.turn()
        for _ in range(3):
            await asyncio.sleep(0)

    async def submit(self, *requests: tuple[str, JobRequest]) -> list[Any]:
        """Hand in jobs, and take the turn that answers."""
        waiting = asyncio.ensure_future(self.driver.submit(requests))
        await asyncio.sleep(0)
        await self.turn()
        return await waiting

    def kill(self) -> None:
        """Let it die: nothing more is written, and the lock of its journal falls with it."""
        self.driver.journal._store.close()


def request(nodes: int = 1, **more: Any) -> JobRequest:
    """Return a request for a job."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1000, **more)


def packet(first: int, *messages: Any, received: int = 0) -> bytes:
    """Return what the grid sends."""
    return msgspec.msgpack.encode(Packet(first, messages, received))


def described(job_id: int, *, attempt: int = 1, width: int = 1) -> tuple[DescribeJob, ReserveNodes]:
    """Return what the grid says to start a job at once."""
    return (
        DescribeJob(job_id, attempt, request(width), 1000, 0, width, ("north",)),
        ReserveNodes(job_id, attempt, width, 1000),
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where the journal is."""
    return tmp_path / "north.journal"


def blocked_flush(life: Life, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have the next flush wait for an event."""
    go, flush = threading.Event(), life.driver.journal.flush

    def waits() -> int:
        assert go.wait(PATIENCE_S)
        return flush()

    monkeypatch.setattr(life.driver.journal, "flush", waits)
    return go


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [kind for kind in get_args(Order) if kind is not StartRun])
async def test_an_order_goes_to_its_machine_at_once(place: Path, kind: Any) -> None:
    """What is decided is told when it is decided, whatever kind of order it is, not when all is told again."""
    life = Life(place)
    values = {"machine": "n0", "job_id": FIRST, "attempt": 1, "reason": "", "runs": False, "signal": "USR1"}
    order = kind(**{name: value for name, value in values.items() if name in kind.__struct_fields__})
    life.driver.act([order])
    await life.turn()
    assert [(machine, ORDERS.decode(data)) for machine, data in life.wires.orders] == [("n0", [order])]


@pytest.mark.asyncio
async def test_nothing_is_seen_before_it_is_durable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal writes there is no answer, no order and no packet, not even one that is repeated."""
    life = Life(place)
    go = blocked_flush(life, monkeypatch)
    answer = asyncio.ensure_future(life.driver.submit([("key", request())]))
    await asyncio.sleep(0)
    turn = asyncio.ensure_future(life.turn())
    while not life.driver.journal.pending:
        await asyncio.sleep(0)
    life.driver.packet(GRID, packet(0, RequestQuote(1, 1, 100)))
    repeating = asyncio.ensure_future(life.driver.repeat_orders())
    shown = asyncio.ensure_future(life.driver.durable())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answer.done()
    assert not shown.done()
    assert (life.wires.orders, life.wires.packets) == ([], [])
    go.set()
    await turn
    assert await answer == [Accepted("key", FIRST)]
    await shown
    assert [agent for agent, _ in life.wires.orders] == ["n0"]
    assert life.wires.kinds == ["SiteChanged"]
    repeating.cancel()
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_turn_needs_no_thread_where_the_disk_was_quick(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first flush a job is answered, durably, without waiting for a thread."""
    monkeypatch.setattr(journal_module, "QUICK_S", 3600.0)
    life = Life(place)
    await life.submit(("first", request()))
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", None)
        assert await life.submit(("second", request())) == [Accepted("second", FIRST + 1)]
    life.kill()
    life = Life(place)
    assert await life.submit(("second", request())) == [Accepted("second", FIRST + 1)]
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_flush_that_fails_is_tried_until_it_does_not(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk delays a job, and loses none."""
    monkeypatch.setattr(driver_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(driver_module, "_LONGEST_PAUSE_S", 0.0)
    life = Life(place)
    flush, failures = life.driver.journal.flush, [UnavailableError("the disk is full")] * 3

    def fails() -> int:
        if failures:
            raise failures.pop()
        return flush()

    monkeypatch.setattr(life.driver.journal, "flush", fails)
    assert await life.submit(("key", request())) == [Accepted("key", FIRST)]
    assert failures == []
    await life.driver.close()


@pytest.mark.asyncio
async def test_whoever_asks_hears_why_a_journal_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests fail at once while the disk stays full; earlier submissions are answered once there is space again."""
    life, is_full = Life(place), True
    flush = life.driver.journal.flush

    def fails() -> int:
        if is_full:
            raise UnavailableError("the disk is full")
        return flush()

    monkeypatch.setattr(life.driver.journal, "flush", fails)
    first = asyncio.ensure_future(life.driver.submit([("first", request())]))
    await asyncio.sleep(0)
    monkeypatch.setattr(driver_module, "_STUCK_PAUSE_S", 0.0)
    monkeypatch.setattr(driver_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(driver_module, "_LONGEST_PAUSE_S", 0.0)
    turn = asyncio.ensure_future(life.turn())
    while not life.driver.problem:
        await asyncio.sleep(0)
    for question in (life.driver.durable(), life.driver.submit([("other", request())])):
        with pytest.raises(UnavailableError, match=r"site north is stuck: .* written: the disk is full"):
            await question
    is_full = False
    await turn
    assert await first == [Accepted("first", FIRST)]
    assert life.driver.problem == ""
    await life.driver.durable()
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_site_that_lost_its_journal_says_so(place: Path) -> None:
    """It exchanges nothing with the grid from then on, says how to go on, and takes jobs of its own users."""
    life = Life(place)
    refusal = life.driver.packet(GRID, packet(0, *described(1), received=99))
    assert refusal is not None
    assert "acknowledges 99 messages, but site north has sent 0: it lost its journal" in refusal
    assert "start over at both ends" in refusal
    assert life.driver.peer_problem(GRID) == refusal
    assert life.driver.packet(GRID, packet(0, *described(1))) == refusal
    assert await life.submit(("key", request())) == [Accepted("key", FIRST)]
    assert (life.wires.packets, life.driver.problem) == ([], "")
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_site_says_that_the_grid_refuses_its_messages(place: Path) -> None:
    """The end that has its journal says what the other one answers, until that takes its messages."""
    life = Life(place)
    life.wires.refusal = "the grid lost its journal"
    life.driver.packet(GRID, packet(0, RequestQuote(1, 1, 100)))
    await life.turn()
    assert life.driver.peer_problem(GRID) == "the grid lost its journal"
    life.wires.refusal = None
    life.driver.packet(GRID, packet(1, RequestQuote(2, 1, 100)))
    await life.turn()
    assert (len(life.wires.packets), life.driver.peer_problem(GRID)) == (2, "")
    await life.driver.close()


@pytest.mark.asyncio
async def test_one_that_was_replaced_stops_and_says_so_to_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process has become the writer nobody is left without an answer, and nothing more is taken in."""
    life = Life(place)

    def replaced() -> int:
        life.driver.journal._is_replaced = True
        raise UnavailableError("another process has become its writer")

    monkeypatch.setattr(life.driver.journal, "flush", replaced)
    answer = asyncio.ensure_future(life.driver.submit([("key", request())]))
    told = asyncio.ensure_future(life.driver.apply(MachineJoined("n0", "here")))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="another process"):
        await life.driver.turn()
    for waiting in (answer, told, life.driver.submit([("other", request())]), life.driver.turn()):
        with pytest.raises(UnavailableError, match="has stopped"):
            await waiting
    assert (life.wires.orders, life.wires.packets) == ([], [])
    life.kill()


@pytest.mark.asyncio
async def test_a_key_gets_its_first_answer_for_ever(place: Path) -> None:
    """A job that is handed in again, in the same turn, later, or after a kill, is the same job."""
    life = Life(place)
    assert await life.submit(("key", request()), ("key", request(2))) == [Accepted("key", FIRST)] * 2
    assert await life.submit(("key", request(3)), ("new", request())) == [
        Accepted("key", FIRST),
        Accepted("new", FIRST + 1),
    ]
    life.kill()
    life = Life(place)
    assert await life.submit(("key", request()), ("newer", request())) == [
        Accepted("key", FIRST),
        Accepted("newer", FIRST + 2),
    ]
    assert life.driver.site.registry.records[FIRST].request.nodes == 1
    await life.driver.close()


POISON: list[tuple[str, Any]] = [
    ("", request()),
    ("a\0b", request()),
    ("\ud800", request()),
    ("k" * 2000, request()),
    ("p0", msgspec.structs.replace(request(), nodes="many")),
    ("p1", msgspec.structs.replace(request(), limit_ms=10**400)),
    ("p2", msgspec.structs.replace(request(), user="\ud800")),
    ("p3", request(sensitivity=float("nan"))),
    ("p4", JobRequest(program=Program(), limit_ms=1)),
    ("p5", request(5)),
    ("p6", msgspec.structs.replace(request(), program=None)),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("poison", POISON, ids=[str(number) for number in range(len(POISON))])
async def test_what_cannot_be_is_declined_and_harms_nothing_else(place: Path, poison: tuple[str, Any]) -> None:
    """A request or a key that is none is declined with a reason; what came with it is taken in, and outlasts a kill."""
    life = Life(place)
    life.driver.packet(GRID, packet(0, *described(7)))
    answers = await life.submit(("good", request()), poison, ("also", request(2)))
    assert [type(answer) for answer in answers] == [Accepted, Declined, Accepted]
    assert answers[1].reason
    assert "\n" not in answers[1].reason
    assert "Started" in life.wires.kinds
    life.kill()
    again = Life(place)
    assert [record.state for record in again.driver.site.registry.records.values()] == ["starting", "waiting"] or [
        record.state for record in again.driver.site.registry.records.values()
    ] == ["starting", "starting"]
    assert again.driver.journal.channel(GRID).received == 2
    await again.driver.close()


@pytest.mark.asyncio
async def test_packets_that_are_none_change_nothing(place: Path) -> None:
    """Garbage and a packet with a gap are passed over."""
    life = Life(place)
    deep = b"\x91" * 5000 + b"\xc0"
    for data in (b"", b"garbage", deep, msgspec.msgpack.encode({"first": 0}), packet(-3, *described(1))):
        life.driver.packet(GRID, data)
    life.driver.packet(GRID, packet(5, *described(1)))
    await life.turn()
    assert life.driver.journal.sequence == 0
    with pytest.raises(UnavailableError, match="no connection to 'nobody'"):
        life.driver.packet("nobody", packet(0))
    life.driver.packet(GRID, packet(0, *described(1)))
    await life.turn()
    assert "Started" in life.wires.kinds
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_channel_goes_on_after_a_kill(place: Path) -> None:
    """What was not acknowledged is sent again under its numbers; what was received comes in once."""
    life = Life(place)
    life.driver.packet(GRID, packet(0, *described(1)))
    await life.turn()
    sent = life.driver.journal.channel(GRID).unacknowledged
    assert sent
    life.kill()
    life = Life(place)
    assert life.driver.site.core.part_state(1) == "running"
    life.driver.packet(GRID, packet(0, *described(1)))
    await life.turn()
    again = msgspec.msgpack.decode(life.wires.packets[0])
    assert (again["first"], len(again["messages"]), again["received"]) == (0, len(sent), 2)
    assert life.driver.site.core.part_state(1) == "running"
    life.driver.packet(GRID, packet(2, received=len(sent)))
    await life.turn()
    assert life.driver._channels[GRID].sent == len(sent)
    await life.driver.close()


@pytest.mark.asyncio
async def test_an_acknowledgement_alone_is_written_with_what_comes_next(place: Path) -> None:
    """A packet that brings nothing new costs no transaction; what it acknowledges leaves the journal later."""
    life = Life(place)
    life.driver.packet(GRID, packet(0, *described(1)))
    await life.turn()
    durable = life.driver.journal.durable
    count = len(life.driver.journal.channel(GRID).unacknowledged)
    life.driver.packet(GRID, packet(2, received=count))
    await life.turn()
    assert life.driver.journal.durable == durable
    assert len(life.driver.journal.channel(GRID).unacknowledged) == count
    await life.submit(("key", request(4)))
    assert life.driver.journal.channel(GRID).first == count
    await life.driver.close()


@pytest.mark.asyncio
async def test_numbers_that_no_journal_holds_do_not_stop_a_site(place: Path) -> None:
    """A machine that says that a job used more than there is, or no number, ends the job all the same."""
    life = Life(place)
    await life.submit(("key", request()))
    used = Used(cpu_s=float("inf"), peak_memory_bytes=2**64 - 1, read_bytes=2**64 - 1, written_bytes=2**63)
    report = asyncio.ensure_future(
        life.driver.report(ENCODER.encode([RunEnded("n0", FIRST, 1, "finished", used=used)]))
    )
    await asyncio.sleep(0)
    await life.turn()
    await report
    assert life.driver.site.registry.records[FIRST].state == "ended"
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_replay_from_a_snapshot_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots hold what runs and waits; one is made however often the driver is started again."""
    monkeypatch.setattr(driver_module, "SNAPSHOT_EVERY", 3)
    where: list[int | None] = []
    for number in range(6):
        life = Life(place)
        where.append(life.driver.replayed.snapshot)
        await life.submit((f"key {number}", request(2)))
        life.clock.ms += 10
        await life.driver.turn()
        while life.driver._sending:  # a snapshot is compressed beside the turns
            await asyncio.sleep(0)
        await asyncio.to_thread(life.driver.journal.flush)
        life.kill()
    assert where[0] is None
    assert where[-1] is not None
    last = Life(place)
    assert [record.state for record in last.driver.site.registry.records.values()] == ["starting"] * 2 + ["waiting"] * 4
    last.driver.site.check_invariants()
    await last.driver.close()


@pytest.mark.asyncio
async def test_texts_that_are_only_equal_to_a_default_replay_alike(place: Path) -> None:
    """A request whose values were made at run time is decided on, after a kill, to the last byte as before."""
    made = "".join(["each", "-node"])
    program = Program(argv=["true"], ranks=made, if_lost="".join(["re", "queue"]))  # type: ignore[arg-type]
    life = Life(place)
    await life.submit(("key", JobRequest(program=program, nodes=1, limit_ms=1000, sensitivity=float("1.0"))))
    await asyncio.to_thread(life.driver.journal.flush)
    life.kill()
    again = Life(place)
    assert again.driver.replayed.inputs == 1
    await again.driver.close()


@pytest.mark.asyncio
async def test_reports_that_cannot_be_read_are_refused_in_one_line(place: Path) -> None:
    """Garbage from a machine is an error of the caller; the site goes on."""
    life = Life(place)
    for data in (b"", b"\xff" * 9, ENCODER.encode([{"type": "Nonsense"}])):
        with pytest.raises(InputError, match="site north: a report cannot be read"):
            await life.driver.report(data)
    assert await life.submit(("key", request())) == [Accepted("key", FIRST)]
    await life.driver.close()


def told(life: Life, *reports: Any) -> asyncio.Future[None]:
    """Have a machine tell something."""
    return asyncio.ensure_future(life.driver.report(ENCODER.encode(list(reports))))


@pytest.mark.asyncio
async def test_orders_are_repeated_until_they_are_confirmed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is ordered again until the machine says that it runs, after a kill as well; an end until it has ended."""
    life = Life(place)
    await life.submit(("key", request()))
    assert len(life.wires.orders) == 1
    life.kill()
    life = Life(place)
    life.driver._repeat({"n0"})
    await life.turn()
    (order,) = msgspec.msgpack.decode(life.wires.orders[-1][1], type=list[StartRun])
    assert (order.launch.job_id, order.launch.limit_ms) == (FIRST, 1000)
    heard = told(life, RunStarted("n0", FIRST, 1))
    await asyncio.sleep(0)
    await life.turn()
    await heard
    count = len(life.wires.orders)
    life.driver._repeat({"n0"})
    await life.turn()
    assert len(life.wires.orders) == count
    life.clock.ms += 2000
    for _ in range(2):
        life.driver._repeat({"n0"})
        await life.turn()
        assert msgspec.msgpack.decode(life.wires.orders[-1][1])[-1]["type"] == "EndRun"
    await life.driver.close()


@pytest.mark.asyncio
async def test_a_machine_that_comes_back_is_asked_what_it_runs(place: Path) -> None:
    """Once it is back a machine is asked of all that it had begun, and told to begin what it had not."""
    life = Life(place)
    await life.submit(("begun", request()), ("not begun", request()))
    for reports in ([RunStarted("n0", FIRST, 1)], [MachineJoined("n0", "there")]):
        heard = told(life, *reports)
        await asyncio.sleep(0)
        await life.turn()
        await heard
        await life.turn()
    orders = msgspec.msgpack.decode(life.wires.orders[-1][1])
    assert [order["type"] for order in orders] == ["ConfirmRun", "StartRun"]
    await life.driver.close()


def test_a_wait_that_cannot_be_ends_a_request_of_the_grid(place: Path) -> None:
    """A site that was told to queue what was not described refuses it, and lives."""
    life = Life(place)

    async def ask() -> None:
        life.driver.packet(GRID, packet(0, EnqueueJob(Job(job_id=5, width=1, estimate_ms=5), 1, 99)))
        await life.turn()
        await life.driver.close()

    asyncio.run(ask())
    assert life.wires.kinds == ["Refused"]


@pytest.mark.asyncio
async def test_history_is_kept_for_so_many_days(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a journal is compacted, what is older than the days that were said goes."""
    monkeypatch.setattr(driver_module, "SNAPSHOT_EVERY", 0)
    life = Life(place, history_days=3)
    before: list[int] = []
    monkeypatch.setattr(life.driver.journal, "forget_by_and_by", lambda before_ms, _open: before.append(before_ms))
    life.clock.ms = 10 * 86_400_000
    await life.submit(("key", request()))
    assert before == [7 * 86_400_000]
    life.kill()


@pytest.mark.asyncio
async def test_the_many_jobs_of_one_user_keep_no_other_waiting(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes in so many jobs at most, of each user about as many, in the order in which they came."""
    monkeypatch.setattr(driver_module, "MOST_SUBMISSIONS", 4)
    life = Life(place)
    flood = [(f"anna {number}", request(user="anna")) for number in range(7)]
    many = asyncio.ensure_future(life.driver.submit(flood))
    await asyncio.sleep(0)
    few = asyncio.ensure_future(life.driver.submit([("bert", request(user="bert"))]))
    await asyncio.sleep(0)
    await life.turn()
    assert (few.done(), many.done()) == (True, False)
    assert [record.request.user for record in life.driver.site.registry.records.values()] == ["anna"] * 3 + ["bert"]
    await life.turn()
    answers = await many
    assert [answer.key for answer in answers] == [key for key, _ in flood]
    assert [answer.job_id - FIRST for answer in answers] == [0, 1, 2, 4, 5, 6, 7]
    assert await few == [Accepted("bert", FIRST + 3)]
    await life.driver.close()
