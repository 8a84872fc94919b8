"""What the past suggests: limits that hold as often as they say, and fractions that add up."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.site.job import Resources
from gridweave.site.journal.records import JobUsage
from gridweave.site.journal.suggest import Rule, Suggestion, Trial, job_fractions, suggest

DAY_MS = 86_400_000


def job(number: int, run_ms: int, **more: Any) -> JobUsage:
    """Return a job that had the machine to itself: one a day."""
    options: dict[str, Any] = {"width": 1, "estimate_ms": DAY_MS, **more}
    return JobUsage(job_id=number, at_ms=DAY_MS * number + run_ms, run_ms=run_ms, **options)


def jobs_of(run_ms: list[int], **more: Any) -> list[JobUsage]:
    """Return jobs one after the other."""
    return [job(number, length_ms, **more) for number, length_ms in enumerate(run_ms)]


def suggested(jobs: list[JobUsage], **options: Any) -> Suggestion:
    """Return a suggestion without a margin, if nothing else is said."""
    return suggest(jobs, Rule(**{"margin": 0.0, **options}))


@pytest.mark.parametrize(("chance", "least"), [(0.5, 1), (0.1, 9), (0.05, 19), (0.01, 99), (0.3, 3)])
def test_too_few_jobs_suggest_nothing(chance: float, least: int) -> None:
    """With fewer than 1 / chance - 1 jobs even the longest run time vouches for nothing, and that is said."""
    lengths = [1000 * number for number in range(1, least + 1)]
    found = suggested(jobs_of(lengths[:-1]), kill_chance=chance)
    assert (found.estimate_ms, found.part_of_asked, found.memory_bytes, found.resources) == (None,) * 4
    assert found.reasons == (f"too few jobs: {least - 1}; {least} are needed for a chance of {100 * chance:g}%",)
    assert suggested(jobs_of(lengths), kill_chance=chance).estimate_ms == lengths[-1]


@pytest.mark.parametrize(("count", "rank"), [(19, 19), (20, 20), (38, 38), (39, 38), (99, 95), (1000, 951)])
def test_the_estimate_is_an_order_statistic(count: int, rank: int) -> None:
    """It is the least of the run times that the next job exceeds with 5% at most, whatever their order."""
    lengths = [1000 * number for number in range(1, count + 1)]
    assert suggested(jobs_of(lengths)).estimate_ms == 1000 * rank
    assert suggested(jobs_of(lengths[::-1])).estimate_ms == 1000 * rank
    assert (count + 1 - rank) / (count + 1) <= 0.05 < (count + 2 - rank) / (count + 1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.1, 0.25]))
def test_jobs_that_come_in_any_order_are_killed_no_more_often(seed: int, chance: float) -> None:
    """Each job in turn is held against all others, which is what exchangeable means: at most the chance is killed."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(math.ceil(1 / chance), 80))
    lengths = [int(length_ms) for length_ms in np.ceil(rng.lognormal(2, 2, count)) * 1000]
    killed = 0
    for left_out, length_ms in enumerate(lengths):
        estimate_ms = suggested(jobs_of(lengths[:left_out] + lengths[left_out + 1 :]), kill_chance=chance).estimate_ms
        assert estimate_ms is not None
        killed += length_ms > estimate_ms
    assert killed <= chance * count


def test_the_margin_is_rounded_up_to_seconds() -> None:
    """A limit is the run time, the margin more, rounded up to whole seconds, and one at least."""
    assert suggested(jobs_of([10_001] * 30), margin=0.1).estimate_ms == 12_000
    assert suggested(jobs_of([10_000] * 30), margin=0.1).estimate_ms == 11_000
    assert suggested(jobs_of([0] * 30)).estimate_ms == 1000


def test_jobs_that_were_killed_count_as_longer_than_any() -> None:
    """How long they would have run is not known: few of them are passed over, many leave nothing to suggest."""
    done = jobs_of([5000] * 38)
    killed = [job(100 + number, 1000, estimate_ms=1000) for number in range(3)]
    found = suggested([*done, killed[0]])
    assert found.estimate_ms == 5000
    assert found.part_of_asked == 0.001  # of a day
    found = suggested([*done, *killed])
    assert (found.estimate_ms, found.estimate_tested, found.part_of_asked, found.part_tested) == (None,) * 4
    assert found.reasons[0].startswith("no estimate: 3 of 41 jobs reached their limits")


