"""Reading SWF, and errors."""

from __future__ import annotations

import gzip
import lzma
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.traces.swf import SWF_FIELDS, SwfHeader, read_records, read_swf
from gridweave.scenarios.traces.text import MAX_WHOLE

NAMES = [field.name for field in SWF_FIELDS]


def record(**fields: object) -> str:
    """Return a valid SWF record with some fields changed."""
    values: dict[str, object] = dict.fromkeys(NAMES, -1)
    values |= {"job_id": 1, "submit_s": 0, "run_s": 10, "processors": 2, "requested_s": 20, "status": 1}
    unknown = set(fields) - set(NAMES)
    assert not unknown, unknown
    return " ".join(str(value) for value in (values | fields).values())


def trace(folder: Path, *lines: str, header: str = "; MaxNodes: 8", name: str = "t.swf") -> Path:
    """Write a trace file."""
    path = folder / name
    path.write_text("\n".join((header, *lines)) + "\n", encoding="latin-1")
    return path


# -- what is read


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", ["t.swf", "t.gz", "t.xz", "nothing"])
def test_compression_is_detected_from_the_content(tmp_path: Path, pack: Any, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pack(f"; MaxNodes: 8\n{record(job_id=7)}\n".encode()))
    workload, report = read_swf(path)
    assert workload.job_id.tolist() == [7]
    assert (report.records, report.kept) == (1, 1)


def test_times_become_milliseconds_from_time_zero(tmp_path: Path) -> None:
    """The first submission is not moved to zero."""
    path = trace(tmp_path, record(submit_s="100.25", run_s="0.0015", requested_s="20.0004"))
    workload, _ = read_swf(path)
    assert workload.submit_ms.tolist() == [100_250]
    assert workload.run_ms.tolist() == [2]
    assert workload.estimate_ms.tolist() == [20_000]


def test_optional_columns_are_read_on_request(tmp_path: Path) -> None:
    path = trace(tmp_path, record(user=3, group=4, queue=5, partition=6))
    workload, _ = read_swf(path, columns=("user", "group", "job_class", "partition"))
    assert {name: values.tolist() for name, values in workload.columns.items()} == {
        "user": [3],
        "group": [4],
        "job_class": [5],
        "partition": [6],
    }
    assert sorted(read_swf(path, columns=("user",))[0].columns) == ["user"]
    assert not read_swf(path)[0].columns


def test_unknown_columns_and_fields_are_refused(tmp_path: Path) -> None:
    path = trace(tmp_path, record())
    with pytest.raises(OptionError, match="'weight' is not a column of SWF; it has user, group"):
        read_swf(path, columns=("weight",))
    with pytest.raises(OptionError, match="'color' is not a field of SWF"):
        read_records(path, ["job_id", "color"])


def test_raw_records_have_all_eighteen_fields(tmp_path: Path) -> None:
    """Whole numbers are int64, and amounts are float64."""
    values = [1, 2.5, 3, 4, 5, 6.25, 7, 8, 9, 10, 0, 12, 13, 14, 15, 16, -1, 18]
    path = trace(tmp_path, " ".join(map(str, values)))
    columns, header = read_records(path)
    assert list(columns) == NAMES
    assert [column[0] for column in columns.values()] == values
    assert columns["job_id"].dtype == np.int64
    assert columns["cpu_s"].dtype == np.float64
    assert header.max_nodes == 8
    some, _ = read_records(path, ["think_s", "job_id"])
    assert list(some) == ["think_s", "job_id"]


def test_comments_blank_lines_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    lines = ["", "; MaxNodes: 8", record(job_id=1).replace(" ", "\t"), "  ; note", "   ", "  " + record(job_id=2)]
    path.write_bytes("\r\n".join(lines).encode())
    workload, _ = read_swf(path)
    assert workload.job_id.tolist() == [1, 2]


def test_comments_can_contain_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "t.swf"
    path.write_bytes(b"; Installation: Ume\xe5 \xff\x00\n; MaxNodes: 8\n" + record().encode() + b"\n")
    assert len(read_swf(path)[0]) == 1
    assert read_records(path)[1].text("Installation") == "Ume\xe5 \xff\x00"


def test_records_across_blocks_are_read_with_correct_line_numbers(tmp_path: Path) -> None:
    lines = [record(job_id=number, submit_s=number) for number in range(1, 150_001)]
    path = trace(tmp_path, *lines)
    assert path.stat().st_size > 2 * (4 << 20)
    workload, _ = read_swf(path)
    np.testing.assert_array_equal(workload.job_id, np.arange(1, 150_001))
    lines[140_000] = record(run_s="x")
    with pytest.raises(TraceError, match=r"t\.swf:140002: run_s: x is not a number"):
        read_swf(trace(tmp_path, *lines))


# -- the header


