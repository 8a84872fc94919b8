"""Reading exports of Slurm's accounting from several versions of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridweave.cli.trace import app
from gridweave.errors import TraceError
from gridweave.scenarios.traces.chunk_files import read_chunks
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.traces.sacct import NEEDED, read_sacct, states_of
from gridweave.site.resources.chunks import Chunk

RECORDED = Path(__file__).parents[2] / "data" / "slurm" / "sacct-22.05.txt"
HEADINGS = "JobIDRaw|Submit|Start|End|State|Timelimit|NNodes|Reason|NodeList\n"
NEW = (
    HEADINGS
    + """\
11|2026-01-05T08:00:00|2026-01-05T08:00:01|2026-01-05T08:10:01|COMPLETED|01:00:00|2|Resources|n[1-2]
11.batch|2026-01-05T08:00:01|2026-01-05T08:00:01|2026-01-05T08:10:01|COMPLETED||1||n1
12|2026-01-05T08:01:00|None|2026-01-05T08:05:00|CANCELLED by 1000|02:00:00|4|Priority|None assigned
13|2026-01-05T08:02:00|2026-01-05T08:10:01|2026-01-05T08:40:01|TIMEOUT|00:30:00|1|None|n3
14|2026-01-05T08:03:00|2026-01-05T08:10:01|2026-01-05T08:20:01|NODE_FAIL|1-00:00:00|1|None|n4
15|2026-01-05T08:04:00|2026-01-05T08:10:01|2026-01-05T08:11:01|CANCELLED by 1000|UNLIMITED|1|None|n4
16|2026-01-05T08:05:00|Unknown|Unknown|PENDING|01:00:00|1|Resources|None assigned
"""
)
OLD = NEW.replace("|None|2026-01-05T08:05:00|", "|2026-01-05T08:05:00|2026-01-05T08:05:00|").replace(
    "CANCELLED by 1000", "CANCELLED+"
)
OLDER = NEW.replace("|None|2026-01-05T08:05:00|", "|Unknown|2026-01-05T08:05:00|")


def write_export(tmp_path: Path, text: str) -> Path:
    """Write a file."""
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [NEW, OLD, OLDER], ids=["None", "the end", "Unknown"])
def test_exports_of_all_versions_are_read(text: str, tmp_path: Path) -> None:
    workload, report, jobs = read_sacct(write_export(tmp_path, text), nodes=4)
    assert workload.job_id.tolist() == [11, 12, 13, 14, 15]
    assert workload.submit_ms.tolist() == [0, 60_000, 120_000, 180_000, 240_000]
    assert workload.width.tolist() == [2, 4, 1, 1, 1]
    assert workload.run_ms.tolist() == [600_000, 7_200_000, 1_800_000, 600_000, 60_000]
    assert workload.estimate_ms.tolist() == [3_600_000, 7_200_000, 1_800_000, 86_400_000, 60_000]
    assert workload.overran.tolist() == [False, False, True, False, False]
    assert workload.columns["cancel_ms"].tolist() == [-1, 300_000, -1, -1, -1]
    assert workload.start_unix_s == 1_767_600_000
    assert (report.cancelled, report.estimates_filled) == (1, 1)
    assert states_of(jobs) == {"CANCELLED": 2, "COMPLETED": 1, "TIMEOUT": 1, "NODE_FAIL": 1}
    assert [job.reason for job in jobs] == ["Resources", "Priority", "", "", ""]


def test_conversion_writes_a_trace_and_a_file_of_states(tmp_path: Path) -> None:
    """The trace has the cancellations, the other file the final states."""
    out = tmp_path / "out.swf"
    given = ["convert", str(write_export(tmp_path, NEW)), str(out), "--from", "sacct", "--nodes", "4"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    workload, _ = load_workload(out, cancelled=True)
    before, _, _ = read_sacct(tmp_path / "log.txt", nodes=4)
    assert workload.columns["cancel_ms"].tolist() == before.columns["cancel_ms"].tolist()
    for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms"):
        assert getattr(workload, name).tolist() == getattr(before, name).tolist()
    assert "12" not in [str(job_id) for job_id in load_workload(out)[0].job_id.tolist()]
    assert (tmp_path / "out.swf.states.csv").read_text().splitlines() == [
        "job_id,state,reason,nodes",
        "11,COMPLETED,Resources,n[1-2]",
        "12,CANCELLED,Priority,",
        "13,TIMEOUT,,n3",
        "14,NODE_FAIL,,n4",
        "15,CANCELLED,,n4",
    ]


SHARED = """\
JobIDRaw|Submit|Start|End|State|Timelimit|NNodes|NodeList|AllocCPUS|ReqCPUS
1|2026-01-05T08:00:00|2026-01-05T08:00:00|2026-01-05T09:00:00|COMPLETED|02:00:00|1|n1|8|8
2|2026-01-05T08:00:00|2026-01-05T08:00:00|2026-01-05T10:00:00|COMPLETED|02:00:00|2|n[1-2]|16|16
3|2026-01-05T08:30:00|2026-01-05T08:30:00|2026-01-05T08:40:00|COMPLETED|02:00:00|1|n2|8|8
4|2026-01-05T08:30:00|None|2026-01-05T08:40:00|CANCELLED by 0|02:00:00|1|None assigned|0|4
"""


def without(text: str, *columns: str) -> str:
    """Return an export without some columns."""
    rows = [line.split("|") for line in text.splitlines()]
    kept = [place for place, name in enumerate(rows[0]) if name not in columns]
    return "\n".join("|".join(row[place] for place in kept) for row in rows) + "\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            SHARED,
            "at least 3 jobs shared nodes (jobs 1 and 2 ran on n1 at the same time); convert its cores, memory and",
        ),
        (
            without(SHARED.replace("|n1|8|8", "|n1|4|4"), "NodeList"),
            "jobs had 4 to 8 cores per node, so they may have shared nodes; export the column NodeList",
        ),
        (
            without(SHARED, "NodeList", "AllocCPUS", "ReqCPUS"),
            "its jobs used 4 nodes at the same time, but the machine has 2",
        ),
    ],
)
def test_a_log_of_shared_nodes_is_refused_without_by_cores(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_sacct(write_export(tmp_path, text), nodes=2)
    assert says in str(caught.value)


def test_consecutive_jobs_do_not_share_a_node(tmp_path: Path) -> None:
    """A node can be reused at the time of its release."""
    apart = SHARED.replace("1|2026-01-05T08:00:00|2026-01-05T08:00:00", "1|2026-01-05T07:00:00|2026-01-05T07:00:00")
    apart = apart.replace("2026-01-05T09:00:00", "2026-01-05T08:00:00").replace(
        "|2026-01-05T08:30:00|2026-01-05T08:40", "|2026-01-05T10:00:00|2026-01-05T10:40"
    )
    workload, report, _ = read_sacct(write_export(tmp_path, apart), nodes=2)
    assert (workload.width.tolist(), report.kept) == ([1, 2, 1, 1], 4)


def test_by_cores_accepts_a_log_of_shared_nodes(tmp_path: Path) -> None:
    """The width is the allocated number of cores or, if a job never started, the requested number."""
    out = tmp_path / "out.swf"
    given = ["convert", str(write_export(tmp_path, SHARED)), str(out), "--from", "sacct", "--by-cores", "--nodes", "32"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    workload, _ = load_workload(out, cancelled=True)
    assert (workload.width.tolist(), workload.nodes) == ([8, 16, 8, 4], 32)
    with pytest.raises(TraceError, match="has no column AllocCPUS"):
        read_sacct(write_export(tmp_path, without(SHARED, "AllocCPUS", "ReqCPUS")), nodes=32, by_cores=True)


WRONG = {
    "": "has no jobs",
    HEADINGS: "contains no job that has ended",
    HEADINGS.replace(
        "NNodes", "Nodes"
    ): f"1: has no column NNodes; export it with: sacct --parsable2 --format=JobID,{NEEDED[0]}",
    NEW.replace("|n3", ""): "5: has 8 values; the header has 9",
    NEW.replace("|00:30:00|", "|soon|"): "5: Timelimit: 'soon' is not a time limit, such as 1-02:00:00",
    NEW.replace("2026-01-05T08:02:00", "yesterday"): "5: Submit: 'yesterday' is not a date and time, such as",
    NEW.replace("00:30:00|1|", "00:30:00|x|"): "5: NNodes: 'x' is not a whole number",
    NEW.replace("|00:30:00|", "|9999999999-00:30:00|"): "5: Timelimit: '9999999999-00:30:00' is longer",
    NEW.replace("13|", f"{10**19}|"): f"5: JobIDRaw: '{10**19}' is not a whole number up to",
    NEW.replace("00:30:00|1|", f"00:30:00|{10**19}|"): f"5: NNodes: '{10**19}' is not a whole number up to",
}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_exports_are_refused_with_their_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_sacct(write_export(tmp_path, text), nodes=4)
    assert WRONG[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def array_of(tasks: str) -> str:
    """Return an export of an array whose listed tasks were cancelled while waiting."""
    line = "|11|2026-01-05T08:00:00|None|2026-01-05T08:05:00|CANCELLED by 0|01:00:00|1|Priority|None assigned\n"
    return f"JobID|{HEADINGS}11_[{tasks}]{line}"


def test_unstarted_array_tasks_on_one_line_are_counted(tmp_path: Path) -> None:
    """Slurm writes evenly spaced tasks as a range with a step."""
    workload, _, _ = read_sacct(write_export(tmp_path, array_of("0-20:5%2")), nodes=4)
    assert workload.job_id.tolist() == [11, 12, 13, 14, 15]


@pytest.mark.parametrize("tasks", ["0-9999999", "7-3", "0-99999999999999999999"])
def test_impossible_array_sizes_are_refused(tasks: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r":2: JobID: '11_\["):
        read_sacct(write_export(tmp_path, array_of(tasks)), nodes=4)


def test_an_export_of_slurm_22_05_is_read(tmp_path: Path) -> None:
    """It has jobs with all final states, and arrays without started tasks."""
    workload, report, jobs = read_sacct(RECORDED, nodes=4)
    assert states_of(jobs) == {"COMPLETED": 10, "CANCELLED": 9, "FAILED": 2, "TIMEOUT": 1, "NODE_FAIL": 1}
    assert report.cancelled == 8
    # Three tasks each of the arrays 11 and 21, of which sacct prints one line; the first has the array's number.
    cancelled = workload.job_id[workload.columns["cancel_ms"] >= 0].tolist()
    assert sorted(cancelled) == [8, 11, 12, 21, 22, 23, 24, 25]
    (timeout,) = (row for row, number in enumerate(workload.job_id.tolist()) if number == 5)
    assert (workload.overran[timeout], workload.run_ms[timeout]) == (True, 60_000)


REQUEUED = """\
JobID|JobIDRaw|Submit|Start|End|State|Timelimit|NNodes|JobName
10|10|2023-03-01T08:00:00|2023-03-01T08:00:00|2023-03-01T09:00:00|REQUEUED|02:00:00|2K|a|b
10.batch|10.batch|2023-03-01T08:00:00|2023-03-01T08:00:00|2023-03-01T09:00:00|REQUEUED||1|batch
10|10|2023-03-01T09:00:00|2023-03-01T09:30:00|2023-03-01T10:00:00|COMPLETED|02:00:00|1.50K||c||
11|11|2023-03-01T09:00:00|Unknown|Unknown|REQUEUED|02:00:00|4|d
12|12|2023-03-01T09:00:00|2023-03-01T09:00:00|Unknown|RUNNING|02:00:00|4|e
"""


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_run_of_a_requeued_job_is_a_job(mark: str, tmp_path: Path) -> None:
    """Separators in names, counts in thousands and a byte order mark are handled."""
    workload, report, _ = read_sacct(write_export(tmp_path, mark + REQUEUED), nodes=2048)
    assert workload.job_id.tolist() == [10, 11]
    assert workload.submit_ms.tolist() == [0, 3_600_000]
    assert workload.run_ms.tolist() == [3_600_000, 1_800_000]
    assert workload.width.tolist() == [2048, 1536]
    assert report.left_out == {"jobs that have not ended": 2, "steps of jobs": 1}
    assert report.lines()[1:] == ["  left out 2: jobs that have not ended", "  left out 1: steps of jobs"]


def test_separators_in_two_text_columns_are_refused(tmp_path: Path) -> None:
    text = REQUEUED.replace("JobName", "JobName|Comment")
    with pytest.raises(
        TraceError, match=r"log\.txt:4: has 12 values; the header has 10; leave out columns with user text"
    ):
        read_sacct(write_export(tmp_path, text.replace("|batch\n", "|batch|\n")), nodes=2048)


WITH_TRES = """\
JobIDRaw|Submit|Start|End|State|Timelimit|NNodes|ReqTRES|AllocTRES
1|2026-01-05T08:00:00|2026-01-05T08:00:00|2026-01-05T09:00:00|COMPLETED|02:00:00|1|cpu=1|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1
2|2026-01-05T08:00:00|2026-01-05T08:00:00|2026-01-05T10:00:00|COMPLETED|02:00:00|2||cpu=17,mem=3000M,node=2
3|2026-01-05T08:30:00|None|2026-01-05T08:40:00|CANCELLED|02:00:00|0|cpu=4,gres/gpu:a=1,gres/gpu:v=1,mem=1G,node=1|
"""


def test_chunks_are_the_shares_of_the_nodes_in_the_allocated_resources(tmp_path: Path) -> None:
    """A job that never started gets the requested resources."""
    workload, report, _ = read_sacct(write_export(tmp_path, WITH_TRES), nodes=2, chunks=True)
    assert workload.width.tolist() == [1, 2, 1]
    assert [workload.chunks[number] for number in workload.columns["chunk"].tolist()] == [
        Chunk(cores=8, memory_mb=68_720, gpus=2, gpu_type="a100"),
        Chunk(cores=9, memory_mb=1573),
        Chunk(cores=4, memory_mb=1074, gpus=2),
    ]
    assert report.rounded == 1


def test_conversion_by_chunks_writes_a_file_that_can_be_read_back(tmp_path: Path) -> None:
    out = tmp_path / "out.swf"
    given = ["convert", str(write_export(tmp_path, WITH_TRES)), str(out), "--from", "sacct", "--chunks", "--nodes", "2"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    workload = read_chunks(f"{out}.chunks.csv", load_workload(out, cancelled=True)[0])
    before, _, _ = read_sacct(tmp_path / "log.txt", nodes=2, chunks=True)
    asked, asked_before = (
        [jobs.chunks[number] for number in jobs.columns["chunk"].tolist()] for jobs in (workload, before)
    )
    assert asked == asked_before


@pytest.mark.parametrize(("tres", "problem"), [("cpu=x", "cpu: 'x' is not"), ("cpu=1,mem=9000000P", "mem: '9000000P'")])
def test_wrong_resources_are_refused_with_their_line(tres: str, problem: str, tmp_path: Path) -> None:
    text = WITH_TRES.replace("cpu=17,mem=3000M,node=2", tres)
    with pytest.raises(TraceError, match=f":3: {problem}"):
        read_sacct(write_export(tmp_path, text), nodes=2, chunks=True)


def test_chunks_need_the_columns_with_the_resources(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no column AllocTRES or ReqTRES"):
        read_sacct(write_export(tmp_path, NEW), nodes=4, chunks=True)
