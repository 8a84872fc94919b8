"""The MuPSiE job format: reading, errors and round trips."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.traces.mupsie import read_mupsie, write_mupsie
from gridweave.scenarios.traces.swf import read_swf
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, Workload

# The beginning of the PC2-2001 trace, as thesis section 3.8 prints it.
PC2_2001 = """\
# Machine Size: 96
# Start Time: Tuesday, 2 Jan 01, 08:15:43
## now the jobs !
## format: job number, submit time, req. resources, actual run time, est. run time
  0         1   64      79  21600
  1        221  96     163   1200
  2        994   8      10     60
  3       1017  64   86400  86400
  4       4966   4  172800  172800
  5       5554   8   88787  172800
  6       5688   8      25   1200
  7       6152   8      61   1200
  8       6238   4      22   1200
  9       6474  16      58   1200
 10      17661   4   3970  172800
"""


def trace(folder: Path, text: str) -> Path:
    """Write a trace file."""
    path = folder / "t.mupsie"
    path.write_text(text, encoding="latin-1")
    return path


def test_the_example_of_the_thesis_is_read(tmp_path: Path) -> None:
    """It is the printed beginning of PC2-2001, with eleven jobs."""
    workload, report = read_mupsie(trace(tmp_path, PC2_2001))
    assert (report.kept, report.records, workload.nodes) == (11, 11, 96)
    assert workload.job_id.tolist() == list(range(11))
    assert workload.submit_ms[:3].tolist() == [1_000, 221_000, 994_000]
    assert workload.width[:3].tolist() == [64, 96, 8]
    assert workload.run_ms[:3].tolist() == [79_000, 163_000, 10_000]
    assert workload.estimate_ms[:3].tolist() == [21_600_000, 1_200_000, 60_000]
    assert workload.start_unix_s == 978_423_343  # 2001-01-02 08:15:43 UTC
    assert workload.timezone is None


def test_both_formats_give_the_same_workload_and_report(tmp_path: Path) -> None:
    jobs = [(1, 0, 4, 30, 20), (2, 5, 99, 1, 1), (3, 4, 1, 0, 9), (4, 6, 2, 7, -1), (5, 3, 2, 7, 9), (4, 8, 2, 7, 9)]
    mupsie = trace(tmp_path, "# Machine Size: 8\n" + "\n".join(" ".join(map(str, job)) for job in jobs))
    swf = tmp_path / "t.swf"
    lines = [f"{i} {s} -1 {r} {w} -1 -1 -1 {e} " + "-1 " * 9 for i, s, w, r, e in jobs]
    swf.write_text("; MaxNodes: 8\n" + "\n".join(lines))
    (left, left_report), (right, right_report) = read_mupsie(mupsie), read_swf(swf)
    assert left_report == right_report
    for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms", "overran"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert left.job_id.tolist() == [1, 5, 4]


@pytest.mark.parametrize(
    ("comments", "start"),
    [
        ("# Start Time: Tuesday, 2 Jan 01, 08:15:43", 978_423_343),
        ("# Start Time: 2 January 2001, 08:15:43", 978_423_343),
        ("#start time:  Fri, 31 Dec 99, 23:59:59", 946_684_799),
        ("# Start Time: Tuesday, 2 Jan 01, 08:15:43\n# Time Zone: Europe/Berlin", 978_419_743),
        ("# Start Time: Tuesday, 2 Jan 01, 08:15:43\n# Unix Start Time: 17", 17),
        ("# Start Time: Tuesday, 31 Feb 01, 08:15:43", None),
        ("# Start Time: Tuesday, 2 Foo 01, 08:15:43", None),
        ("# Start Time: yesterday", None),
        ("", None),
    ],
)
def test_start_times_use_the_exact_comment_or_the_zone(tmp_path: Path, comments: str, start: int | None) -> None:
    """An invalid start time is unknown."""
    workload, _ = read_mupsie(trace(tmp_path, f"# Machine Size: 4\n{comments}\n1 0 1 1 1\n"))
    assert workload.start_unix_s == start


def test_machine_size_comes_from_the_call_or_the_comment(tmp_path: Path) -> None:
    assert read_mupsie(trace(tmp_path, "#Machine Size: 4\n1 0 1 1 1\n"))[0].nodes == 4
    assert read_mupsie(trace(tmp_path, "#Machine Size: 4\n1 0 1 1 1\n"), nodes=9)[0].nodes == 9
    with pytest.raises(TraceError, match="give it with --nodes"):
        read_mupsie(trace(tmp_path, "# Machine Size: none\n1 0 1 1 1\n"))
    with pytest.raises(OptionError, match=r"^nodes: 0 "):
        read_mupsie(trace(tmp_path, "1 0 1 1 1\n"), nodes=0)


def test_requesting_optional_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'user' is not available"):
        read_mupsie(trace(tmp_path, PC2_2001), columns=("user",))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 0 1 1", r":2: has 4 fields; a MuPSiE record has 5"),
        ("1 0 1 1 1 1", r":2: has 6 fields; a MuPSiE record has 5"),
        ("1 0 1 1 one", r":2: estimate_s: one is not a number"),
        ("1 0 1000000000000 1 1", r":2: resources: 1000000000000 is not within"),
        ("-1 0 1 1 1", r":2: job_id: -1 is not within"),
        ("1 0 1.5 1 1", r":2: resources: 1\.5 is not a whole number"),
    ],
)
def test_invalid_records_are_reported_with_line_and_field(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_mupsie(trace(tmp_path, f"# Machine Size: 4\n{line}\n"))


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(lambda text: f"# Machine Size: 9\n# Start Time: {text}\n1 0 1 1 1".encode()),
        st.lists(st.sampled_from(["1", "-1", "1.5", "x", "\n", "#", "1e99", "nan"]), max_size=60).map(
            lambda parts: (" ".join(parts)).encode()
        ),
        st.integers(0, 60).map(lambda cut: gzip.compress(PC2_2001.encode())[:cut]),
    )
)
def test_random_bytes_give_a_workload_or_a_trace_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.mupsie"
        path.write_bytes(content)
        problem = "one line"
        try:
            workload, report = read_mupsie(path)
            assert len(workload) == report.kept > 0
        except TraceError as error:
            problem = str(error)
        assert len(problem.splitlines()) == 1


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload with all properties that the format can hold."""
    ids = sorted(draw(st.sets(st.integers(0, 2**53 - 1), min_size=1, max_size=6)))

    def column(values: st.SearchStrategy[int]) -> Any:
        return np.array(draw(st.lists(values, min_size=len(ids), max_size=len(ids))))

    times = st.one_of(st.integers(1, 100_000), st.integers(1, MAX_TIME_MS))
    estimates = column(times)
    return Workload(
        job_id=np.array(ids),
        submit_ms=np.sort(column(st.one_of(st.integers(0, 5), st.integers(0, MAX_TIME_MS)))),
        width=column(st.integers(1, MAX_WIDTH)),
        estimate_ms=estimates,
        run_ms=np.minimum(estimates, column(times)),
        nodes=MAX_WIDTH,
        start_unix_s=draw(st.none() | st.integers(-(10**11), 10**11)),
        timezone=draw(st.none() | st.sampled_from(["Europe/Stockholm", "UTC", "America/New_York"])),
    )


