"""`simulate`: errors, results, and agreement of both drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.batch import one_site as simulator
from gridweave.scenarios.batch import stepped as core_run
from gridweave.scenarios.batch.one_site import DRIVERS, week_clock
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import JOBS_HEADER, SimulationResult
from gridweave.scenarios.traces.load import load_workload, save_workload
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, Workload
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.messages import ReservationRequested
from gridweave.site.policy import Limit, SitePolicy, Window

HOUR_MS = 3_600_000
# Monday, 23 September 1996, 14:00:31 in Stockholm (summer time: two hours ahead of UTC).
MONDAY_UNIX_S = 843480031

BOTH = pytest.mark.parametrize("driver", DRIVERS)


def jobs(rows: Sequence[tuple[int, int, int, int]], **fields: Any) -> Workload:
    """Return a workload of (submit, width, estimate, run) with ids from 1; longer runs are cut at the estimate."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    submit, width, estimate, run = table.T
    return Workload(
        np.arange(1, len(table) + 1),
        submit,
        width,
        estimate,
        np.minimum(run, estimate),
        overran=run > estimate,
        **fields,
    )


THREE = jobs([(0, 3, 100, 100), (1, 4, 50, 50), (2, 1, 90, 90)])
EMPTY = jobs([])


# -- what is refused


@BOTH
def test_jobs_wider_than_the_site_are_refused_and_the_rest_runs(driver: str) -> None:
    result = simulate(jobs([(0, 5, 10, 10), (0, 4, 10, 10), (3, 9, 10, 10), (4, 1, 10, 10)]), nodes=4, driver=driver)
    assert result.refused == (
        (1, "it needs 5 nodes and the site has 4"),
        (3, "it needs 9 nodes and the site has 4"),
    )
    assert result.start_ms.tolist() == [-1, 0, -1, 10]
    assert result.end_ms.tolist() == [-1, 10, -1, 20]
    assert result.ran.tolist() == [False, True, False, True]
    assert result.metrics().jobs == 2


@BOTH
def test_a_job_that_limits_always_exclude_is_refused(driver: str) -> None:
    limits = (Limit(wider_than=2, max_nodes=3), Limit(longer_than_ms=500, window=Window()))
    work = jobs([(0, 4, 10, 10), (0, 3, 10, 10), (0, 1, 501, 501), (0, 1, 500, 500)])
    result = simulate(work, nodes=8, discipline="planning", limits=limits, driver=driver)
    assert [job_id for job_id, _ in result.refused] == [1, 3]
    assert "limit 1" in result.refused[0][1]
    assert "windows" in result.refused[1][1]
    assert result.start_ms.tolist() == [-1, 0, -1, 0]


def test_an_unknown_number_of_nodes_is_an_error() -> None:
    with pytest.raises(OptionError, match="nodes: workload does not state the size"):
        simulate(THREE)
    assert simulate(THREE.replace(nodes=4)).nodes == 4
    assert simulate(THREE.replace(nodes=4), nodes=7).nodes == 7
    assert simulate(THREE, nodes=np.int64(MAX_WIDTH)).start_ms.tolist() == [0, 1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [0, -5, MAX_WIDTH + 1, 10**30, 4.5, 4.0, "4", float("nan")])
def test_an_invalid_number_of_nodes_is_refused(nodes: Any) -> None:
    with pytest.raises(OptionError) as caught:
        simulate(THREE, nodes=nodes)
    assert caught.value.option == "nodes"
    assert f"{MAX_WIDTH}" in caught.value.problem


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"order": "lifo"}, "order"),
        ({"backfill": "hard"}, "backfill of a queue site"),
        ({"discipline": "planning", "backfill": "conservative"}, "backfill of a planning site"),
        ({"discipline": "gang"}, "discipline"),
        ({"choice": "worst-fit"}, "choice"),
        ({"driver": "live"}, "driver"),
        ({"slack": -1.0}, "slack"),
        ({"aging_ms": 0.0}, "aging_ms"),
        ({"limits": [Limit(max_jobs=1)]}, "limits"),
        ({"reservations": [(0, ReservationRequested(1, 0, 1, 1))]}, "reservations"),
    ],
    ids=str,
)
def test_unknown_options_are_refused_by_name(options: dict[str, Any], option: str, tmp_path: Path) -> None:
    """The error comes before any trace is loaded."""
    for workload in (THREE, tmp_path / "not-there.swf"):
        with pytest.raises(OptionError) as caught:
            simulate(workload, nodes=4, **options)
        assert caught.value.option == option
    with pytest.raises(OptionError, match="driver: 'batsch' is not known; one of batch, core"):
        simulate(THREE, 4, SitePolicy(), driver="batsch")


