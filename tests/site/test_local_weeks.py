"""Windows of the week at live sites: in the site's time zone, on a clock of Unix time, as in a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan, SitePlan
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.settings import SettingsChanged, plain
from gridweave.site.job import Job, JobRequest, Program
from gridweave.site.messages import Command, JobFinished, JobSubmitted, StartJob, UserSubmitted
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.stepping import do

HOUR_MS = 3_600_000
WORKDAYS = Limit(wider_than=1, window=Window(days=(0, 1, 2, 3, 4), from_ms=8 * HOUR_MS, to_ms=18 * HOUR_MS))
POLICY = SitePolicy(discipline="planning", limits=(WORKDAYS,))

CASES = pytest.mark.parametrize(
    ("date", "zone"),
    [
        ((2026, 3, 26), "Europe/Berlin"),  # a Thursday; forward on Sunday the 29th
        ((2026, 10, 22), "Europe/Berlin"),  # back on Sunday the 25th
        ((2026, 3, 5), "America/New_York"),
        ((2026, 4, 2), "Australia/Lord_Howe"),  # back by half an hour on Sunday the 5th
        ((2026, 3, 26), "Asia/Kolkata"),
        ((2026, 3, 26), "UTC"),
    ],
)


def noons(date: tuple[int, int, int], zone: str) -> Workload:
    """Return a job of four nodes at noon of each of five days."""
    start = datetime(*date, tzinfo=ZoneInfo(zone))
    times = [datetime(date[0], date[1], date[2] + day, 12, tzinfo=ZoneInfo(zone)) for day in range(5)]
    return Workload(
        job_id=list(range(1, 6)),
        submit_ms=[round((time.timestamp() - start.timestamp()) * 1000) for time in times],
        width=[4] * 5,
        estimate_ms=[60_000] * 5,
        run_ms=[60_000] * 5,
        start_unix_s=round(start.timestamp()),
        timezone=zone,
    )


def live_starts(jobs: Workload, zone: str | None) -> dict[int, int]:
    """Return when a live site starts jobs, in ms after the workload's time zero."""
    plan = SitePlan(name="north", nodes=4, policy=POLICY, timezone=zone)
    settings = GridPlan(folder="", sites=(plan,), policy=GridPolicy()).site_settings(0)
    site = LiveSite(settings).core.site
    zero_ms = (jobs.start_unix_s or 0) * 1000
    starts: dict[int, int] = {}

    def take(now_ms: int, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, StartJob):
                starts[command.job_id] = now_ms - zero_ms
                take(now_ms + 60_000, site.handle(now_ms + 60_000, JobFinished(command.job_id)))

    for job_id, submit_ms in zip(jobs.job_id.tolist(), jobs.submit_ms.tolist(), strict=True):
        now_ms = zero_ms + submit_ms
        while (wakeup_ms := site.next_wakeup_ms()) is not None and wakeup_ms < now_ms:
            take(wakeup_ms, site.handle(wakeup_ms))
        take(now_ms, site.handle(now_ms, JobSubmitted(Job(job_id=job_id, width=4, estimate_ms=60_000))))
    while (wakeup_ms := site.next_wakeup_ms()) is not None:
        take(wakeup_ms, site.handle(wakeup_ms))
    return starts


@CASES
def test_a_live_site_opens_its_windows_when_the_simulated_one_does(date: tuple[int, int, int], zone: str) -> None:
    """On working days a wide job starts at 18:00 on the clock there, on Saturday and Sunday at once."""
    jobs = noons(date, zone)
    simulated = simulate(jobs, 4, policy=POLICY)
    starts = live_starts(jobs, zone)
    assert [starts[job_id] for job_id in jobs.job_id.tolist()] == simulated.start_ms.tolist()
    hours = [
        datetime.fromtimestamp((jobs.start_unix_s or 0) + ms / 1000, ZoneInfo(zone)).hour for ms in starts.values()
    ]
    assert hours == [18, 18, 12, 12, 18]


@CASES
def test_a_grid_is_simulated_with_the_windows_of_its_sites(date: tuple[int, int, int], zone: str) -> None:
    """A site's own time zone counts before that of the trace."""
    jobs = noons(date, zone)
    alone = simulate(jobs, 4, policy=POLICY).start_ms.tolist()
    local = GridPolicy(mode="local")
    assert simulate_world(jobs, [4], local, site_policies=[POLICY]).start_ms.tolist() == alone
    elsewhere = jobs.replace(timezone="Pacific/Auckland")
    there = simulate_world(elsewhere, [4], local, site_policies=[POLICY], timezones=[zone])
    assert there.start_ms.tolist() == alone


@pytest.fixture
def machine_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that moves this machine to a time zone until the end of the test."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@CASES
def test_a_live_site_without_a_zone_follows_its_machine(
    machine_in: Callable[[str], None], date: tuple[int, int, int], zone: str
) -> None:
    jobs = noons(date, zone)
    machine_in(zone)
    assert live_starts(jobs, None) == live_starts(jobs, zone)
    machine_in("Asia/Tokyo")
    assert live_starts(jobs, None) != live_starts(jobs, zone)


def test_a_waiting_job_follows_a_change_of_the_zone() -> None:
    """Its window ends at 18:00 in Berlin at first, and then at 18:00 in New York, five hours later on that day."""

    def settings(zone: str) -> SiteSettings:
        plan = SitePlan(name="north", nodes=4, policy=POLICY, timezone=zone)
        return GridPlan(folder="", sites=(plan,), policy=GridPolicy()).site_settings(0)

    site = LiveSite(settings("Europe/Berlin"))
    now_ms = round(datetime(2026, 3, 27, 15, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
    request = JobRequest(program=Program(argv=("true",)), nodes=4, limit_ms=60_000)
    do(site, now_ms, UserSubmitted("key", request))
    assert site.next_wakeup_ms() == now_ms + 3 * HOUR_MS
    do(site, now_ms + 1, SettingsChanged(plain(settings("America/New_York"))))
    assert site.next_wakeup_ms() == now_ms + 8 * HOUR_MS


def test_only_sites_with_windows_keep_a_week() -> None:
    """The settings of all other sites, and so their journals, are as they were."""
    plan = SitePlan(name="north", nodes=4, timezone="Europe/Berlin")
    assert GridPlan(folder="", sites=(plan,), policy=GridPolicy()).site_settings(0).week == ()