def test_the_part_of_the_estimates_asked() -> None:
    """It bounds run time by estimate, also where run times differ by orders; it is never more than all."""
    asked = [10_000 * 2 ** (number % 10) for number in range(40)]
    jobs = [job(number, length // 4, estimate_ms=length) for number, length in enumerate(asked)]
    found = suggested(jobs)
    assert found.part_of_asked == 0.25
    assert found.part_tested == Trial(21, 0, 1.0)
    nearly = [job(number, 999, estimate_ms=1000) for number in range(40)]
    assert suggested(nearly, margin=0.5).part_of_asked == 1.0
    unknown = suggested(jobs_of([1000] * 40, estimate_ms=0))
    assert unknown.estimate_ms == 1000
    assert unknown.part_of_asked is None
    assert "too few jobs with an estimate: 0;" in unknown.reasons[0]


def test_the_test_knows_only_what_had_ended() -> None:
    """A job is tested with the jobs that had ended when it started, not with those that ran beside it."""
    alone = suggested(jobs_of([1000] * 25)).estimate_tested
    assert alone == Trial(6, 0, 1.0)
    together = [JobUsage(job_id=number, at_ms=1000, width=1, estimate_ms=9000, run_ms=1000) for number in range(25)]
    assert suggested(together).estimate_tested == Trial(0, 0, None)
    assert suggested([*together, job(1, 3000)]).estimate_tested == Trial(1, 1, None)
    at_once = [JobUsage(job_id=number, at_ms=7, width=1, estimate_ms=9000, run_ms=0) for number in range(25)]
    assert suggested(at_once).estimate_tested == Trial(0, 0, None)


def test_the_test_counts_jobs_that_would_have_been_killed() -> None:
    """Longer ones that come later are killed, and those that had been killed anyway are counted with them."""
    rising = jobs_of([1000 * number for number in range(1, 31)])
    assert suggested(rising).estimate_tested == Trial(11, 11, None)
    falling = suggested(jobs_of([1000 * number for number in range(30, 0, -1)]), margin=1.0)
    assert falling.estimate_tested == Trial(11, 0, 0.1)  # sixty seconds, and six are the middle of eleven to one
    killed = [*jobs_of([5000] * 40), job(50, 1000, estimate_ms=1000)]
    assert suggested(killed).estimate_tested == Trial(22, 1, 1.0)


def test_memory_is_bounded_as_run_time_is() -> None:
    """The suggested memory is the order statistic and its margin; as a part it is cut at a whole node."""
    used = [
        job(number, 1000, cpu=1.0, memory_bytes=number * 10**9, read_bytes=0, write_bytes=0) for number in range(1, 40)
    ]
    options: dict[str, Any] = {"disk_bps": 1e8, "margin": 0.25}
    found = suggested(used, node_memory_bytes=1e11, **options)
    assert found.memory_bytes == 47_500_000_000
    assert found.resources == Resources(cpu=1.0, network=0.0, disk=0.0, memory=0.475)
    assert found.reasons == ()
    small = suggested(used, node_memory_bytes=1e10, **options)
    assert small.resources is not None
    assert small.resources.memory == 1.0
    assert small.reasons == ("memory is a whole node's: past jobs used at least that much",)
    unknown = suggested(used, **options)
    assert unknown.resources is not None
    assert unknown.resources.memory == 1.0
    assert unknown.reasons == ("memory is a whole node's: the memory of a node is unknown",)


def test_what_is_not_known_is_said() -> None:
    """Without a bandwidth, or without records of CPU and I/O, there are no fractions, and there is a reason."""
    used = jobs_of([1000] * 30, cpu=0.5, read_bytes=1)
    assert suggested(used).reasons[-1] == "no resource fractions: the bandwidth of a node's disk is unknown"
    found = suggested(used, disk_bps=1e8)
    assert (found.resources, found.memory_bytes, found.estimate_ms) == (None, None, 1000)
    assert "too few jobs with known memory: 0;" in found.reasons[0]
    assert "too few jobs with known CPU and I/O: 0;" in found.reasons[1]


@pytest.mark.parametrize(
    ("width", "cpu", "moved", "fractions"),
    [
        (2, 0.5, 400, (0.5, 0.3, 0.2)),  # 400 bytes by two disks of 100 bytes/s are 2 of 10 s
        (2, 0.5, 5000, (0.5, 0.0, 0.5)),
        (2, 0.0, 0, (0.0, 1.0, 0.0)),
        (2, 1.7, 400, (1.0, 0.0, 0.0)),
        (1, 0.6, 200, (0.75, 0.0, 0.25)),
        (1, 0.0, 0, None),
    ],
)
def test_fractions_of_a_job(width: int, cpu: float, moved: int, fractions: tuple[float, ...] | None) -> None:
    """The disk has what its bandwidth needs, at most what the CPU leaves; the network has the rest of a wide job."""
    used = job(1, 10_000, width=width, cpu=cpu, read_bytes=moved // 2, write_bytes=moved - moved // 2)
    found = job_fractions(used, 100.0)
    assert found == (None if fractions is None else pytest.approx(fractions))


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(0, 10**12), st.integers(1, 4), st.integers(0, 10**6)),
        min_size=25,
        max_size=40,
    )
)
def test_fractions_are_resources_that_a_site_takes(rows: list[tuple[float, int, int, int]]) -> None:
    """They add up to 1, each from 0 to 1, whatever was recorded."""
    used = [
        job(number, run_ms, width=width, cpu=cpu, read_bytes=moved, write_bytes=0, memory_bytes=moved)
        for number, (cpu, moved, width, run_ms) in enumerate(rows)
    ]
    needs = suggest(used, Rule(disk_bps=1e8, node_memory_bytes=64e9)).resources
    if needs is None:
        assert sum(job_fractions(one, 1e8) is not None for one in used) < 19
        return
    parts = (needs.cpu, needs.network, needs.disk)
    assert all(0 <= part <= 1 for part in parts)
    assert abs(sum(parts) - 1) < 1e-6
    assert 0 < needs.memory <= 1
    assert msgspec.convert(msgspec.to_builtins(needs), Resources) == needs


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("kill_chance", value) for value in (0.0, -0.1, 0.51, math.nan)),
        *(("margin", value) for value in (-0.1, math.inf, math.nan)),
        *(("disk_bps", value) for value in (0.0, -1.0, math.inf, math.nan)),
        ("node_memory_bytes", 0.0),
    ],
)
def test_rules_that_make_no_sense_are_refused(option: str, value: float) -> None:
    """A wrong value is an error with its name."""
    with pytest.raises(OptionError, match=option):
        Rule(**{option: value})
