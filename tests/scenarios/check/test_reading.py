"""Read schedules of gridweave, Batsim, Alea, AccaSim and SWF, and report invalid ones in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import TraceError
from gridweave.scenarios.check.reading import NEVER, RanJob, Schedule, read_schedule

GRIDWEAVE = """\
job_id,submit_ms,start_ms,end_ms,width,estimate_ms,run_ms,site,fragments,killed
1,0,0,50000,2,60000,50000,"a, b",1,0
2,1000,-1,-1,9,50000,0,"a, b",0,0
"""
BATSIM = """\
job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,success,final_state,\
starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,consumed_energy,metadata
w0!1,w0,p,0.000000,2,60,1,COMPLETED_SUCCESSFULLY,0.000000,50.000000,50.000000,0,50,1,0-1,-1,
w0!2,w0,p,1.000000,9,50,0,REJECTED,,,,,,,,-1,
"""
BATSIM_3 = """\
job_id,hacky_job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,starting_time,\
execution_time,finish_time,waiting_time,turnaround_time,stretch,consumed_energy,allocated_resources
1,10,9f12,0.000000,2,60.000000,1,0.000000,50.000000,50.000000,0.000000,50.000000,1.000000,-1.000000,0-1
2,20,9f12,1.000000,9,50.000000,0,,,,,,,,
"""
BATSIM_1 = """\
jobID,submission_time,requested_number_of_processors,requested_time,success,starting_time,execution_time,finish_time,\
waiting_time,turnaround_time,stretch,allocated_processors
1,0.000000,2,60.000000,1,0.000000,50.000000,50.000000,0.000000,50.000000,1.000000,0 1
"""
ALEA = """\
giID \t arrival \t wait \t runtime \t CPUs \t RAM \t userID \t queue
1\t0\t0,0\t50,0\t2\t0\tu\tq
3\t2\t10,3\t1,2345678E7\t4\t1048576\tu\tq
"""
ACCASIM = """\
1;u1;1996-09-23 14:00:00__1;1;100#1;1;100#__1996-09-23 14:00:00;1996-09-23 14:00:50;2;2;NA;60;
3;NA;1996-09-23 14:00:01__7;2;0#9;2;0#__1996-09-23 14:00:11;1996-09-23 14:00:16;2;4;0;NA;
4;u2;1996-09-23 14:00:01__7#9#__1996-09-23 14:00:11;1996-09-23 14:00:16;2;NA;NA;60;
"""
SWF = """\
; a comment
1 0 0 50 2 -1 -1 2 60 -1 1 1 1 -1 1 -1 -1 -1
2 1 -1 -1 -1 -1 -1 9 50 -1 5 1 1 -1 1 -1 -1 -1
"""
ACCASIM_START_MS = 843_487_200_000
FIRST, NEVER_RAN = RanJob(1, 0, 2, 0, 50_000), RanJob(2, 1_000, 9)
SAMPLES = {
    "gridweave": (GRIDWEAVE, [FIRST, NEVER_RAN]),
    "Batsim": (BATSIM, [FIRST, NEVER_RAN]),
    "Batsim, with a second number": (BATSIM_3, [FIRST, NEVER_RAN]),
    "Batsim, its first": (BATSIM_1, [FIRST]),
    "Alea": (ALEA, [FIRST, RanJob(3, 2_000, 4, 12_300, 12_345_690_300)]),
    "AccaSim": (ACCASIM, [FIRST, RanJob(3, 1_000, 4, 11_000, 16_000), RanJob(4, 1_000, 2, 11_000, 16_000)]),
    "SWF": (SWF, [FIRST, NEVER_RAN]),
}


def jobs_of(schedule: Schedule) -> list[RanJob]:
    """Return the jobs of a schedule, without their nodes."""
    columns = (schedule.job_id, schedule.submit_ms, schedule.width, schedule.start_ms, schedule.end_ms)
    return [RanJob(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def written(tmp_path: Path, text: str) -> Path:
    """Write a text to a file."""
    path = tmp_path / "schedule.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", SAMPLES)
def test_each_format_is_recognized(kind: str, tmp_path: Path) -> None:
    """Each format is recognized by its first line; times are in ms, and jobs that never ran have none."""
    text, wanted = SAMPLES[kind]
    schedule = read_schedule(written(tmp_path, text))
    since_ms = ACCASIM_START_MS if kind == "AccaSim" else 0
    told = [
        RanJob(*job[:1], job.submit_ms - since_ms, job.width, *(t if t == NEVER else t - since_ms for t in job[3:5]))
        for job in jobs_of(schedule)
    ]
    assert (schedule.kind, told) == (kind.partition(",")[0], wanted)
    nodes = (frozenset({0, 1}), None)[: len(wanted)]
    assert schedule.nodes == (nodes if schedule.kind == "Batsim" else None)


WRONG = {
    "": "has no jobs",
    "\n; nothing\n": "has no jobs",
    "a,b,c\n1,2,3\n": "is in an unknown format; expected gridweave, Batsim, Alea, AccaSim or SWF (docs/check.md)",
    GRIDWEAVE.splitlines()[0]: "has no jobs",
    GRIDWEAVE.replace(",fragments", ",pieces"): "1: has no column fragments, as schedules of gridweave do",
    GRIDWEAVE.replace('",1,0', '",2,0'): "2: is not a job as gridweave writes it: in several fragments",
    GRIDWEAVE.replace(
        "1,0,0,50000", "1,0,x,50000"
    ): "2: is not a job as gridweave writes it: 'x' is not a whole number",
    GRIDWEAVE.replace("1,0,0,50000", "-1,0,0,50000"): "2: is not a job as gridweave writes it: job id -1",
    GRIDWEAVE.replace("0,0,50000", f"0,0,{10**17}"): "2: is not a job as gridweave writes it: a time is too large",
    GRIDWEAVE + "3,4\n": "4: ends after 2 values; a job of gridweave has more",
    GRIDWEAVE.replace(', b",1,0', ", b,1,0"): "2: ends after 8 values; a job of gridweave has more",
    BATSIM.replace("0-1", "0-x"): "2: is not a job as Batsim writes it: 'x' is not a whole number",
    BATSIM.replace("0-1", f"0-{10**12}"): "2: is not a job as Batsim writes it: nodes 0-",
    BATSIM.replace("50.000000,50.0", "50.000000,nan.0"): "2: is not a job as Batsim writes it",
    BATSIM_1.replace("jobID", "id"): "1: has no column job_id or jobID, as schedules of Batsim do",
    ALEA.replace("10,3", "inf"): "3: is not a job as Alea writes it: 'inf' is not a time in seconds",
    ACCASIM + "4;u\n": "4: ends after 0 values; a job of AccaSim has more",
    ACCASIM.replace("14:00:50", "14:61:50"): "1: is not a job as AccaSim writes it: '1996-09-23 14:61:50' is not",
    SWF + "3 1\n": "4: ends after 2 values; a job of SWF has more",
}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_lines_are_reported_with_file_and_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_schedule(written(tmp_path, text))
    said = str(caught.value)
    assert WRONG[text] in said
    assert said.startswith(str(tmp_path))
    assert "\n" not in said


def test_folders_missing_files_and_binary_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00job")
    for path, said in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file"), (binary, "not text")):
        with pytest.raises(TraceError, match=said):
            read_schedule(path)
    with pytest.raises(TraceError, match="null byte"):
        read_schedule("a\0b")