@settings(max_examples=100, deadline=None)
@given(workloads(), st.sampled_from(["w.mupsie", "w.txt.gz", "w.mupsie.xz"]))
def test_writing_and_reading_gives_the_same_workload(workload: Workload, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_mupsie(workload, Path(folder) / name)
        again, _ = read_mupsie(Path(folder) / name)
        assert [file.name for file in Path(folder).iterdir()] == [name]
    for column in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms"):
        np.testing.assert_array_equal(getattr(workload, column), getattr(again, column))
    assert (workload.nodes, workload.start_unix_s, workload.timezone) == (
        again.nodes,
        again.start_unix_s,
        again.timezone,
    )


def test_the_header_is_written_as_the_thesis_prints_it(tmp_path: Path) -> None:
    workload, _ = read_mupsie(trace(tmp_path, PC2_2001))
    write_mupsie(workload, tmp_path / "out.mupsie")
    lines = (tmp_path / "out.mupsie").read_text().splitlines()
    assert lines[:2] == PC2_2001.splitlines()[:2]
    records = [line.split() for line in lines if not line.startswith("#")]
    assert records == [line.split() for line in PC2_2001.splitlines() if not line.startswith("#")]


def test_ids_beyond_the_exact_range_are_refused(tmp_path: Path) -> None:
    """No file is left."""
    one = np.array([1])
    workload = Workload(np.array([2**60]), one, one, one, one)
    with pytest.raises(InputError, match="job_id 1152921504606846976 is beyond"):
        write_mupsie(workload, tmp_path / "w.mupsie")
    assert not list(tmp_path.iterdir())
