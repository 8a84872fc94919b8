"""What jobs need of shared nodes that do not say it: by class from experience, or as the grid's file has it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.grid.config.checks import usual_needs
from gridweave.grid.config.reading import grid_of_text, read_grid
from gridweave.site.job import JobRecord, JobRequest, Program, Resources, why_impossible_needs
from gridweave.site.launch import NodeSharing, Used
from gridweave.site.needs.estimates import LEAST_RUNS, KnownNeeds, NeedsExperience, UsualNeeds, time_parts
from gridweave.site.needs.text import parse_resources, resources_text

SECOND_MS = 1000
SOLVER = Resources(cpu=0.9, network=0.1, memory=0.25)
BERTA = Resources(cpu=0.3, disk=0.7, memory=0.5)
USUAL = UsualNeeds(by_class={"solver": SOLVER}, by_user={"berta": BERTA})


def request(user: str = "anna", job_class: str = "", resources: Resources | None = None) -> JobRequest:
    """Return a job of two nodes."""
    program = Program(argv=("true",))
    return JobRequest(program=program, nodes=2, limit_ms=60_000, user=user, job_class=job_class, resources=resources)


def ended(job_class: str = "solver", cpu_s: float = 10.0, read: int = 800_000_000, **more: object) -> JobRecord:
    """Return a job that ran for ten seconds on two nodes."""
    used = Used(cpu_s=cpu_s, read_bytes=read, wall_s=10.0)
    record = JobRecord(job_id=1, request=request(job_class=job_class), submit_ms=0, used=used, outcome="finished")
    record.places = (("north", 2),)
    for name, value in more.items():
        setattr(record, name, value)
    return record


@pytest.mark.parametrize(
    ("job", "needs", "why"),
    [
        (request("berta", "solver", Resources(disk=1.0, cpu=0.0)), Resources(disk=1.0, cpu=0.0), ""),
        (request("berta", "solver"), SOLVER, "as the grid has it for class solver"),
        (request("berta", "other"), BERTA, "as the grid has it for user berta"),
        (request("anna", "other"), None, ""),
    ],
)
def test_what_a_job_says_goes_first_then_its_class_then_its_user(
    job: JobRequest, needs: Resources | None, why: str
) -> None:
    """Of a job of which nothing is known nothing is assumed."""
    assert KnownNeeds(USUAL).of(job) == (needs, why)


def test_enough_runs_of_a_class_go_before_the_file() -> None:
    """Half of the time on the CPU, a fifth on the disk at 200 MB/s; a run more or less of another kind changes it."""
    known = KnownNeeds(USUAL)
    for _ in range(LEAST_RUNS - 1):
        known.ended(ended(), 10 * SECOND_MS)
    assert known.of(request(job_class="solver")).needs == SOLVER
    known.ended(ended(), 10 * SECOND_MS)
    found = known.of(request(job_class="solver"))
    assert found == (Resources(cpu=0.5, network=0.3, disk=0.2, memory=0.5), "learnt from 5 runs of class solver")
    assert known.of(request("berta", "solver")).needs == SOLVER
    again = KnownNeeds(USUAL)
    again.restore(known.state())
    assert again.of(request(job_class="solver")) == found


@pytest.mark.parametrize(
    "record",
    [
        ended(job_class=""),
        ended(outcome="failed"),
        ended(places=(("north", 1), ("south", 1))),
        ended(sharing=NodeSharing(beside=(2,), slowdown=1.2)),
        ended(used=Used()),
        ended(cpu_s=float("inf")),
    ],
)
def test_only_whole_runs_of_a_class_on_nodes_of_their_own_teach(record: JobRecord) -> None:
    """Of others it is not known what they would have used alone."""
    known = KnownNeeds(UsualNeeds())
    known.ended(record, 10 * SECOND_MS)
    assert known.state() == []


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 10**11)), min_size=1, max_size=20),
    st.integers(1, 8),
    st.integers(1, 10**7),
)
def test_what_is_learnt_can_always_be_needed(runs: list[tuple[float, int]], width: int, run_ms: int) -> None:
    """The parts sum to 1, whatever jobs used, and people can write them."""
    kind = NeedsExperience(user="anna", job_class="any")
    for cpu, disk_bytes in runs:
        parts = time_parts(run_ms, width, cpu, disk_bytes, 2e8)
        kind = kind if parts is None else kind.with_run(parts)
    if kind.runs:
        assert why_impossible_needs(kind.needs) is None
        assert parse_resources("resources", resources_text(kind.needs)) == kind.needs
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(kind), type=NeedsExperience) == kind


def grid_text(resources: str) -> str:
    """Return the file of a grid that says what jobs need."""
    return f'sites = [{{ name = "a", nodes = 2 }}]\n[grid]\nresources = {resources}\n'


def test_the_grid_file_says_what_jobs_need() -> None:
    """It is one text, or by class and user; without it nothing is known of jobs that say nothing."""
    read = grid_of_text(grid_text('"cpu=1"'), "GRID.toml", "")
    assert usual_needs(read.grid) == UsualNeeds(default=Resources(cpu=1.0, memory=0.5))
    table = '{ by_class = { solver = "cpu=0.9,network=0.1,memory=0.25" }, by_user = { b = "" }, disk = "1 GB/s" }'
    read = grid_of_text(grid_text(table), "GRID.toml", "")
    assert usual_needs(read.grid) == UsualNeeds(by_class={"solver": SOLVER}, disk_bps=1e9)
    assert usual_needs(read_grid(None).grid) == UsualNeeds()


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ('"gpu=1"', "grid.resources: 'gpu=1': 'gpu=1' is not understood; write for example cpu=0.6,network=0.3,"),
        (
            '{ by_class = { cfd = "cpu=0.5" } }',
            "grid.resources.by_class.cfd: 'cpu=0.5': cpu, network and disk are (0.5, 0.0, 0.0)",
        ),
        (
            '{ by_user = { b = "cpu=1,memory=2" } }',
            "grid.resources.by_user.b: 'cpu=1,memory=2': memory is 2.0; expected",
        ),
        ('{ disk = "fast" }', "grid.resources.disk: 'fast' is not an amount of data; write for example 200 MB/s"),
        ('{ disks = "1 GB/s" }', "disks"),
    ],
)
def test_what_is_wrong_with_it_is_told_where_it_is(resources: str, says: str) -> None:
    """Each problem has a line."""
    with pytest.raises(InputError, match=re.escape(says)):
        grid_of_text(grid_text(resources), "GRID.toml", "")
