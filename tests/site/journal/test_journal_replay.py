"""Replaying a journal gives the core that wrote it, with snapshots and without, or an error that says why not."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from sqlalchemy import text

from gridweave.errors import InputError
from gridweave.grid.messages import GridEvent
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Job
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.replay import Replayed, replay
from gridweave.site.journal.step import state_digest
from gridweave.site.messages import (
    Answer,
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    Request,
    ReservationCancelled,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state
from gridweave.site.users.owner import OwnerPolicy
from support.builders import as_in_thesis, drawn_model, drawn_timetable, random_grid_jobs, to_workload, with_columns
from support.checks import differences


class Call(NamedTuple):
    """A call of a core, and what came of it."""

    now_ms: int
    events: tuple[Any, ...]
    commands: list[Any]
    next_wakeup_ms: int | None


class Told(NamedTuple):
    """All that a core was told, and how a fresh one is made."""

    make: Callable[[], Any]
    calls: list[Call]
    kinds: dict[str, Any]


SITE_POLICIES: tuple[Any, ...] = (
    *(SitePolicy(backfill=backfill) for backfill in ("easy", "none", "conservative", "slack")),
    SitePolicy(discipline="planning", order="sjf"),
    SharedNodes(),
)


def record_world(seed: int, control: str, monkeypatch: pytest.MonkeyPatch, *, linked: bool = False) -> list[Told]:
    """Play a random world with losses, cuts and crashes; return what each of its cores was told.

    If it is linked, jobs send over links that fail and come back.
    """
    told: dict[int, Told] = {}

    def recorded(kind: type, kinds: dict[str, Any]) -> None:
        make_plain, take_in_plain = kind.__init__, kind.take_in  # type: ignore[misc,attr-defined]

        def make(self: Any, *args: Any, **options: Any) -> None:
            links = {"network": options["network"]} if options.get("network") is not None else {}
            given = copy.deepcopy((args, {name: options[name] for name in options if name not in links}))

            def fresh() -> Any:
                args, options = copy.deepcopy(given)
                return kind(*args, **options, **links)

            told[id(self)] = Told(fresh, [], kinds)
            make_plain(self, *args, **options)

        def take_in(self: Any, now_ms: int, events: Sequence[Any]) -> list[Any]:
            commands: list[Any] = take_in_plain(self, now_ms, events)
            told[id(self)].calls.append(Call(now_ms, tuple(events), list(commands), self.next_wakeup_ms()))
            cores.append(self)
            return commands

        monkeypatch.setattr(kind, "__init__", make)
        monkeypatch.setattr(kind, "take_in", take_in)

    cores: list[Any] = []  # so that none is thrown away, and its id used again
    with monkeypatch.context():
        recorded(ContractCore, {"event_type": ContractEvent, "message_type": Answer})
        recorded(MetaCore, {"event_type": GridEvent, "message_type": Request})
        rng = np.random.default_rng([seed, 5])
        nodes = rng.integers(1, 10, rng.integers(2, 4)).tolist()
        jobs = random_grid_jobs(rng, 40, nodes, load=1.2, tick=1000).jobs
        workload, net = to_workload(jobs), None
        backfills = ["easy", "conservative"] if control == "full" else ["easy"]
        if linked:
            model = drawn_model(rng, len(nodes))
            data = ("blocking", "none", "prefetch")[seed % 3]
            split = ("fewest", "earliest-end")[seed % 2]
            net = as_in_thesis(model, drawn_timetable(rng, model, 60_000), data=data, split=split)
            workload = with_columns(rng, workload, len(nodes))
            backfills = backfills[: 1 + (data == "none")]
        simulate_world(
            workload,
            nodes,
            GridPolicy(
                mode=str(rng.choice(["multi-site", "adaptive"] if linked else ["sharing", "multi-site", "adaptive"])),
                control=control,
                backfill=str(rng.choice(backfills)),
                selection=str(rng.choice(["best-fit", "random"])),
            ),
            site_policies=[SITE_POLICIES[rng.integers(len(SITE_POLICIES))] for _ in nodes],
            owners=[OwnerPolicy(grid_share=float(rng.choice([0.5, 1.0]))) for _ in nodes],
            home=rng.integers(0, len(nodes), len(jobs)),
            to_grid=rng.random(len(jobs)) < 0.7,
            network=Network(latency_ms=20, jitter_ms=10, loss=0.1, duplicate=0.1),
            faults=Faults(crash_every_ms=20_000, crash_lasts_ms=5_000, cut_every_ms=20_000, cut_lasts_ms=5_000),
            rng=rng,
            net=net,
        )
        monkeypatch.undo()
    return list(told.values())


def record_site(seed: int) -> Told:
    """Play a random site by itself, with reservations and cancellations; return what it was told."""
    rng = np.random.default_rng([seed, 6])
    policy = (
        SitePolicy(discipline="planning", order=str(rng.choice(["fcfs", "sjf", "laf"]))),
        SitePolicy(backfill="conservative"),
        SitePolicy(backfill="slack", slack=0.5),
        SitePolicy(order="priority", aging_ms=3.0),
    )[seed % 4]
    nodes = int(rng.integers(2, 9))
    core = SiteCore(nodes, policy)
    calls, running, now_ms = [], set[int](), 0
    for number in range(150):
        wakeup_ms = core.next_wakeup_ms()
        now_ms = wakeup_ms if wakeup_ms is not None and rng.random() < 0.5 else now_ms + int(rng.integers(0, 4))
        events: list[Event] = [JobFinished(job_id) for job_id in sorted(running) if rng.random() < 0.3]
        if rng.random() < 0.6:
            width, estimate_ms = int(rng.integers(1, nodes + 1)), int(rng.integers(1, 12))
            job = Job(job_id=number, width=width, estimate_ms=estimate_ms, priority=float(rng.integers(3)))
            events.append(JobSubmitted(job, now_or_never=bool(rng.random() < 0.1)))
        if rng.random() < 0.2:
            events.append(JobCancelled(int(rng.integers(number + 1))))
        if rng.random() < 0.2:
            events.append(
                ReservationRequested(number, now_ms + int(rng.integers(1, 30)), 5, int(rng.integers(1, nodes + 1)))
            )
        if rng.random() < 0.1:
            events.append(ReservationCancelled(int(rng.integers(number + 1))))
        commands = core.handle(now_ms, *events)
        running -= {event.job_id for event in events if isinstance(event, JobFinished)}
        running |= {command.job_id for command in commands if isinstance(command, StartJob)}
        calls.append(Call(now_ms, tuple(events), commands, core.next_wakeup_ms()))
    return Told(lambda: SiteCore(nodes, policy), calls, {"event_type": Event})


def check_replay(told: Told, place: Path, rng: np.random.Generator) -> tuple[int, int]:
    """Break off at random, replay, go on, break off again; return how many times with a snapshot and without."""
    with_snapshot = without = done = 0
    core = told.make()
    stops = sorted(rng.integers(0, len(told.calls) + 1, 4).tolist())
    for stop in [*stops, len(told.calls)]:
        with Journal(place, **told.kinds) as journal:
            fresh = told.make()
            found = replay(journal, fresh)
            assert found.passed_over == ()
            assert (found.snapshot or 0) + found.inputs == done
            assert found.now_ms == (told.calls[done - 1].now_ms if done else 0)
            assert list(differences(core, fresh)) == []
            fresh.check_invariants()
            with_snapshot, without = with_snapshot + (found.snapshot is not None), without + (found.snapshot is None)
            core = fresh
            for call in told.calls[done:stop]:
                with journal.step() as step:
                    assert step.handle(core, call.now_ms, *call.events) == call.commands
                assert core.next_wakeup_ms() == call.next_wakeup_ms
                if rng.random() < 0.03:
                    journal.snapshot(core)
            done = stop
    return with_snapshot, without


@pytest.mark.parametrize("control", ["full", "limited", "none"])
@pytest.mark.parametrize("part", range(2))
def test_replay_gives_the_cores_of_a_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str, part: int
) -> None:
    """Every core of a bad world, replayed at random instants, is the same, and decides the same on what follows."""
    with_snapshot = without = 0
    for seed in range(part * 4, part * 4 + 4):
        for number, told in enumerate(record_world(seed, control, monkeypatch)):
            rng = np.random.default_rng([seed, number])
            counts = check_replay(told, tmp_path / f"{seed} {number}.journal", rng)
            with_snapshot, without = with_snapshot + counts[0], without + counts[1]
    assert min(with_snapshot, without) > 10


@pytest.mark.parametrize("control", ["full", "limited"])
def test_replay_gives_the_cores_of_a_world_with_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: str
) -> None:
    """The same where jobs send over links that fail and come back."""
    for seed in range(3):
        for number, told in enumerate(record_world(seed, control, monkeypatch, linked=True)):
            check_replay(told, tmp_path / f"{seed} {number}.journal", np.random.default_rng([seed, number]))


@pytest.mark.parametrize("seed", range(12))
def test_replay_gives_the_core_of_a_site(tmp_path: Path, seed: int) -> None:
    """A site with a plan, promises and reservations, replayed at random instants, is the same and goes on the same."""
    check_replay(record_site(seed), tmp_path / "site.journal", np.random.default_rng(seed))


def test_a_restored_core_shares_its_arrays_as_the_first_did() -> None:
    """A snapshot of a snapshot is the same core still: arrays that see one memory see one memory again."""
    told = record_site(0)
    core = told.make()
    for call in told.calls:
        again = told.make()
        again.restore(read_state(again, dump_state(core)))
        assert list(differences(core, again)) == []
        core = again
        assert core.handle(call.now_ms, *call.events) == call.commands
        core.check_invariants()


class Made(msgspec.Struct, frozen=True):
    """From what a core was made."""

    nodes: int
    policy: SitePolicy = SitePolicy()


JOBS = [(JobSubmitted(Job(job_id=number, width=2, estimate_ms=100)),) for number in range(10)]


def fill(place: Path, core: Any, *, snapshot_after: tuple[int, ...] = (), **options: Any) -> None:
    """Tell a core of ten jobs, and write that into a journal."""
    with Journal(place, event_type=Event, **options) as journal:
        for number, events in enumerate(JOBS, 1):
            with journal.step() as step:
                step.handle(core, number, *events)
            if number in snapshot_after:
                journal.snapshot(core)


@pytest.fixture(name="place")
def journal_place(tmp_path: Path) -> Path:
    """Return where the journal of this test lies."""
    return tmp_path / "site.journal"


def make() -> SiteCore:
    """Return a fresh core."""
    return SiteCore(4, SitePolicy())


def damage(place: Path, statement: str, **values: Any) -> None:
    """Change the tables of a journal behind its back."""
    with Journal(place, event_type=Event) as journal, journal.reading() as connection:
        connection.execute(text(statement), values)


def exchange_snapshots(place: Path, state: Any, kind: str) -> None:
    """Have another state in the place of all snapshots."""
    data = zlib.compress(msgspec.msgpack.encode(state))
    statement = "UPDATE gridweave_snapshots SET kind = :kind, state = :state, digest = :digest"
    damage(place, statement, kind=kind, state=data, digest=state_digest(data))


def test_the_newest_snapshots_are_kept(place: Path) -> None:
    """A replay begins at the newest snapshot; the two newest are kept, and inputs before them can be removed."""
    fill(place, make(), snapshot_after=(2, 5, 7))
    with Journal(place, event_type=Event) as journal:
        assert (replay(journal, make()).snapshot, replay(journal, make()).inputs) == (7, 3)
        assert journal.compact() == 5
        assert [entry.sequence for entry in journal.inputs(after=5)] == list(range(6, 11))
        assert replay(journal, make()).inputs == 3
    damage(place, "UPDATE gridweave_snapshots SET state = substr(state, 1, 50) WHERE sequence = 7")
    with Journal(place, event_type=Event) as journal:
        core = make()
        found = replay(journal, core)
        assert found == Replayed(5, 5, 10, ("the snapshot after input 7 is damaged",))
        live = make()
        for number, events in enumerate(JOBS, 1):
            live.handle(number, *events)
        assert list(differences(core, live)) == []


def test_a_snapshot_of_another_version_is_passed_over(place: Path) -> None:
    """All inputs are replayed if a snapshot cannot be read; if they were removed the error says what is missing."""
    fill(place, make(), snapshot_after=(5, 10))
    later = {"state": "SiteCore 9"}
    exchange_snapshots(place, later, "SiteCore 9")
    with Journal(place, event_type=Event) as journal:
        found = replay(journal, make())
        assert (found.snapshot, found.inputs) == (None, 10)
        assert "snapshot after input 10, a SiteCore 9 of gridweave" in found.passed_over[0]
        journal.compact()
        with pytest.raises(InputError, match=r"inputs 1 to 5 are missing.*no snapshot could be used.*SiteCore 9"):
            replay(journal, make())
    damage(place, "DELETE FROM gridweave_inputs")
    with Journal(place, event_type=Event) as journal, pytest.raises(InputError, match="1 to 10 are missing"):
        replay(journal, make())


def test_a_snapshot_that_does_not_fit_stops_the_replay(place: Path) -> None:
    """A core that has begun to take in a state is not told of inputs as if it were fresh."""
    core = make()
    fill(place, core, snapshot_after=(10,))
    state = core.state()
    arrays = state.discipline.arrays | {"jobs.depth": state.discipline.arrays["jobs.width"]}
    odd = replace(state, discipline=replace(state.discipline, arrays=arrays))
    exchange_snapshots(place, odd, "SiteCore 1")
    with (
        Journal(place, event_type=Event) as journal,
        pytest.raises(InputError, match=r"does not fit the core: .*jobs\.depth"),
    ):
        replay(journal, make())


def test_missing_and_foreign_inputs_are_found(place: Path) -> None:
    """An input that is missing, or is none of these events, stops the replay in one line with its number."""
    fill(place, make())
    damage(place, "DELETE FROM gridweave_inputs WHERE sequence IN (4, 5)")
    with Journal(place, event_type=Event) as journal, pytest.raises(InputError, match="inputs 4 to 5 are missing"):
        replay(journal, make())
    damage(place, "UPDATE gridweave_inputs SET events = x'91c0' WHERE sequence = 2")
    with Journal(place, event_type=Event) as journal, pytest.raises(InputError, match="input 2: the event"):
        replay(journal, make())


def test_another_decision_is_found(place: Path) -> None:
    """A core that decides otherwise than was decided is stopped at that input, whatever the reason."""
    fill(place, make())
    with Journal(place, event_type=Event) as journal:
        with pytest.raises(InputError, match="input 3 of 3 ms: the core no longer makes the same decisions"):
            replay(journal, SiteCore(6, SitePolicy()))
        with pytest.raises(InputError, match=r"input 1 of 1 ms: the core no longer makes the same decisions"):
            replay(journal, SiteCore(1, SitePolicy()))


def test_an_input_that_is_refused_stops_the_replay(place: Path) -> None:
    """An input that the core refuses is an error with its number."""
    with Journal(place, event_type=Event) as journal:
        for now_ms in (5, 4):
            with journal.step() as step:
                step.input(now_ms, ())
        with pytest.raises(InputError, match="input 2 of 4 ms is refused: now_ms is 4"):
            replay(journal, make())


def test_another_identity_needs_to_begin_anew(place: Path) -> None:
    """Inputs are replayed only into a core of the same settings, until the journal is begun again."""
    fill(place, make(), identity=Made(nodes=4), snapshot_after=(5,))
    other: dict[str, Any] = {"event_type": Event, "identity": Made(nodes=6, policy=SitePolicy(order="sjf"))}
    with Journal(place, **other) as journal:
        with pytest.raises(InputError, match=r"nodes is 6, and was 4; policy\.order is 'sjf', and was 'fcfs'"):
            replay(journal, make())
        journal.begin_anew()
        core = SiteCore(6, SitePolicy())
        assert replay(journal, core).inputs == 0
        for number, events in enumerate(JOBS, 20):
            with journal.step() as step:
                step.handle(core, number, *events)
    with Journal(place, **other) as journal:
        fresh = SiteCore(6, SitePolicy())
        assert replay(journal, fresh).inputs == 10
        assert list(differences(core, fresh)) == []
        assert journal.sequence == 20
        assert journal.compact() == 10
        journal.snapshot(fresh)
    with Journal(place, **other) as journal:
        assert replay(journal, SiteCore(6, SitePolicy())).snapshot == 20


def test_an_empty_journal_takes_any_identity(place: Path) -> None:
    """As long as nothing was decided, other settings harm nothing."""
    for nodes in (2, 3):
        with Journal(place, event_type=Event, identity=Made(nodes=nodes)) as journal:
            assert replay(journal, make()).inputs == 0
    fill(place, make(), identity=Made(nodes=3))
    with Journal(place, event_type=Event, identity=Made(nodes=2)) as journal, pytest.raises(InputError, match="was 3"):
        replay(journal, make())


def test_a_new_setting_has_its_default_in_older_journals(place: Path) -> None:
    """An upgrade that adds a setting goes on with the journal, if the new setting is left at its default."""

    class MadeLater(Made, frozen=True):
        share: float = 1.0

    fill(place, make(), identity=Made(nodes=4))
    with (
        Journal(place, event_type=Event, identity=MadeLater(nodes=4, share=0.5)) as journal,
        pytest.raises(InputError, match=r"other settings: share is 0\.5, and was 1\.0"),
    ):
        replay(journal, make())
    with Journal(place, event_type=Event, identity=MadeLater(nodes=4)) as journal:
        assert replay(journal, make()).inputs == 10
    with Journal(place, event_type=Event, identity=Made(nodes=4)) as journal:
        assert journal.identity_changes == ["share is not known"]
