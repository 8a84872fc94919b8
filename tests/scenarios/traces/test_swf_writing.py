"""Writing SWF: round trips and atomicity."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.scenarios.traces.swf import read_swf, write_swf
from gridweave.scenarios.traces.text import MAX_WHOLE
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, Workload


def same(left: Workload, right: Workload) -> None:
    """Assert that two workloads are equal except for their names."""
    for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms", "overran"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    assert sorted(left.columns) == sorted(right.columns)
    for name, values in left.columns.items():
        np.testing.assert_array_equal(values, right.columns[name], err_msg=name)
    assert (left.nodes, left.start_unix_s, left.timezone) == (right.nodes, right.start_unix_s, right.timezone)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload with all properties that SWF can hold."""
    ids = sorted(draw(st.sets(st.integers(0, MAX_WHOLE), min_size=1, max_size=8)))
    n = len(ids)

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=n, max_size=n))

    times = st.one_of(st.integers(1, 100_000), st.integers(1, MAX_TIME_MS), st.integers(1, 9).map(lambda s: s * 1000))
    estimates = column(times)
    runs = [min(run, estimate) for run, estimate in zip(column(times), estimates, strict=True)]
    killed = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    names = draw(
        st.sets(st.sampled_from(["user", "group", "job_class", "partition", "memory_kb", "requested_memory_kb"]))
    )
    return Workload(
        job_id=np.array(ids),
        submit_ms=np.sort(column(st.one_of(st.integers(0, 5), st.integers(0, MAX_TIME_MS)))),
        width=np.array(column(st.integers(1, MAX_WIDTH))),
        estimate_ms=np.array(estimates),
        run_ms=np.array(runs),
        overran=np.array([kill and run == end for kill, run, end in zip(killed, runs, estimates, strict=True)]),
        columns={name: np.array(column(st.integers(-MAX_WHOLE, MAX_WHOLE))) for name in sorted(names)},
        nodes=MAX_WIDTH,
        name=draw(st.text(max_size=20)),
        start_unix_s=draw(st.none() | st.integers(-(10**11), 10**11)),
        timezone=draw(st.none() | st.sampled_from(["Europe/Stockholm", "UTC", "America/New_York"])),
    )


@settings(max_examples=150, deadline=None)
@given(workloads(), st.sampled_from(["w.swf", "w.swf.gz", "w.swf.xz"]))
def test_writing_and_reading_gives_the_same_workload(workload: Workload, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_swf(workload, path)
        again, report = read_swf(path, columns=sorted(workload.columns))
        assert [file.name for file in Path(folder).iterdir()] == [name]
    same(workload, again)
    assert report.kept == report.records == len(workload)
    assert report.cut == 0


def plain(**changes: Any) -> Workload:
    """Return a workload of one job."""
    one = np.array([1])
    job = {"job_id": one, "submit_ms": one, "width": one, "estimate_ms": one, "run_ms": one}
    return Workload(**(job | {"nodes": 8} | changes))


def test_written_records_have_eighteen_fields_and_decimals_only_where_needed(tmp_path: Path) -> None:
    """The width is in both width fields, and -1 means unknown."""
    workload = plain(submit_ms=np.array([60_000]), run_ms=np.array([1_500]), estimate_ms=np.array([2_000]))
    write_swf(workload, tmp_path / "w.swf")
    *header, line = (tmp_path / "w.swf").read_text().splitlines()
    assert all(comment.startswith("; ") for comment in header)
    assert line == "1 60 -1 1.5 1 -1 -1 1 2 -1 1 -1 -1 -1 -1 -1 -1 -1"


@pytest.mark.parametrize("suffix", [".swf", ".swf.gz", ".swf.xz"])
def test_equal_workloads_give_equal_files(tmp_path: Path, suffix: str) -> None:
    """Neither a time stamp nor the file name affects the bytes."""
    paths = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for path in paths:
        write_swf(plain(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_failed_write_leaves_files_unchanged(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.swf").write_text("old")
    for path in (tmp_path / "none" / "w.swf", tmp_path / "folder"):
        with pytest.raises(InputError, match="cannot be written"):
            write_swf(plain(), path)
    with pytest.raises(InputError, match="job_id 9007199254740992 is beyond"):
        write_swf(plain(job_id=np.array([MAX_WHOLE + 1])), tmp_path / "old.swf")
    assert (tmp_path / "old.swf").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "old.swf"]


def test_writing_to_a_symbolic_link_replaces_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target.swf", tmp_path / "link.swf"
    target.write_text("old")
    link.symlink_to(target)
    write_swf(plain(), link)
    assert link.is_symlink()
    assert len(read_swf(target)[0]) == 1


@pytest.mark.trace
def test_a_real_trace_survives_a_round_trip(trace_path: Any, tmp_path: Path) -> None:
    columns = ("user", "group", "job_class", "partition")
    workload, _ = read_swf(trace_path("KTH-SP2-1996-2"), columns=columns)
    write_swf(workload, tmp_path / "k.swf.gz")
    same(workload, read_swf(tmp_path / "k.swf.gz", columns=columns)[0])
