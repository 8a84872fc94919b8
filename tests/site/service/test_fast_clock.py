"""A site whose clock is faster than time: what machines are told, and what they report, is in real time."""

from __future__ import annotations

from gridweave.site.launch import Launch, Rank
from gridweave.site.messages import PaceRun, RunEnded, RunStarted, StartRun
from gridweave.site.service.clock import Clock
from gridweave.site.service.site_driver import SiteDriver


def driver() -> SiteDriver:
    """Return a driver of which only the clock is there, which showed 0 at 1000 ms and is ten times as fast."""
    made = object.__new__(SiteDriver)
    made.clock = Clock(epoch_ms=1_000, speed=10.0)
    return made


def test_machines_measure_limits_and_instants_in_real_time() -> None:
    """A limit of 10 s is one of 1 s there; an agreed instant is the Unix time at which the clock shows it."""
    launch = Launch(job_id=1, attempt=1, ranks=(Rank(0),), argv=("true",), limit_ms=10_000, alone_ms=1_505, rate=0.5)
    told = driver()._in_real_time(StartRun("m0", launch, (0,)))
    assert isinstance(told, StartRun)
    assert (told.launch.limit_ms, told.launch.alone_ms, told.launch.rate) == (1_000, 151, 0.5)
    assert driver()._in_real_time(PaceRun("m0", 1, 1, True, at_ms=5_000)) == PaceRun("m0", 1, 1, True, at_ms=1_500)
    assert driver()._in_real_time(PaceRun("m0", 1, 1, True)) == PaceRun("m0", 1, 1, True)


def test_the_times_of_machines_are_those_that_the_clock_shows() -> None:
    """Processes that ran from 1500 to 2000 ms of Unix time ran from 5000 to 10,000 for the site."""
    told = driver()._in_site_time(RunEnded("m0", 1, 1, "finished", ran_ms=(1_500, 2_000)))
    assert isinstance(told, RunEnded)
    assert told.ran_ms == (5_000, 10_000)
    for report in (RunEnded("m0", 1, 1, "lost"), RunStarted("m0", 1, 1)):
        assert driver()._in_site_time(report) is report


def test_a_clock_tells_both_ways() -> None:
    """What it shows at an instant, when it shows that, and how long a real span is on it."""
    clock = Clock(epoch_ms=1_000, speed=10.0)
    assert clock.unix_ms(clock.at(1_234)) == 1_234
    assert (clock.at(0), clock.shown_ms(25), clock.shown_ms(0.001)) == (0, 250, 1)