@BOTH
@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_must_be_positive_and_finite_with_both_drivers(driver: str, weight: float) -> None:
    with pytest.raises(InputError, match=r"workload: job 2: weight .* is not a weight; expected a number above 0"):
        simulate(THREE.replace(columns={"weight": [1.0, weight, 2.0]}), nodes=4, order="smith", driver=driver)


@BOTH
def test_workloads_that_could_exceed_int64_are_refused(driver: str) -> None:
    work = jobs([(0, 1, MAX_TIME_MS, MAX_TIME_MS)] * 50_000)
    with pytest.raises(InputError, match=r"estimates add up to 5e\+18 ms"):
        simulate(work, nodes=1, driver=driver)
    assert simulate(work.take(np.arange(300)), nodes=1, driver=driver).end_ms[-1] == 300 * MAX_TIME_MS


def test_a_trace_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "three.swf"
    save_workload(jobs([(0, 3, 100_000, 90_000), (1000, 4, 50_000, 50_000), (1000, 5, 1000, 1000)], nodes=8), path)
    for trace in (path, str(path)):
        result = simulate(trace, nodes=4)
        assert result.start_ms.tolist() == [0, 90_000]
        assert result.options["trace"] == "three"
    assert simulate(path).nodes == 8
    with pytest.raises(TraceError, match="no such file"):
        simulate(tmp_path / "none.swf", nodes=4)


# -- what is returned


@BOTH
def test_hand_computed_schedules(driver: str) -> None:
    """With EASY the third job overtakes; without backfilling it waits for the second."""
    assert simulate(THREE, nodes=4, driver=driver).start_ms.tolist() == [0, 100, 2]
    assert simulate(THREE, nodes=4, backfill="none", driver=driver).start_ms.tolist() == [0, 100, 150]
    planned = simulate(THREE, nodes=4, discipline="planning", order="ljf", driver=driver)
    assert planned.start_ms.tolist() == [0, 100, 2]


@BOTH
def test_killed_jobs_are_those_that_overran(driver: str) -> None:
    """A refused job does not count, even if it overran."""
    result = simulate(jobs([(0, 1, 10, 25), (0, 1, 10, 10), (0, 5, 10, 25)]), nodes=4, driver=driver)
    assert result.killed.tolist() == [True, False, False]
    assert result.end_ms.tolist() == [10, 10, -1]


@BOTH
@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_an_empty_workload_gives_an_empty_result(driver: str, discipline: str) -> None:
    result = simulate(EMPTY, nodes=4, discipline=discipline, driver=driver)
    assert len(result.start_ms) == len(result.end_ms) == len(result.killed) == 0
    assert result.refused == ()
    assert result.metrics().jobs == 0
    assert result.to_pandas().shape == (0, 10)


@BOTH
@pytest.mark.parametrize("backfill", ["none", "easy", "conservative", "slack"])
def test_a_single_job_starts_at_its_submission(driver: str, backfill: str) -> None:
    result = simulate(jobs([(7, 4, 30, 20)]), nodes=4, backfill=backfill, driver=driver)
    assert (result.start_ms.tolist(), result.end_ms.tolist()) == ([7], [27])