def test_header_entries_are_parsed() -> None:
    """Entries can continue over several lines and be repeated."""
    header = SwfHeader(
        (
            "; Computer: IBM SP2",
            "; Installation: Cornell Theory Center (CTC)",
            "; Information: http://www.tc.cornell.edu/",
            ";              http://www.cs.huji.ac.il/labs/parallel/workload/",
            "; UnixStartTime: 835823160",
            "; TimeZone: -18000",
            "; TimeZoneString: US/Eastern",
            "; MaxJobs: 79302",
            "; MaxRecords: 79302",
            "; MaxNodes: 338 (batch partition; 512 total)",
            "; MaxProcs: 338",
            "; Queue:  1 DSI",
            "; Queue:  2 astro",
            "; Partition: 1 DEFAULT",
            "; Note: one",
            ";       and more",
            "; Note: two",
        )
    )
    assert header.text("Computer") == "IBM SP2"
    assert header.entries["Information"][0].endswith(".edu/\nhttp://www.cs.huji.ac.il/labs/parallel/workload/")
    assert (header.unix_start_time, header.time_zone_offset_s, header.time_zone_string) == (
        835823160,
        -18000,
        "US/Eastern",
    )
    assert (header.number("MaxJobs"), header.max_nodes, header.max_procs) == (79302, 338, 338)
    assert header.entries["Queue"] == ("1 DSI", "2 astro")
    assert header.entries["Note"] == ("one\nand more", "two")


@pytest.mark.parametrize("value", ["", "many", "9" * 5000, "--3"])
def test_invalid_header_numbers_are_none(value: str) -> None:
    header = SwfHeader((f"; MaxNodes: {value}", f"; UnixStartTime: {value}"))
    assert header.max_nodes is None
    assert header.unix_start_time is None


@pytest.mark.parametrize(
    ("header", "nodes", "expected"),
    [
        ("; MaxNodes: 338 (batch partition; 512 total)\n; MaxProcs: 338", None, 338),
        ("; MaxProcs: 24515", None, 24515),
        ("; MaxNodes: 64", None, 64),
        ("; MaxNodes: 144\n; MaxProcs: 1152", None, 1152),
        ("; MaxNodes: 0\n; MaxProcs: -1", 5, 5),
        ("; MaxNodes: 338", 430, 430),
    ],
)
def test_the_machine_size_comes_from_the_caller_then_the_header(
    tmp_path: Path, header: str, nodes: int | None, expected: int
) -> None:
    """MaxProcs takes precedence over MaxNodes."""
    workload, report = read_swf(trace(tmp_path, record(), header=header), nodes=nodes)
    assert workload.nodes == report.nodes == expected


def test_an_unknown_machine_size_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="give it with --nodes"):
        read_swf(trace(tmp_path, record(), header="; MaxNodes: unknown"))


@pytest.mark.parametrize("nodes", [0, -3, 10**12])
def test_an_invalid_machine_size_is_refused(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(OptionError, match=r"^nodes: "):
        read_swf(trace(tmp_path, record()), nodes=nodes)


@pytest.mark.parametrize(
    ("lines", "zone"),
    [
        ("; TimeZoneString: Europe/Stockholm", "Europe/Stockholm"),
        ("; TimeZoneString: Atlantis/Center\n; TimeZone: -18000", "Etc/GMT+5"),
        ("; TimeZone: 3600", "Etc/GMT-1"),
        ("; TimeZone: 1800", None),
        ("; TimeZoneString: ../../etc/passwd", None),
        ("; TimeZone: 999999999999", None),
    ],
)
def test_the_time_zone_comes_from_the_name_or_the_offset(tmp_path: Path, lines: str, zone: str | None) -> None:
    workload, _ = read_swf(trace(tmp_path, record(), header=f"; MaxNodes: 8\n; UnixStartTime: 843480031\n{lines}"))
    assert workload.timezone == zone
    assert workload.start_unix_s == 843480031


# -- what is refused


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (record(processors=10**12), r":3: processors: 1000000000000 is not within"),
        (record(requested_processors=-(10**8)), r":3: requested_processors: -100000000 is not within"),
        (record(submit_s="1e300"), r":3: submit_s: 1e300 is not within"),
        (record(submit_s="1e400"), r":3: submit_s: 1e400 is not within"),
        (record(job_id=MAX_WHOLE + 1), r":3: job_id: 9007199254740992 is not within"),
        (record(job_id=MAX_WHOLE + 2), r":3: job_id: 9007199254740993 is not within"),
        (record(job_id=-1), r":3: job_id: -1 is not within 0 to"),
        (record(run_s="nan"), r":3: run_s: nan is not a number"),
        (record(requested_s="inf"), r":3: requested_s: inf is not a number"),
        (record(think_s="-"), r":3: think_s: - is not a number"),
        (record(user="0x10"), r":3: user: 0x10 is not a number"),
        (record(user="1_000"), r":3: user: 1_000 is not a number"),
        (record(processors="2.5"), r":3: processors: 2.5 is not a whole number"),
        (record(status="x" * 500), r":3: status: x{37}\.\.\. is not a number"),
        (record() + " 7", r":3: has 19 fields; an SWF record has 18"),
        (record().rsplit(" ", 1)[0], r":3: has 17 fields; an SWF record has 18"),
        ("5", r":3: has 1 field; an SWF record has 18"),
        (record(user="\xb2"), r":3: byte 0xb2 in a record"),
        (record().replace(" ", "\x0b"), r":3: byte 0x0b in a record"),
        (record().replace(" ", "\xa0"), r":3: byte 0xa0 in a record"),
        (record() + "\x00", r":3: byte 0x00 in a record"),
        (record().replace(" ", "\r", 1), r":3: byte 0x0d in a record"),
    ],
)
def test_invalid_records_are_reported_with_line_and_field(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read_swf(trace(tmp_path, record(), line))
    assert "\n" not in str(caught.value)
    assert caught.value.line == 3
    assert caught.value.path == tmp_path / "t.swf"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"; MaxNodes: 8\n", b"; only a comment"])
