"""The commands about jobs and about the grid, against a gateway: what they print, and what they say of mistakes."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from gridweave.cli import grid_client, job_commands
from gridweave.cli.grid_client import job_numbers, print_forecast, relative
from gridweave.cli.job_commands import parse_when_ms
from gridweave.cli.terminal import VisibleBytes
from gridweave.errors import OptionError
from gridweave.grid.api import JobProgress
from gridweave.ranges import ranges_text
from gridweave.site.array_tasks import ArrayTask
from gridweave.site.explain import Forecast, record_forecast
from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.launch import SplitCost
from support.gateway import Elsewhere, make_tokens

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """Start a gateway that the commands find by themselves, at an instant that stands still."""
    monkeypatch.setenv("GRIDWEAVE_URL", elsewhere.url)
    monkeypatch.setenv("LOGNAME", "anna")
    monkeypatch.setattr(grid_client, "now_ms", lambda: 1_700_000_060_000)
    monkeypatch.setattr("gridweave.cli.job_commands.now_ms", lambda: 1_700_000_060_000)
    monkeypatch.setattr("gridweave.cli.grid_commands.now_ms", lambda: 1_700_000_060_000)
    monkeypatch.setenv("TZ", "UTC")
    return elsewhere


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip() and "───" not in line]


# -- jobs


def test_jobs_are_listed(here: Elsewhere, shell: Shell) -> None:
    """Jobs that have not ended are listed, the newest first; with --all also the others."""
    for nodes in (1, 2, 3):
        assert shell("submit", "-n", nodes, "-t", "90m", "--name", f"job{nodes}", "--", "true")[0] == 0
    here.call(here.grid.start, 1)
    here.call(here.grid.start, 2)
    here.call(here.grid.end, 2)
    status, out, err = shell("jobs")
    assert (status, err) == (0, "")
    heading, *found = rows(out)
    assert heading == ["job", "name", "user", "state", "where", "nodes", "limit", "starts", "runs", "submitted"]
    assert found == [
        ["3", "job3", "anna", "waiting", "-", "3", "1 h 30 min", "in 9 min", "-", "1 min ago"],
        ["1", "job1", "anna", "running", "north 1", "1", "1 h 30 min", "1 min ago", "1 min", "1 min ago"],
    ]
    assert [row[:4] for row in rows(shell("jobs", "--all")[1])[1:]] == [
        ["3", "job3", "anna", "waiting"],
        ["2", "job2", "anna", "finished"],
        ["1", "job1", "anna", "running"],
    ]


def test_jobs_and_usage_of_a_time(here: Elsewhere, shell: Shell) -> None:
    """What was there between two instants is listed as CSV, and summed up by user and day; the rest is not."""
    for user, nodes in (("anna", 2), ("berta", 3), ("anna", 1)):
        assert shell("submit", "--user", user, "-n", nodes, "--name", "a,b", "--", "true")[0] == 0
    for job_id in (1, 2):
        here.call(here.grid.start, job_id)
        here.grid.records_by_id[job_id].start_ms = 1_700_000_000_000 - 7_200_000
        here.call(here.grid.end, job_id)
        here.grid.records_by_id[job_id].end_ms = 1_700_000_000_000
    here.grid.records_by_id[3].submit_ms = 1_700_000_050_000
    lines = shell("jobs", "--csv", "--since", "1h")[1].splitlines()
    assert lines[0].startswith("job,name,user,account,state,outcome,nodes,")
    assert lines[3].startswith('1,"a,b",anna,,ended,finished,2,3600000,')
    assert [line.partition(",")[0] for line in lines[1:]] == ["3", "2", "1"]
    until = shell("jobs", "--json", "--until", "2023-11-14T22:14:00+00:00")[1]
    assert [record["job_id"] for record in json.loads(until)] == [2, 1]
    assert [record["job_id"] for record in json.loads(shell("jobs", "--json", "--since", "30s")[1])] == [3]
    assert shell("usage", "--by", "user,day", "--csv")[1].splitlines() == [
        "user,day,jobs,node_hours,cpu_hours,core_hours,gpu_hours",
        "anna,2023-11-14,1,4.0,0.0,0.0,0.0",
        "berta,2023-11-14,1,6.0,0.0,0.0,0.0",
    ]
    heading = ["site", "jobs", "node-hours", "CPU hours"]
    assert rows(shell("usage", "--by", "site")[1]) == [heading, ["north", "2", "10.00", "0.00"]]
    assert shell("usage", "--since", "10s")[1:] == ("", "no job has ended in that time\n")
    for arguments, says in (
        (["jobs", "--since", "yesterdays"], "--since: 'yesterdays' is not a time; write 2026-11-23"),
        (["jobs", "--since", "1h", "--until", "2h"], "--until: '2h' is not later than --since '1h'"),
        (["usage", "--by", "user,hour"], "--by: hour: not known; one or several of user, account"),
    ):
        status, _, err = shell(*arguments)
        assert status == 2
        assert says in err


@pytest.mark.parametrize("text", ["9:00:00", "9:00", "09:00"])
def test_a_time_of_a_day_is_one_of_today(here: Elsewhere, text: str) -> None:
    """However many digits its hours have, and with seconds or without."""
    today = datetime.datetime.fromtimestamp(1_700_000_060).astimezone()
    at_nine = today.replace(hour=9, minute=0, second=0, microsecond=0)
    assert parse_when_ms("--since", text, 1_700_000_060_000) == at_nine.timestamp() * 1000


def test_jobs_are_chosen(here: Elsewhere, shell: Shell) -> None:
    """Jobs can be asked for by state, outcome, name and array, a few at a time; where there is none it is said."""
    for _ in range(3):
        shell("submit", "--name", "odd", "--", "true")
        shell("submit", "--array", "1-2", "--key", "mine", "--name", "even", "--", "true")
    here.call(here.grid.end, 1, "failed")

    def numbers(*arguments: str) -> list[int]:
        status, out, _ = shell("jobs", "--json", *arguments)
        assert status == 0
        return [record["job_id"] for record in json.loads(out)]

    assert numbers() == [5, 4, 3, 2]
    assert numbers("--name", "odd") == [5, 4]
    assert numbers("--array", "even-mine") == [3, 2]
    assert numbers("--outcome", "failed,limit") == [1]
    assert numbers("--state", "ended", "--state", "running") == [1]
    assert numbers("--user", "berta") == []
    status, out, err = shell("jobs", "--limit", 2)
    assert [row[0] for row in rows(out)[1:]] == ["5", "4"]
    assert err == "there are more; see them with --limit 20\n"
    assert shell("jobs", "--user", "berta")[1:] == ("", "no matching jobs; add --all to include ended ones\n")
    assert "--state: 'done' is not known; one of held, waiting" in shell("jobs", "--state", "done")[2]
    assert status == 0


def test_a_job_is_shown(here: Elsewhere, shell: Shell) -> None:
    """All that is known of a job is shown, with its story; what is not said is left out."""
    shell("submit", "-n", 2, "--env", "A=B", "--after", "1:ended", "--", "./solver", "two words")
    here.call(here.grid.start, 1)
    here.call(here.grid.end, 1, "failed")
    record = here.grid.records_by_id[1]
    record.reason, record.exit_codes = "rank 1 was ended by SIGKILL", ((1, None, 9), (0, 3, None))
    status, out, err = shell("show", 1)
    assert (status, err) == (0, "")
    found = {row[0]: row[1] for row in rows(out) if len(row) == 2}
    assert found["runs"] == "./solver 'two words'"
    assert found["nodes"] == "2, a rank on each node"
    assert found["exit codes"] == "rank 1: signal 9, rank 0: 3"
    assert found["after"] == "job 1 has ended"
    assert out.startswith("Job 1: failed")
    assert "class" not in found
    assert [row[2] for row in rows(out) if len(row) >= 3 and row[1].startswith("+")] == ["submitted", "runs", "ended"]
    shown = json.loads(shell("show", 1, "--json")[1])
    assert (shown["outcome"], [one["kind"] for one in shown["history"]]) == ("failed", ["submitted", "runs", "ended"])


def test_what_a_split_costs_and_took_is_shown(here: Elsewhere, shell: Shell) -> None:
    """A job on several sites is shown with the cost of its split, how long it really took, and what it sends."""
    shell("submit", "-n", 2, "--communication", "ring", "--input-data", "north:1kB", "--", "./solver")
    assert "sends" in shell("show", 1)[1]
    here.call(here.grid.start, 1)
    here.call(here.grid.end, 1, "finished")
    record = here.grid.records_by_id[1]
    text = "split over north (1) and south (1): 12 min instead of 10 min (factor 1.20: 5 ms, 10 Gbps between them)"
    record.split = SplitCost(whole_ms=600_000, length_ms=720_000, factor=1.2, communication="ring", text=text)
    record.start_ms, record.end_ms = 1_000, 661_000
    found = {row[0]: row[1] for row in rows(shell("show", 1)[1]) if len(row) == 2}
    assert found["split"] == f"{text}; it took 11 min"
    assert found["sends"] == "ring; reads 1,000 bytes at north"


def test_it_is_shown_that_a_limit_counts_work(here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jobs take turns the limit is one of work; it is said how much is done, how fast now and on average."""
    shell("submit", "-n", 2, "-t", "4h", "--", "./solver")
    here.call(here.grid.start, 1)
    assert "has done" not in shell("show", 1)[1]
    here.grid.progress["north"] = [JobProgress(2, 1.0, 5), JobProgress(1, 0.25, 4_320_000)]
    start_ms = here.grid.records_by_id[1].start_ms or 0
    monkeypatch.setattr(job_commands, "now_ms", lambda: start_ms + 10_800_000)
    found = {row[0]: row[1] for row in rows(shell("show", 1)[1]) if len(row) == 2}
    assert found["limit"] == "4 h of work, not of elapsed time"
    assert found["has done"] == "1 h 12 min of work, at 25% of full speed now, 40% on average"
    assert json.loads(shell("show", 1, "--json")[1])["progress"]["worked_ms"] == 4_320_000