@BOTH
def test_simultaneous_jobs_run_in_the_order_of_the_policy(driver: str) -> None:
    """Ties are ordered by id."""
    work = jobs([(5, 1, estimate, estimate) for estimate in (30, 10, 20, 10)])
    starts = {
        order: simulate(work, nodes=1, order=order, driver=driver).start_ms.tolist() for order in ("fcfs", "sjf", "ljf")
    }
    assert starts == {"fcfs": [5, 35, 45, 65], "sjf": [45, 5, 25, 15], "ljf": [5, 55, 35, 65]}


@BOTH
def test_optional_columns_reach_limits_and_orders(driver: str) -> None:
    columns = {"user": [7, 8, 7], "weight": [1.0, 1.0, 3.0], "priority": [0, 2, 1]}
    work = jobs([(0, 1, 10, 10)] * 3, columns=columns)
    limits = [Limit(user=7, max_jobs=1)]
    assert simulate(work, 4, discipline="planning", limits=limits, driver=driver).start_ms.tolist() == [0, 0, 10]
    assert simulate(work, 1, order="weight", driver=driver).start_ms.tolist() == [10, 20, 0]
    assert simulate(work, 1, order="priority", driver=driver).start_ms.tolist() == [20, 0, 10]


def test_the_result_records_its_options() -> None:
    """Unused options are None."""
    limit = Limit(wider_than=3, max_jobs=2)
    result = simulate(THREE, nodes=4, discipline="planning", order="sjf", limits=[limit])
    assert result.label == "planning sjf [wider-than=3 max-jobs=2]"
    assert result.options["limits"] == [
        {"wider_than": 3, "longer_than_ms": 0, "user": None, "window": None, "max_nodes": None, "max_jobs": 2}
    ]
    said = {name: result.options[name] for name in ("trace", "nodes", "discipline", "order", "backfill")}
    assert list(said.values()) == ["workload", 4, "planning", "sjf", "easy"]
    assert result.options["slack"] is result.options["aging_ms"] is None
    aged = simulate(THREE, nodes=4, order="priority", aging_ms=60.0, backfill="slack", slack=0.25)
    assert (aged.options["slack"], aged.options["aging_ms"]) == (0.25, 60.0)


def test_to_pandas_has_a_row_per_job() -> None:
    """Its columns are those of jobs.csv."""
    frame = simulate(jobs([(0, 1, 10, 25), (2, 9, 10, 10)]), nodes=4).to_pandas()
    assert tuple(frame.columns) == JOBS_HEADER
    assert frame.to_dict("list") == {
        "job_id": [1, 2],
        "submit_ms": [0, 2],
        "start_ms": [0, -1],
        "end_ms": [10, -1],
        "width": [1, 9],
        "estimate_ms": [10, 10],
        "run_ms": [10, 0],
        "site": ["site", "site"],
        "fragments": [1, 0],
        "killed": [True, False],
    }


@BOTH
def test_the_same_input_gives_the_same_schedule(driver: str) -> None:
    rng = np.random.default_rng(5)
    table = rng.integers(1, 9, (200, 4))
    table[:, 0] = np.sort(table[:, 0])
    work = jobs(table.tolist())
    first, second = (simulate(work, nodes=8, order="sjf", driver=driver) for _ in range(2))
    assert first.start_ms.tolist() == second.start_ms.tolist()