def test_files_without_jobs_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.swf"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="contains no jobs"):
        read_swf(path)
    assert all(len(column) == 0 for column in read_records(path)[0].values())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_truncated_and_damaged_archives_are_refused(tmp_path: Path, pack: Any) -> None:
    whole = pack("\n".join(["; MaxNodes: 8"] + [record(job_id=n, user=n * n % 97) for n in range(999)]).encode())
    path = tmp_path / "t.swf"
    for broken in (whole[: len(whole) // 2], whole[:20], whole[:60] + b"\xff" * 40 + whole[100:]):
        path.write_bytes(broken)
        with pytest.raises(TraceError, match=r"^[^\n]*cannot be decompressed[^\n]*$"):
            read_swf(path)


def test_missing_files_folders_and_endless_lines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file"):
        read_swf(tmp_path / "none.swf")
    with pytest.raises(TraceError, match="is a folder"):
        read_swf(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_swf("a\0b")
    path = tmp_path / "t.swf"
    path.write_bytes(b"; MaxNodes: 8\n" + b"1 " * (1 << 20))
    with pytest.raises(TraceError, match=r"t\.swf:2: is longer than"):
        read_swf(path)


FRAGMENTS = st.sampled_from(
    [
        record(),
        record(processors=99),
        "; MaxNodes: 8",
        "; TimeZone: 9",
        "\n",
        " ",
        "-1",
        "nan",
        "1e999",
        "\x00",
        "\xff",
        "9" * 400,
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=400),
        st.lists(st.one_of(FRAGMENTS, st.text(max_size=20)), max_size=20).map(lambda parts: "\n".join(parts).encode()),
        st.lists(FRAGMENTS, max_size=60).map(lambda parts: " ".join(parts).encode()),
        st.builds(lambda magic, rest: magic + rest, st.sampled_from([b"\x1f\x8b", b"\xfd7zXZ\x00"]), st.binary()),
        st.builds(
            lambda pack, cut: pack(f"; MaxNodes: 8\n{record()}\n".encode())[:cut],
            st.sampled_from([gzip.compress, lzma.compress]),
            st.integers(0, 200),
        ),
    )
)
def test_random_bytes_give_a_workload_or_a_trace_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.swf"
        path.write_bytes(content)
        problem = "one line"
        try:
            workload, report = read_swf(path)
            assert len(workload) == report.kept > 0
        except TraceError as error:
            problem = str(error)
        assert len(problem.splitlines()) == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.one_of(st.integers(-(10**20), 10**20), st.floats()), min_size=16, max_size=20), max_size=5))
def test_random_numbers_give_a_workload_or_an_input_error(rows: list[list[float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = trace(Path(folder), *(" ".join(map(str, row)) for row in rows))
        problem = "one line"
        try:
            workload, _ = read_swf(path, columns=("user",))
            assert (workload.width <= 8).all()
        except InputError as error:
            problem = str(error)
        assert len(problem.splitlines()) == 1


# -- real traces


@pytest.mark.trace
@pytest.mark.parametrize(
    ("name", "records", "kept", "cut"),
    [
        ("KTH-SP2-1996-2", 28_489, 28_481, 475),
        ("CTC-SP2-1996-3.1-cln", 77_222, 77_205, 7_174),
        ("SDSC-SP2-1998-4.2-cln", 59_715, 54_034, 4_134),
        ("LCG-2005-1", 188_041, 187_520, 0),
    ],
)
def test_every_record_of_a_real_trace_is_kept_or_counted(
    trace_path: Any, name: str, records: int, kept: int, cut: int
) -> None:
    workload, report = read_swf(trace_path(name))
    assert (report.records, report.kept, report.cut) == (records, kept, cut)
    assert sum(report.dropped.values()) == records - kept
    assert int(workload.overran.sum()) == cut