def test_the_elements_of_a_packed_array_are_shown(here: Elsewhere, shell: Shell) -> None:
    """Each element has its end and the count of its starts; what it wrote is a part of what its rank wrote."""
    shell("submit", "--array", "1-3", "--pack", "--pack-size", 3, "--", "./step")
    here.call(here.grid.start, 1)
    here.call(here.grid.write, 1, b"onetwo")
    record = here.grid.records_by_id[1]
    record.array_tasks = (
        ArrayTask(1, 0, None, 0, 1500, 20, 10**6, 0, (0, 3), (0, 0)),
        ArrayTask(2, 3, None, 0, 10, 20, 10**6, 0, (3, 3), (0, 0)),
    )
    record.interrupted = (2,)
    found = {row[0]: row[1] for row in rows(shell("show", 1)[1]) if len(row) == 2}
    assert found["array tasks"] == "3, 2 have ended, 1 of them failed, 1 interrupted"
    assert [row[:3] for row in rows(shell("show", 1, "--elements")[1])[1:]] == [["1", "0", "1"], ["2", "3", "2"]]
    command = [sys.executable, "-m", "gridweave.cli", "logs", "1", "--element", "2"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"two"
    assert "has no array task 3 that is known to have ended" in shell("logs", 1, "--element", 3)[2]
    assert "--element: does not work with" in shell("logs", 1, "--element", 2, "--rank", 1)[2]


def test_a_job_that_has_ended_is_explained_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Each fact is told once: that it has ended, how, and when it had started."""
    print_forecast(Forecast(job_id=5, now_ms=90_000, state="ended", start_ms=30_000, reason="failed: exit code 2"))
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "job 5 has ended: failed: exit code 2",
        "it started 1 min ago",
    ]


def test_a_job_that_runs_is_explained_once(capsys: pytest.CaptureFixture[str]) -> None:
    """That it runs, since when, where and for how long at most, as a site or the grid knows it from its record."""
    request = JobRequest(program=Program(argv=("true",)), nodes=3, limit_ms=600_000)
    record = JobRecord(job_id=5, request=request, submit_ms=0, start_ms=30_000, places=(("south", 3),))
    record.state = "running"
    print_forecast(record_forecast(record, 90_000))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "job 5 runs"
    assert re.fullmatch(r"it started 1 min ago \(.*\) on south 3, for at most 10 min", lines[1])
    assert len(lines) == 2


def test_a_job_is_explained(here: Elsewhere, shell: Shell) -> None:
    """An explanation has the reason, when and where it starts, each site's reason, and what a split would be."""
    shell("submit", "-n", 12, "-t", "10m", "--", "true")
    status, out, _ = shell("explain", 1)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "job 1 waits: no site has 12 nodes free, and a split would end 4 minutes later"
    assert re.fullmatch(r"it starts in 10 min \(.*\) on north 12, for at most 10 min", lines[1])
    assert lines[2] == "2 jobs ahead of it in the queue"
    table = rows("\n".join(lines[3:-1]))
    assert table[0] == ["site", "nodes", "free", "alone there", "why"]
    assert table[1][:3] == ["north", "16", "3"]
    assert table[2][3:] == ["never", "has 6 nodes for the grid, and the job needs 12"]
    assert lines[-1] == (
        "a split: north 3 + south 6, now, ends 4 min later: the links between north and south make it 1.8 times as long"
    )
    assert json.loads(shell("explain", 1, "--json")[1])["split"]["gain_ms"] == -240_000
    quoted = shell("quote", "-n", 12, "-t", "10m")[1]
    assert quoted.splitlines()[0] == "such a job: no site has 12 nodes free, and a split would end 4 minutes later"
    assert json.loads(shell("quote", "--json")[1])["job_id"] is None


def test_it_is_asked_what_would_become_of_the_grid(here: Elsewhere, shell: Shell) -> None:
    """The grid as it is stands beside the grid as it would be, with how sure that is and what was assumed."""
    status, out, err = shell("what-if", "--drain", "north", "--nodes", "west=8", "--load", 2)
    assert (status, err) == (0, "")
    table = rows(out)
    assert table[0] == ["If each job runs up to its limit"]
    assert ["mean wait", "1 min", "2 min"] in table
    assert ["west", "-", "50.0% of 8"] in table
    assert "Certainty: both simulations yield longer waits" in out
    assert out.splitlines()[-1] == "Assumed: running jobs continue where they are."
    assert json.loads(shell("what-if", "--policy", "overhead=0.2,0.3", "--json")[1])["plays"][0]["length"] == 1


def test_jobs_are_changed(here: Elsewhere, shell: Shell) -> None:
    """Jobs are named by numbers, ranges and arrays; it is said which were changed, and which were not."""
    shell("submit", "--array", "1-5", "--key", "k", "--name", "sweep", "--", "true")
    assert shell("hold", 1, "3-4")[1] == "held: 1 3-4\n"
    assert shell("release", "1-9")[1:] == (
        "released: 1 3-4\n",
        "gridweave: 2 5-9: not held, or not one of your jobs\n",
    )
    here.call(here.grid.start, 3)
    assert shell("requeue", "3-4")[1:] == (
        "requeued: 3\n",
        "gridweave: 4: not running, may not be requeued, or not one of your jobs\n",
    )
    here.call(here.grid.end, 5)
    assert shell("cancel", 1, 5)[1:] == (
        "cancelled: 1\n",
        "gridweave: 5: already ended, or not one of your jobs\n",
    )
    assert shell("cancel", "sweep-k")[1:] == ("cancelled: 2-4\n", "")
    status, out, _ = shell("cancel", "1-5", "--json")
    assert (status, json.loads(out)) == (2, {"job_ids": []})
    for _ in range(2):
        shell("submit", "--", "true")
    assert shell("cancel", "--all", "--user", "berta")[1:] == ("", "no matching jobs\n")
    status, out, err = shell("cancel", "--all")
    assert (status, out) == (2, "")
    assert "would cancel 2 jobs; add --yes to confirm" in err
    assert shell("cancel", "--all", "--yes")[1] == "cancelled: 6-7\n"
    status, out, err = shell("cancel", 77)
    assert (status, out, err) == (2, "", "gridweave: 77: already ended, or not one of your jobs\n")


def test_jobs_are_cancelled_by_what_is_known_of_them(here: Elsewhere, shell: Shell) -> None:
    """Name, user and state choose the jobs; those that have ended are left alone."""
    for name in ("solver", "other", "solver"):
        shell("submit", "--name", name, "--", "true")
    here.call(here.grid.start, 1)
    assert shell("cancel", "--name", "solver", "--state", "waiting")[1] == "cancelled: 3\n"
    assert shell("cancel", "--name", "solver")[1] == "cancelled: 1\n"
    assert shell("cancel", "--user", "anna")[1] == "cancelled: 2\n"
    assert "one of held, waiting" in shell("cancel", "--state", "ended")[2]


def test_running_jobs_are_ended_at_once_or_sent_a_signal(here: Elsewhere, shell: Shell) -> None:
    """--now ends them without their grace, --signal sends a signal by name or number to those that run."""
    for _ in range(3):
        shell("submit", "--", "true")
    here.call(here.grid.start, 1)
    here.call(here.grid.start, 2)
    for text in ("USR1", "sigusr1", "10"):
        assert shell("cancel", 1, "--signal", text)[:2] == (0, "sent the signal: 1\n")
    status, _, err = shell("cancel", "1-3", "--signal", "HUP")
    assert (status, err.strip()) == (2, "gridweave: 3: not running, or not one of your jobs")
    assert shell("cancel", "2-3", "--now")[:2] == (0, "cancelled at once: 2-3\n")
    told = [(entry.kind, entry.detail[:8]) for entry in here.grid.stories[1] if entry.kind == "signal"]
    assert told == [("signal", "USR1 by ")] * 3 + [("signal", "HUP by t")]
    assert "one of HUP, INT" in shell("cancel", 1, "--signal", "STOP")[2]
    assert "give only one of them" in shell("cancel", 1, "--signal", "HUP", "--now")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cancel"], "JOB: name the jobs, or give --all"),
        (["cancel", "1", "--all"], "JOB: give job numbers or selection options, not both"),
        (["cancel", "1", "--user", "anna"], "JOB: give job numbers or selection options, not both"),
        (["cancel", "nothing-such"], "there is no array 'nothing-such'; name jobs as 17, 3-9"),
        (["hold", "9-3"], "JOB: '9-3' is not a range of jobs; write 17 or 3-9"),
        (["hold", "0"], "JOB: '0' is not a range of jobs"),
        (["hold", "1-99999999"], "at most 100,000 jobs"),
        (["show", "99"], "there is no job 99"),
        (["explain", "0"], "Invalid value for 'JOB': must be at least 1; see: "),
        (["logs", "99"], "there is no job 99"),
        (["drain", "nowhere"], "site 'nowhere' is none of north, south"),
        (["what-if"], "nothing would change; give --drain"),
        (["what-if", "--drain", "nowhere"], "drain: there is no site 'nowhere'"),
        (["what-if", "--nodes", "north"], "--nodes: 'north' is not SITE=N, e.g. north=16"),
        (["what-if", "--nodes", "north=all"], "--nodes: 'all' is not a number of nodes, from 0 up"),
        (["what-if", "--policy", "colour=red"], "--policy: there is no 'colour'; mode, order"),
        (["what-if", "--policy", "overhead=much"], "--policy: overhead is 'much'; give a number"),
        (["what-if", "--nodes", f"north={10**25}"], "a number is too large to be sent; at most 64 bits"),
        (["what-if", "--load", "200"], "Invalid value for '--load': must be at most 100; see: "),
        (["queue", "--limit", "1001"], "Invalid value for '--limit' / '-l': must be at most 1000; see: "),
        (["logs", "1", "--rank", str(10**8)], "rank: Expected `int` <= 10000000; parameters: rank, attempt, stream"),
        (["drain", "a\udcff"], "'a\\udcff' is not UTF-8, and cannot be sent; write it as UTF-8"),
        (["jobs", "--name", "a\udcff"], "'a\\udcff' is not UTF-8, and cannot be sent; write it as UTF-8"),
        (["cancel", "1", "--signal", "9" * 5000], "is not a signal that jobs can be sent; one of HUP"),
        (["cancel", f"{2**63}"], "JOB: '9223372036854775808' is not a range of jobs"),
        (["jobs", "--since", "25:00"], "--since: '25:00' is not a time; write 2026-11-23"),
        (["quote", "-n", "0"], "Invalid value for '--nodes' / '-n': must be at least 1; see: "),
        (["quote", "-t", "soon"], "--time: 'soon' is not a time"),
        (["watch", "--every", "1ms"], "--every: '1ms' is too often"),
    ],
    ids=" ".join,
)
def test_mistakes(here: Elsewhere, shell: Shell, arguments: list[str], says: str) -> None:
    """A mistake is one line, with status 2."""
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("gridweave: ")
    assert len(err.splitlines()) == 1
    assert says in err