@BOTH
@pytest.mark.parametrize("count", [0, 1, 6, 7, 20])
def test_progress_increases_up_to_all_jobs(driver: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused jobs are not counted."""
    monkeypatch.setattr(simulator, "_CHUNK", 3)
    monkeypatch.setattr(core_run, "_SLICE", 3)
    told: list[tuple[int, int]] = []
    work = jobs([(i, 1, 5, 5) for i in range(count)] + [(count, 9, 5, 5)])
    simulate(work, 2, SitePolicy(), driver=driver, progress=lambda *report: told.append(report))
    done = [report[0] for report in told]
    assert done == sorted(done)
    assert told[-1] == (count, count)
    assert {report[1] for report in told} == {count}
    assert len(told) >= count // 3


@pytest.mark.parametrize(
    ("start_unix_s", "timezone", "offset_ms"),
    [
        (None, "Europe/Stockholm", 0),
        (MONDAY_UNIX_S, "Europe/Stockholm", 14 * HOUR_MS + 31_000),
        (MONDAY_UNIX_S, None, 12 * HOUR_MS + 31_000),
        (MONDAY_UNIX_S, "Asia/Kolkata", 17 * HOUR_MS + 30 * 60_000 + 31_000),
        (MONDAY_UNIX_S, "Pacific/Kiritimati", (24 + 2) * HOUR_MS + 31_000),
        (MONDAY_UNIX_S - 13 * 3600, "UTC", (6 * 24 + 23) * HOUR_MS + 31_000),
        (MONDAY_UNIX_S + 60 * 86_400, "Europe/Stockholm", (4 * 24 + 13) * HOUR_MS + 31_000),
        (-1, "UTC", (3 * 24 * 3600 - 1) * 1000),
    ],
)
def test_the_week_clock_follows_local_time_since_monday(
    start_unix_s: int | None, timezone: str | None, offset_ms: int
) -> None:
    """The epoch begins on a Thursday; daylight saving time is included."""
    week = week_clock(THREE.replace(start_unix_s=start_unix_s, timezone=timezone))
    assert week.offset_ms[0] == offset_ms


@pytest.mark.parametrize("timezone", ["Mars/Olympus", "../passwd", "Europe", "\0"])
def test_an_unknown_zone_is_an_error_only_if_it_matters(timezone: str) -> None:
    work = THREE.replace(start_unix_s=MONDAY_UNIX_S, timezone=timezone)
    with pytest.raises(InputError, match=r"workload: time zone .* is unknown"):
        week_clock(work)
    assert simulate(work, nodes=4).start_ms.tolist() == [0, 100, 2]
    with pytest.raises(InputError, match="is unknown"):
        simulate(work, nodes=4, discipline="planning", limits=[Limit(wider_than=3, window=Window(days=(0,)))])


@pytest.mark.parametrize("start_unix_s", [10**12, 10**18, 10**30, -(10**14)])
def test_a_date_beyond_the_calendar_is_an_error_if_it_matters(start_unix_s: int) -> None:
    with pytest.raises(InputError, match="beyond the calendar"):
        week_clock(THREE.replace(start_unix_s=start_unix_s))


@BOTH
def test_limits_use_local_time(driver: str) -> None:
    """On a Monday that begins at 07:00 local time, a wide job of 09:00 waits for the end of prime time at 18:00."""
    work = jobs(
        [(2 * HOUR_MS, 80, HOUR_MS, HOUR_MS), (2 * HOUR_MS, 70, HOUR_MS, HOUR_MS)],
        start_unix_s=MONDAY_UNIX_S - 7 * 3600 - 31,
        timezone="Europe/Stockholm",
    )
    window = Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS)
    options: dict[str, Any] = {"discipline": "planning", "limits": [Limit(wider_than=75, window=window)]}
    assert simulate(work, nodes=100, driver=driver, **options).start_ms.tolist() == [11 * HOUR_MS, 2 * HOUR_MS]
    in_utc = work.replace(timezone=None)  # two hours earlier by the clock
    assert simulate(in_utc, nodes=100, driver=driver, **options).start_ms.tolist() == [2 * HOUR_MS, 3 * HOUR_MS]


# -- reservations


def test_only_accepted_reservations_hold_nodes() -> None:
    work = jobs([(0, 4, 10, 10), (1, 4, 30, 30)])
    reserved = [(0, ReservationRequested(1, start_ms=20, length_ms=15, width=2))]
    too_early = [(0, ReservationRequested(2, start_ms=5, length_ms=15, width=2))]
    for driver in DRIVERS:
        options: dict[str, Any] = {"nodes": 4, "discipline": "planning", "driver": driver}
        assert simulate(work, **options).start_ms.tolist() == [0, 10]
        assert simulate(work, reservations=reserved, **options).start_ms.tolist() == [0, 35]
        assert simulate(work, reservations=too_early, **options).start_ms.tolist() == [0, 10]
        assert len(simulate(EMPTY, reservations=reserved, **options).start_ms) == 0


def test_levels_under_planning_take_reservations_unless_a_level_evicts() -> None:
    quiet = (Level(name="high", priority=1), Level(name="low", priority=0))
    evicting = (Level(name="high", priority=1, evicts=("low",)), quiet[1])
    under, asked = SitePolicy(discipline="planning"), [(0, ReservationRequested(1, 20, 15, 2))]
    result = simulate(jobs([(0, 4, 10, 10)]), 4, LevelsPolicy(levels=quiet, under=under), reservations=asked)
    assert [answer.accepted for answer in result.reservations] == [True]
    without_plan = LevelsPolicy(levels=quiet, under=SitePolicy(backfill="conservative"))
    for policy in (LevelsPolicy(levels=evicting, under=under), without_plan):
        with pytest.raises(OptionError, match="reservations: are refused under the policy"):
            simulate(THREE, 4, policy, reservations=asked)


def test_the_result_has_the_answers_to_reservations() -> None:
    """They are in the order of the requests."""
    work = jobs([(0, 4, 10, 10), (1, 4, 30, 30)])
    asked = [
        (5, ReservationRequested(7, start_ms=20, length_ms=15, width=2)),
        (0, ReservationRequested(3, start_ms=5, length_ms=15, width=2)),
        (0, ReservationRequested(4, start_ms=50, length_ms=5, width=4)),
        (6, ReservationRequested(5, start_ms=50, length_ms=5, width=5)),
    ]
    result = simulate(work, nodes=4, discipline="planning", reservations=asked)
    want = [
        (7, 5, False, 55, "its nodes are not all free then"),
        (3, 0, False, 10, "its nodes are not all free then"),
        (4, 0, True, None, None),
        (5, 6, False, None, "the site has 4 nodes"),
    ]
    answers = result.reservations
    got = [(one.reservation_id, one.requested_ms, one.accepted, one.earliest_ms, one.reason) for one in answers]
    assert got == want
    assert result.summary()["reservations"] == [msgspec.to_builtins(one) for one in answers]
    assert simulate(work, nodes=4, discipline="planning").summary()["reservations"] == []


@pytest.mark.parametrize(("when_ms", "ids", "words"), [(0, (1, 1), "appears twice"), (-1, (1, 2), "time begins at 0")])
def test_duplicate_and_negative_reservation_requests_are_refused(
    when_ms: int, ids: tuple[int, int], words: str
) -> None:
    asked = [(when_ms, ReservationRequested(number, start_ms=20, length_ms=15, width=2)) for number in ids]
    with pytest.raises(OptionError, match=words):
        simulate(THREE, nodes=4, discipline="planning", reservations=asked)


@pytest.fixture(scope="module")
def excerpt(trace_path: Callable[[str], Path]) -> Workload:
    """Return the first 3,000 jobs of KTH-SP2."""
    workload, _ = load_workload(trace_path("KTH-SP2-1996-2"), nodes=100, columns=("user",))
    return workload.take(np.arange(3000))


PRIME_TIME = Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS)
REAL: dict[str, dict[str, Any]] = {
    "fcfs easy": {},
    "sjf conservative": {"order": "sjf", "backfill": "conservative"},
    "ljf slack best-fit": {"order": "ljf", "backfill": "slack", "choice": "best-fit"},
    "planning ljf": {"discipline": "planning", "order": "ljf"},
    "planning fcfs with limits": {
        "discipline": "planning",
        "limits": [
            Limit(wider_than=50, window=PRIME_TIME),
            Limit(longer_than_ms=12 * HOUR_MS, max_nodes=60),
            Limit(user=3, max_jobs=2),
        ],
    },
}


@pytest.mark.trace
@pytest.mark.parametrize("options", REAL.values(), ids=REAL)
def test_drivers_agree_on_real_jobs(excerpt: Workload, options: dict[str, Any]) -> None:
    batch, core = (simulate(excerpt, driver=driver, **options) for driver in DRIVERS)
    assert batch.start_ms.tolist() == core.start_ms.tolist()
    assert batch.refused == core.refused
    assert batch.ran.sum() + len(batch.refused) == len(excerpt)


@pytest.mark.trace
def test_real_jobs_keep_off_reserved_nodes(excerpt: Workload) -> None:
    """60 nodes are reserved ten days ahead; without the reservations, jobs would use them."""
    day_ms = 24 * HOUR_MS
    asked = [
        (day * day_ms, ReservationRequested(day, (day + 10) * day_ms, day_ms // 2, width=60)) for day in range(27, 38)
    ]
    result = simulate(excerpt, None, SitePolicy(discipline="planning"), reservations=asked, check=True)
    assert result.ran.all()
    assert most_in_use(result, asked) <= 100
    assert most_in_use(simulate(excerpt, discipline="planning"), asked) > 100


def most_in_use(result: SimulationResult, asked: Sequence[tuple[int, ReservationRequested]]) -> int:
    """Return the maximum number of nodes in use by jobs and reservations."""
    starts = [*result.start_ms.tolist(), *(request.start_ms for _, request in asked)]
    ends = [*result.end_ms.tolist(), *(request.start_ms + request.length_ms for _, request in asked)]
    widths = [*result.workload.width.tolist(), *(request.width for _, request in asked)]
    changes = sorted(
        [(end, -width) for end, width in zip(ends, widths, strict=True)]
        + [(start, width) for start, width in zip(starts, widths, strict=True)]
    )
    return int(np.max(np.cumsum([width for _, width in changes])))


@pytest.mark.parametrize("driver", ["batch", "core"])
@pytest.mark.parametrize(
    ("date", "zone"),
    [
        ((2021, 3, 26), "Europe/Berlin"),  # forward on Sunday the 28th
        ((2021, 10, 29), "Europe/Berlin"),  # back on Sunday the 31st
        ((2021, 3, 12), "America/New_York"),
        ((2021, 4, 2), "Australia/Lord_Howe"),  # back by half an hour
        ((2021, 3, 26), "Asia/Kolkata"),  # never
    ],
)
def test_windows_follow_daylight_saving_time(driver: str, date: tuple[int, int, int], zone: str) -> None:
    """Jobs held back by a window from 8:00 to 18:00 start at 18:00 local time on each day of three weeks."""
    start = datetime(*date, tzinfo=ZoneInfo(zone))
    noons = [datetime(*date, 12, tzinfo=ZoneInfo(zone)) + timedelta(days=day) for day in range(21)]
    submit = [round((noon.timestamp() - start.timestamp()) * 1000) for noon in noons]
    ones = np.ones(21, np.int64)
    jobs = Workload(
        np.arange(21),
        submit,
        ones * 4,
        ones * 60_000,
        ones * 60_000,
        start_unix_s=round(start.timestamp()),
        timezone=zone,
    )
    limit = Limit(wider_than=1, window=Window(days=tuple(range(7)), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS))
    result = simulate(jobs, 4, discipline="planning", limits=[limit], driver=driver)
    starts = [datetime.fromtimestamp(start.timestamp() + ms / 1000, ZoneInfo(zone)) for ms in result.start_ms.tolist()]
    assert [(one.day, one.hour, one.minute) for one in starts] == [(noon.day, 18, 0) for noon in noons]


def test_a_window_ends_when_the_clock_skips_its_end() -> None:
    """A window from 1:30 to 2:30 ends after half an hour if 2:00 becomes 3:00 that night."""
    zone = ZoneInfo("Europe/Berlin")
    start = datetime(2021, 3, 28, 1, 30, tzinfo=zone)
    jobs = Workload([1], [0], [4], [60_000], [60_000], start_unix_s=round(start.timestamp()), timezone="Europe/Berlin")
    limit = Limit(window=Window(days=(6,), from_ms=HOUR_MS * 3 // 2, to_ms=HOUR_MS * 5 // 2))
    assert simulate(jobs, 4, discipline="planning", limits=[limit]).start_ms.tolist() == [HOUR_MS // 2]