def test_output_is_printed(here: Elsewhere) -> None:
    """What a rank has written is printed as it is, byte by byte, and followed to the end."""
    request = JobRequest(program=Program(argv=("true",)), nodes=2, limit_ms=1_000)
    here.do(here.grid.submit([("key", request)], site=None, origin="a test"))
    here.call(here.grid.write, 1, b"one\n\xff\0two", rank=1)
    here.call(here.grid.write, 1, b"oops\n", stream="err")

    def printed(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "gridweave.cli", "logs", "1", *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout

    assert printed("--rank", "1") == b"one\n\xff\0two"
    assert printed("--stderr") == b"oops\n"
    here.call(here.grid.end, 1)
    assert printed("-f", "--rank", "1") == b"one\n\xff\0two"


def test_output_that_was_removed_is_an_error(here: Elsewhere, shell: Shell) -> None:
    """When and why is one line, and the status is not 0, whether the output is followed or not."""
    request = JobRequest(program=Program(argv=("true",)), limit_ms=1_000)
    here.do(here.grid.submit([("key", request)], site=None, origin="a test"))
    here.call(here.grid.end, 1)
    here.grid.removed[1] = said = "the output of job 1 was removed at 2026-11-27 08:00:00 UTC: it was too old"
    for arguments in ([], ["-f"], ["--stderr"]):
        assert shell("logs", "1", *arguments) == (2, "", f"gridweave: {said}\n")


HOSTILE = b"\x1b]0;title\x07\x1b[2Jred \x1b[31mx\x1b[0m\xc2\x9b1m \x9b\xffend\n"


def at_a_terminal(*arguments: str) -> bytes:
    """Return what a command prints whose output is a terminal."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-m", "gridweave.cli", *arguments], stdout=theirs) as command:
            os.close(theirs)
            said = b""
            with contextlib.suppress(OSError):  # that is how a terminal ends
                while data := os.read(ours, 4096):
                    said += data
        assert command.returncode == 0
    finally:
        os.close(ours)
    return said.replace(b"\r\n", b"\n")


def test_a_terminal_gets_no_control_sequences_of_others(here: Elsewhere) -> None:
    """What others have written, and what they called it, changes nothing of a terminal, unless one asks for it raw."""
    hostile = HOSTILE.decode("latin-1").replace("\n", "")
    request = JobRequest(program=Program(argv=("sh", "-c", hostile)), limit_ms=1_000)
    here.do(here.grid.submit([("key", request)], site=None, origin="a test"))
    here.call(here.grid.write, 1, HOSTILE)
    assert at_a_terminal("logs", "1").decode() == "red x \ufffd\ufffdend\n"
    assert at_a_terminal("logs", "1", "--raw") == HOSTILE
    for command in (("show", "1"), ("show", "1", "--json")):
        shown = at_a_terminal(*command).decode()
        assert "end" in shown
        assert all(letter.isprintable() or letter == "\n" for letter in strip_styles(shown)), shown


def strip_styles(text: str) -> str:
    """Return what the command printed without its own bold headings."""
    return re.sub(r"\x1b\[[01]m", "", text)


def test_control_sequences_are_found_wherever_output_is_cut() -> None:
    """In whatever parts output comes, a terminal gets the same; a sequence without an end holds nothing up."""
    whole = VisibleBytes().add(HOSTILE)
    for cut in range(len(HOSTILE)):
        output = VisibleBytes()
        assert output.add(HOSTILE[:cut]) + output.add(HOSTILE[cut:]) + output.end() == whole, cut
    output = VisibleBytes()
    assert output.add(b"\x1b]" + b"x" * 5_000) == b"]" + b"x" * 5_000
    assert (output.add(b"a\x1b"), output.end()) == (b"a", b"")


# -- the grid


def test_jobs_of_sites_own_users_are_listed_as_well(here: Elsewhere, shell: Shell) -> None:
    """Jobs that were given to a site are listed, summed up and cancelled with those of the grid; or alone."""
    of_north, of_grid = (
        int(shell(*("submit", *where, "--", "true"))[1].split()[-1]) for where in (("--site", "north"), ())
    )
    assert [int(row[0]) for row in rows(shell("jobs")[1])[1:]] == [of_grid, of_north]
    assert [int(row[0]) for row in rows(shell("jobs", "--own", "north")[1])[1:]] == [of_north]
    assert [record["job_id"] for record in json.loads(shell("jobs", "--all", "--limit", 1, "--json")[1])] == [of_grid]
    assert shell("cancel", "--all", "--yes")[1] == f"cancelled: {of_grid} {of_north}\n"
    over = [of_grid, of_north]
    for where in (("--site", "north"), ()):
        job_id = int(shell("submit", *where, "--", "true")[1].split()[-1])
        here.call(here.grid.start, job_id)
        here.call(here.grid.end, job_id)
        over.append(job_id)
    assert [int(row[0]) for row in rows(shell("jobs")[1])[1:]] == []
    assert sorted(int(row[0]) for row in rows(shell("jobs", "--all")[1])[1:]) == sorted(over)
    assert json.loads(shell("usage", "--json")[1])[0]["jobs"] == 2


def test_many_jobs_are_named_in_few_words(here: Elsewhere, shell: Shell) -> None:
    """Hundreds of numbers that are no range fill no screen; a script gets all of them."""
    shell("submit", "--array", "1-100", "--key", "k", "--", "true")
    for even in range(2, 101, 2):
        here.call(here.grid.end, even)
    _, out, _ = shell("cancel", "--all", "--yes")
    assert out.endswith(" 37 39 and 30 more jobs\n")
    assert len(out) < 90


def test_a_quote_of_what_can_never_run_fails(here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that asks for a quote sees by the exit status that the job can never run; others end with 0."""

    async def quote(request: JobRequest, *, instead_of: int | None = None) -> Forecast:
        return Forecast(now_ms=0, state="refused", reason="no site has 900 nodes")

    assert shell("quote")[0] == 0
    monkeypatch.setattr(here.grid, "quote", quote)
    status, out, _ = shell("quote", "-n", 900)
    assert status == 2
    assert "no site has 900 nodes" in out
    assert shell("quote", "--json")[0] == 2


def test_a_machine_is_given_up(here: Elsewhere, shell: Shell) -> None:
    """With --yes at once, without it and without a terminal not; mistakes are told in a line."""
    given_up = here.grid.given_up
    status, out, err = shell("give-up", "north", "m1")
    told = "gridweave: give-up: the jobs of m1 would run again; add --yes to confirm\n"
    assert (status, out, err, given_up) == (2, "", told, [])
    assert shell("give-up", "north", "m1", "--yes")[1:] == ("north has given up m1; its jobs run again\n", "")
    assert json.loads(shell("give-up", "north", "m1", "-y", "--json")[1]) == {"site": "north", "machine": "m1"}
    assert given_up == 2 * [("north", "m1")]
    for site, machine, says in (
        ("north", "m0", "machine m0 of site north may still be up"),
        ("north", "m7", "site north has no machine 'm7'; it has m0, m1"),
        ("west", "m1", "site 'west' is none of north, south"),
    ):
        assert shell("give-up", site, machine, "--yes") == (2, "", f"gridweave: {says}\n")


@pytest.mark.parametrize(("answer", "expected"), [(True, [("north", "m1")]), (False, [])])
def test_it_is_asked_before_a_machine_is_given_up(
    here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: bool, expected: list[tuple[str, str]]
) -> None:
    """Whoever sits at a terminal is told what follows, and may leave it."""
    asked: list[str] = []

    def confirm(question: str, err: bool) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", confirm)
    err = shell("give-up", "north", "m1")[2]
    assert err == ("" if answer else "gridweave: nothing was given up\n")
    question = "Give up m1 of north? Its jobs run again, and so twice if the machine is still alive."
    assert (asked, here.grid.given_up) == ([question], expected)


def test_the_grid_is_shown(here: Elsewhere, shell: Shell) -> None:
    """Sites, queue and who one is are shown; drained sites say so."""
    shell("submit", "-n", 3, "--", "true")
    shell("submit", "-n", 4, "--", "true")
    assert shell("drain", "north")[1] == "north takes no new jobs from the grid\n"
    assert rows(shell("sites", "--machines")[1])[1:] == [
        ["north", "drains", "4", "4", "4", "0", "0"],
        ["south", "works", "8", "8", "8", "0", "0"],
    ]
    assert shell("resume", "north")[1] == "north takes jobs from the grid again\n"
    assert json.loads(shell("drain", "north", "--json")[1]) == {"site": "north", "draining": True}
    assert [site["draining"] for site in json.loads(shell("sites", "--json")[1])] == [True, False]
    assert rows(shell("sites", "--links")[1])[1:] == [
        ["north", "south", "4.5 ms", "10,000 Mbps", "measured"],
        ["south", "north", "4 ms", "10,000 Mbps", "as configured"],
    ]
    assert rows(shell("experience", "--splits")[1])[1:] == [["anna", "cfd", "12", "7", "5", "1.30", "1.10", "yes"]]
    assert shell("experience", "--splits", "--user", "bert")[2].startswith("no split job without traffic options")
    assert shell("experience", "--splits", "--site", "north")[2].startswith("gridweave: --splits: works only with")
    assert rows(shell("experience", "--needs")[1])[1:] == [
        ["anna", "cfd", "5", "0.500", "0.300", "0.200", "yes"],
        ["bert", "ml", "1", "1.000", "0.000", "0.000", "after 5 runs"],
    ]
    of_bert = json.loads(shell("experience", "--needs", "--user", "bert", "--json")[1])
    assert [kind["job_class"] for kind in of_bert] == ["ml"]
    assert shell("experience", "--needs", "--user", "carl")[2].startswith("no job with a job class has finished")
    assert shell("experience", "--needs", "--splits")[2].startswith("gridweave: --splits: works only with")
    out = shell("queue", "--limit", 1)[1:]
    assert out[0].startswith("2 waiting, 0 held, 0 starting, 0 running\n")
    assert rows(out[0])[2] == ["1", "1", "anna", "3", "1 h", "1 min", "in 9 min", "no node is free"]
    assert out[1] == "1 more are waiting; see them with --limit 10\n"
    assert json.loads(shell("queue", "--json")[1])["waiting"] == 2
    assert rows(shell("whoami")[1])[2] == ["may", "operate"]
    assert json.loads(shell("whoami", "--json")[1])["url"] == here.url
    assert shell("open", "--print")[1] == f"{here.url}/\n", "where nobody needs a token nobody logs in"


def test_what_one_may_not(
    no_configuration: None, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is missing or does not do ends with status 5; its user sees what it may."""
    tokens = make_tokens(tmp_path / "tokens.db", anna="read")
    there = Elsewhere(tokens=str(tmp_path / "tokens.db"))
    try:
        assert shell("sites", "--url", there.url)[0] == 5
        monkeypatch.setenv("GRIDWEAVE_TOKEN", tokens["anna"])
        name, may = (row[1] for row in rows(shell("whoami", "--url", there.url)[1])[1:3])
        assert name == "anna"
        assert may.startswith("read, until ")
        short = ("token", "short", "--url", there.url)
        assert "gridweave: --scope: 'operate' cannot be requested" in shell(*short, "--scope", "operate")[2]
        assert "gridweave: --valid: is 72 hours; more than 0, and at most 24" in shell(*short, "--valid", "3d")[2]
        link = shell("open", "--url", there.url, "--print")[1].strip()
        assert link.startswith(f"{there.url}/#login=")
        status, out, err = shell("submit", "--url", there.url, "--", "true")
        assert (status, out) == (5, "")
        assert len(err.splitlines()) == 1
    finally:
        there.close()


def test_no_grid(no_configuration: None, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no grid runs, and where nothing listens, one line says what to do, with status 3."""
    status, out, err = shell("jobs")
    assert (status, out) == (3, "")
    assert err == (
        "gridweave: no grid runs here: start one with `gridweave up`, or name one with --url or GRIDWEAVE_URL\n"
    )
    monkeypatch.setattr(grid_client, "_CONNECT_S", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = shell("jobs", "--url", address)
    assert (status, out) == (3, "")
    assert err.startswith(f"gridweave: no gateway answers at {address}: Connection refused; start a grid with")
    assert "--url: 'nonsense' is not the address of a gateway" in shell("jobs", "--url", "nonsense")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submit", "-t", "10x", "--", "true"], "--time: '10x' is not a time"),
        (["submit", "-t", "0", "--", "true"], "--time: '0' means no limit"),
        (["submit", "--priority", "nan", "--", "true"], "--priority is nan; expected a number from"),
        (["submit", "--account", "\udcff", "--", "true"], "is not UTF-8, and cannot be sent"),
        (["submit", "-a", "5-1", "--", "true"], "--array: '5-1' of '5-1' are not indexes"),
        (["submit", "--pack", "--", "true"], "--pack: works only with --array"),
        (["submit", "--after", "9-3", "--", "true"], "JOB: '9-3' is not a range of jobs"),
        (["submit", "-o", "/a/%y", "--", "true"], "the pattern '%y' is not known"),
        (["hold", "9-3"], "JOB: '9-3' is not a range of jobs"),
        (["experience", "--site", "north", "--set", "bad"], "--set: 'bad' is not a run time"),
        (["experience", "--site", "north", "--forget", "@"], "--forget: '@' names no run time"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_on_the_command_line_is_told_before_a_grid_is_looked_for(
    no_configuration: None, shell: Shell, arguments: list[str], says: str
) -> None:
    """Where no grid runs, a mistake is told, and not that there is no grid."""
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


# -- words, and completion


def test_completion(here: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    """States, outcomes and sites are completed; without a grid, or with a bad configuration, sites are not."""
    assert grid_client.complete_states("r") == ["running", "refused"]
    assert grid_client.complete_outcomes("f") == ["finished", "failed"]
    assert grid_client.complete_sites("") == ["north", "south"]
    assert grid_client.complete_sites("so") == ["south"]
    monkeypatch.setenv("GRIDWEAVE_URL", "http://127.0.0.1:9")
    assert grid_client.complete_sites("") == []
    monkeypatch.setenv("GRIDWEAVE_URL", "nonsense")
    assert grid_client.complete_sites("") == []
    monkeypatch.delenv("GRIDWEAVE_URL")
    assert grid_client.complete_sites("") == []


@pytest.mark.parametrize(("words", "completed"), [("drain s", "south"), ("sites --ma", "--machines")])
def test_a_shell_gets_completions(
    here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str, completed: str
) -> None:
    """The command itself answers a shell that completes: names, and options."""
    monkeypatch.setenv("_GRIDWEAVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"gridweave {words}")
    monkeypatch.setenv("COMP_CWORD", "2")
    status, out, _ = shell()
    assert (status, out.split()) == (0, [completed])


def test_numbers_of_jobs() -> None:
    """Numbers and ranges are read as they are written, and a name is no number."""
    assert job_numbers(" 7 ") == [7]
    assert [*(job_numbers("7-9") or ())] == [7, 8, 9]
    assert job_numbers("sweep-7") is None
    assert ranges_text([*range(1, 4), 9, *range(20, 22)]) == "1-3 9 20-21"
    for text in ("0", "5-4", "0-3", "1-100001"):
        with pytest.raises(OptionError):
            job_numbers(text)


def test_how_far_an_instant_is() -> None:
    """Within half a second an instant is now."""
    assert [relative(ms, 3_000) for ms in (1_000, 2_600, 90_000)] == ["2 s ago", "now", "in 1 min 27 s"]


def test_records_hold_what_is_shown(here: Elsewhere, shell: Shell) -> None:
    """A long name is cut, and a job that has run for a while says for how long."""
    shell("submit", "--name", "n" * 90, "--", "true")
    record: JobRecord = here.grid.records_by_id[1]
    here.call(here.grid.start, 1)
    record.start_ms = 1_700_000_060_000 - 7_500_000
    (row,) = rows(shell("jobs")[1])[1:]
    assert (row[1], row[8]) == ("n" * 23 + "…", "2 h 5 min")


@pytest.mark.parametrize(
    ("command", "file"),
    [("jobs", "job_commands"), ("sites", "grid_commands"), ("show 1", "job_commands"), ("submit -- true", "submit")],
)
def test_a_command_that_asks_one_thing_loads_little(here: Elsewhere, shell: Shell, command: str, file: str) -> None:
    """It needs neither aiohttp nor asyncio nor numpy nor pydantic, nor the other commands; a table needs no rich."""
    shell("submit", "--", "true")
    code = "import sys; from gridweave.cli import main\ntry: main.run()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, check=True, text=True)
    assert f"gridweave.cli.{file}" in done.stdout
    assert ("─" in done.stdout) == (command != "submit -- true")
    heavy = {"aiohttp", "asyncio", "numpy", "pydantic", "ray", "rich.table"}
    heavy |= {"gridweave.cli.up", "gridweave.cli.simulate"}
    assert heavy & set(done.stdout.split()) == set()
