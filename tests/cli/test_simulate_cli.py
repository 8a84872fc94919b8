"""The command `gridweave simulate`, as the script runs it."""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gridweave.cli import simulate as simulate_cli
from gridweave.scenarios.batch import one_site
from gridweave.scenarios.batch.saving import Saving
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results import schedule as result_files
from gridweave.scenarios.results.tables import metrics_table
from gridweave.scenarios.traces.load import load_workload
from support.builders import random_jobs, to_workload

# Four jobs on 4 nodes. By EASY the fourth goes ahead of the third; job 1 overruns its estimate and is killed.
SWF = """\
; MaxNodes: 4
; UnixStartTime: 843480031
; TimeZoneString: Europe/Stockholm
1 0 -1 150 3 -1 -1 -1 100 -1 1 5 -1 -1 -1 -1 -1 -1
2 1 -1 0 1 -1 -1 -1 100 -1 1 5 -1 -1 -1 -1 -1 -1
3 1 -1 50 4 -1 -1 -1 60 -1 1 6 -1 -1 -1 -1 -1 -1
4 2 -1 90 1 -1 -1 -1 95 -1 1 6 -1 -1 -1 -1 -1 -1
"""
REMARKS = [
    "four: 3 of 4 records kept, on 4 nodes",
    "  dropped 1: zero run time",
    "  changed 1: run time cut at the estimate",
]
HEADER = "job_id,submit_ms,start_ms,end_ms,width,estimate_ms,run_ms,site,fragments,killed"
PLOTS = {"utilisation.png", "waits.png", "schedule.png"}

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write the trace."""
    path = tmp_path / "four.swf"
    path.write_text(SWF)
    return path


@pytest.fixture
def good(shell: Shell) -> Callable[..., str]:
    """Return a function that runs the command, which must end well, and returns what it printed."""

    def call(*arguments: object) -> str:
        status, out, err = shell("simulate", *arguments)
        assert status == 0, err
        return out

    return call


@pytest.fixture
def metrics(good: Callable[..., str]) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs the command with --json and returns what it printed, read."""

    def call(*arguments: object) -> list[dict[str, Any]]:
        read: list[dict[str, Any]] = json.loads(good(*arguments, "--json"), parse_constant=pytest.fail)
        return read

    return call


# -- what is printed


def test_the_table_and_the_remarks(shell: Shell, trace: Path) -> None:
    """The table is on standard output, what became of the records on standard error."""
    status, out, err = shell("simulate", trace)
    assert status == 0
    assert err.splitlines() == REMARKS
    workload, _ = load_workload(trace)
    console = Console(width=80)
    with console.capture() as table:
        console.print(metrics_table([simulate(workload)]))
    assert out == table.get()


def test_policies_stand_side_by_side(good: Callable[..., str], trace: Path) -> None:
    """Several orders and backfillings are compared in one table, in the order in which they were named."""
    heading = good(trace, "--order", "SJF, fcfs", "--backfill", "none,easy").splitlines()[1]
    assert " ".join(heading.split()) == "sjf none sjf easy fcfs none fcfs easy"


@pytest.mark.parametrize("orders", ["fcfs", "fcfs,sjf", "fcfs,sjf,ljf", "fcfs,sjf,ljf,saf,laf,bfit"])
def test_the_table_fits_into_80_columns_and_needs_them(
    good: Callable[..., str], trace: Path, monkeypatch: pytest.MonkeyPatch, orders: str
) -> None:
    """One policy or six, no line is longer than 80; a narrower window does not cut numbers into pieces."""
    printed = {}
    for columns in ("80", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        printed[columns] = good(trace, "--order", orders, "--discipline", "planning")
    assert max(map(len, printed["80"].splitlines())) <= 80
    assert printed["20"] == printed["80"]


def test_json(metrics: Callable[..., list[dict[str, Any]]], trace: Path) -> None:
    """--json prints one entry per policy: label, options, refused jobs and metrics as in Python."""
    first, second = metrics(trace, "--order", "fcfs,ljf", "--backfill", "none")
    assert (first["label"], second["label"]) == ("fcfs none", "ljf none")
    workload, _ = load_workload(trace)
    assert first["metrics"] == simulate(workload, backfill="none").metrics().to_dict()
    assert first["refused"] == []
    assert first["options"] == {
        "trace": "four",
        "nodes": 4,
        "discipline": "queue",
        "order": "fcfs",
        "backfill": "none",
        "choice": "first-fit",
        "slack": None,
        "aging_ms": None,
        "limits": [],
        "estimates": "keep",
        "shrink": 1.0,
        "seed": 1,
    }


def test_json_of_nothing(metrics: Callable[..., list[dict[str, Any]]], shell: Shell, trace: Path) -> None:
    """When limits refuse every job, metrics that are not defined are null, and the reasons are told."""
    arguments = (trace, "--discipline", "planning", "--limit", "longer-than=1m,days=mon-sun", "--limit", "max-nodes=1")
    (only,) = metrics(*arguments)
    assert [entry["job_id"] for entry in only["refused"]] == [1, 3, 4]
    assert only["metrics"]["jobs"] == 0
    assert only["metrics"]["sldwa"] is None
    _, out, err = shell("simulate", *arguments)
    assert "–" in out
    assert [line for line in err.splitlines() if "refused" in line] == [
        "job 1 is refused: it needs 3 nodes and limit 2 lets such jobs hold 1",
        "job 3 is refused: it needs 4 nodes and limit 2 lets such jobs hold 1",
        "job 4 is refused: the windows of the limits that apply to it leave no time of the week",
    ]


def test_many_refused_jobs_are_counted(shell: Shell, tmp_path: Path) -> None:
    """Of more than five refused jobs the first are named and the others counted."""
    path = tmp_path / "many.swf"
    path.write_text("".join(f"{number} 0 -1 9 2{' -1' * 13}\n" for number in range(1, 9)))
    _, _, err = shell("simulate", path, "--nodes", 4, "--discipline", "planning", "--limit", "max-nodes=1")
    assert err.splitlines()[-1] == "... and 3 more jobs are refused"
    assert sum(line.startswith("job ") for line in err.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "remark"),
    [
        (["--order", "priority", "--aging", "2h"], "four has no priorities: the order priority is the same as fcfs"),
        (["--order", "smith"], "four has no weights: all jobs have weight 1"),
        (["--order", "fcfs,weight"], "four has no weights: all jobs have weight 1"),
    ],
)
def test_options_without_effect_are_told(shell: Shell, trace: Path, arguments: list[str], remark: str) -> None:
    """An order by what the trace does not tell runs, and says that it orders by nothing."""
    status, _, err = shell("simulate", trace, *arguments)
    assert status == 0
    assert err.splitlines() == [*REMARKS, remark]


def test_a_limit_for_a_user_of_a_trace_without_users(shell: Shell, tmp_path: Path) -> None:
    """A limit for one user says when the format names no users, and then holds nobody back."""
    path = tmp_path / "jobs.mupsie"
    path.write_text("1 0 1 10 10\n2 0 1 10 10\n")
    status, out, err = shell(
        "simulate", path, "--nodes", 4, "--discipline", "planning", "--limit", "user=5,max-jobs=1", "--json"
    )
    assert status == 0
    assert err.splitlines()[-1] == "jobs has no users: a limit for one user applies to nobody"
    assert json.loads(out)[0]["metrics"]["wait_max_ms"] == 0


# -- what the options do


def test_what_each_option_changes(metrics: Callable[..., list[dict[str, Any]]], trace: Path) -> None:
    """Every option reaches the simulation; the mean waits are worked out by hand."""

    def mean_wait_s(*arguments: object) -> float:
        (only,) = metrics(trace, *arguments)
        return float(only["metrics"]["awt_ms"]) / 1000

    # EASY: job 1 at 0 (to 100), job 4 at 2 beside it (to 92), job 3 at 100 (to 150).
    assert mean_wait_s() == 99 / 3
    # Without backfilling job 4 waits until 150.
    assert mean_wait_s("--backfill", "none") == (99 + 148) / 3
    assert mean_wait_s("--discipline", "planning", "--backfill", "none") == (99 + 148) / 3
    # With a node more nothing but the width of job 3 is in the way; with 8 nothing is.
    assert mean_wait_s("--nodes", "5") == 99 / 3
    assert mean_wait_s("--nodes", "8") == 0
    # Submitted at 0, 100 and 200 s: job 1 has gone when job 3 comes, and job 3 when job 4 does.
    assert mean_wait_s("--shrink", "100") == 0
    # One at a time: 0 to 100, 100 to 150, 150 to 240.
    assert mean_wait_s("--discipline", "planning", "--limit", "max-jobs=1") == (99 + 148) / 3
    # User 6 has jobs 3 and 4, and both would start in hours that are closed to them until 15:00, 3,569 s after zero.
    closed = ("--discipline", "planning", "--limit", "user=6,days=mon,from=14:00,to=15:00")
    assert mean_wait_s(*closed) == ((3569 - 1) + (3569 + 50 - 2)) / 3
    # Perfect estimates: job 4 ends at 92, by its estimate of now 90 s, and goes ahead as before.
    assert mean_wait_s("--estimates", "perfect") == 99 / 3


def test_drawn_estimates_go_by_the_seed(metrics: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    """A model of estimates draws the same for the same seed, and something else for another."""
    path = tmp_path / "many.swf"
    lines = [f"{n} {n} -1 {n * 37 % 101 + 1} {n % 7 + 1}{' -1' * 13}" for n in range(1, 301)]
    path.write_text("; MaxNodes: 8\n" + "\n".join(lines) + "\n")
    (one,), (same,), (other,), (perfect,) = (
        metrics(path, "--order", "sjf", "--estimates", model, "--seed", seed)
        for model, seed in (("phi:0.2", 1), ("phi:0.2", 1), ("phi:0.2", 2), ("perfect", 1))
    )
    assert one == same
    assert one["metrics"] != other["metrics"]
    assert one["metrics"] != perfect["metrics"]
    assert (one["options"]["estimates"], other["options"]["seed"]) == ("phi:0.2", 2)
    (drawn,) = metrics(path, "--order", "sjf", "--run-times", "lognormal:1", "--seed", 1)
    assert drawn["options"]["run_times"] == "lognormal:1"
    assert drawn["metrics"] not in (one["metrics"], perfect["metrics"])


def test_jobs_of_a_trace_get_priorities(metrics: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    """By their queue, which SWF tells: the job of queue 2 takes the nodes of one that runs; else nobody is evicted."""
    path, levels = tmp_path / "queues.swf", tmp_path / "levels.toml"
    jobs = [f"{n} {10 * n} -1 100 4{' -1' * 3} 100 -1 1 -1 -1 -1 {queue} -1 -1 -1" for n, queue in ((1, 1), (2, 2))]
    path.write_text("; MaxNodes: 4\n" + "\n".join(jobs) + "\n")
    high, low = (
        '[[levels]]\nname = "high"\npriority = 1\nevicts = ["low"]\n',
        '[[levels]]\nname = "low"\npriority = 0\n',
    )
    levels.write_text(high + low)
    options = (path, "--discipline", "levels", "--option", f"@{levels}")
    (without,), (given,) = metrics(*options), metrics(*options, "--priorities", "job_class:2=1")
    assert [each["own_metrics"]["evictions"] for each in (without, given)] == [0, 1]
    assert given["options"]["priorities"] == "job_class:2=1"


# -- the files


def files_in(folder: Path) -> set[str]:
    """Return all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_one_policy(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """--out writes jobs.csv, summary.json and the plots, nothing else, and says how many."""
    out = tmp_path / "new" / "folder"
    status, _, err = shell("simulate", trace, "--out", out)
    assert status == 0
    assert err.splitlines()[-1] == f"wrote 5 files to {out}"
    assert files_in(out) == {"jobs.csv", "summary.json"} | PLOTS
    assert (out / "jobs.csv").read_text() == "\n".join(
        [
            HEADER,
            "1,0,0,100000,3,100000,100000,site,1,1",
            "3,1000,100000,150000,4,60000,50000,site,1,0",
            "4,2000,2000,92000,1,95000,90000,site,1,0",
            "",
        ]
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["options"]["estimates"] == "keep"
    assert (summary["killed"], summary["never_started"]) == (1, 0)
    assert all((out / plot).read_bytes().startswith(b"\x89PNG") for plot in PLOTS)


def test_the_files_of_several_policies(good: Callable[..., str], trace: Path, tmp_path: Path) -> None:
    """Each policy has a folder, and beside them stands what compares them."""
    out = tmp_path / "out"
    good(trace, "--order", "fcfs,sjf", "--out", out)
    own = {f"{folder}/{name}" for folder in ("fcfs-easy", "sjf-easy") for name in {"jobs.csv", "summary.json"} | PLOTS}
    assert files_in(out) == own | {"comparison.json", "comparison.png"}
    with (out / "sjf-easy" / "jobs.csv").open(newline="") as file:
        assert [row["job_id"] for row in csv.DictReader(file)] == ["1", "3", "4"]


def test_files_without_plots_into_a_folder_that_is_there(
    good: Callable[..., str], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--no-plots leaves the pictures out; what lies in the folder already stays, but for files of the same name."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "jobs.csv").write_text("old")
    good(trace, "--out", "out", "--no-plots")
    assert files_in(out) == {"jobs.csv", "summary.json", "notes.txt"}
    assert (out / "jobs.csv").read_text().startswith(HEADER + "\n1,")
    assert (out / "notes.txt").read_text() == "mine"


def test_a_failure_while_writing_leaves_nothing(
    shell: Shell, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a file cannot be written, the table has been printed, the error is one line, and no file is left."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "jobs.csv")

    monkeypatch.setattr(result_files, "write_jobs_csv", fail)
    status, out, err = shell("simulate", trace, "--out", tmp_path / "out")
    assert status == 2
    assert "fcfs easy" in out
    assert err.splitlines() == [*REMARKS, "gridweave: jobs.csv: cannot be written: No space left on device"]
    assert not (tmp_path / "out").exists()


# -- the real thing


def test_as_a_process(trace: Path, tmp_path: Path) -> None:
    """From a shell: the table in a pipe has no colours, no bar and no line beyond 80 columns; the files are there."""
    command = [sys.executable, "-m", "gridweave.cli", "simulate", str(trace), "--order", "fcfs,sjf", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr.splitlines() == [*REMARKS, "wrote 12 files to out"]
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(files_in(tmp_path / "out")) == 12


@pytest.mark.trace
def test_a_real_trace_by_its_name(
    trace_path: Callable[[str], Path], metrics: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KTH-SP2 by planning FCFS has the slowdown that Streit published, within 1% (Table 5.1: 3.1015)."""
    monkeypatch.setenv("GRIDWEAVE_TRACES", str(trace_path("KTH-SP2-1996-2").parent))
    (only,) = metrics("KTH-SP2-1996-2", "--nodes", 100, "--discipline", "planning")
    assert only["metrics"]["sldwa"] == pytest.approx(3.1015, rel=0.01)
    assert only["metrics"]["jobs"] > 28_000


# -- reservations

PLANNED = ("--discipline", "planning", "--reservation", "start=30m,length=1m30s,nodes=50%")


def test_reservations_are_answered_in_the_table(good: Callable[..., str], trace: Path) -> None:
    """Below the metrics stands what was asked for and what the site said, for each policy."""
    late = ("--reservation", "start=10s,length=1m,nodes=5,requested=20s")
    lines = good(trace, *PLANNED, *late, "--order", "fcfs,sjf").splitlines()
    rows = [" ".join(line.split()) for line in lines if line.strip()[:2] in ("1 ", "2 ")]
    answers = ["1 accepted 0 s 30 min 1 min 30 s 2", "2 refused: the site has 4 nodes 20 s 10 s 1 min 5"]
    assert rows == answers * 2
    assert [line.strip() for line in lines if line.startswith("Reservations")] == [
        "Reservations: planning fcfs",
        "Reservations: planning sjf",
    ]


def test_reservations_are_answered_for_machines(
    metrics: Callable[..., list[dict[str, Any]]], trace: Path, tmp_path: Path
) -> None:
    """JSON and summary.json hold the same answers, in ms."""
    (result,) = metrics(trace, *PLANNED, "--out", tmp_path / "out", "--no-plots")
    want = {
        "reservation_id": 1,
        "requested_ms": 0,
        "start_ms": 1_800_000,
        "length_ms": 90_000,
        "width": 2,
        "accepted": True,
        "earliest_ms": None,
        "reason": None,
    }
    assert result["reservations"] == [want]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["reservations"] == [want]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("start=1h,length=2h", "has no nodes"),
        ("start=1h,length=2h,nodes=0", "reserves nothing"),
        ("start=1h,length=0,nodes=1", "reserves nothing"),
        ("start=soon,length=2h,nodes=1", "is not a time"),
        ("start=1h,length=2h,nodes=101%", "is not a number of nodes"),
        ("start=1h,length=2h,nodes=1,nodes=2", "nodes appears twice"),
        ("1h:2h:1", "is not key=value"),
        ("", "is not key=value"),
    ],
)
def test_a_reservation_that_cannot_be_read_is_refused(shell: Shell, trace: Path, text: str, words: str) -> None:
    """What is wrong with a reservation is said in one line that names the option, with exit status 2."""
    status, out, err = shell("simulate", trace, "--discipline", "planning", "--reservation", text)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--reservation" in err
    assert words in err


def test_a_planning_site_with_levels_takes_reservations(shell: Shell, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "levels.toml"
    path.write_text('under = "planning"\nlevels = [{ name = "high", priority = 1 }]\n')
    asked = ("--reservation", "start=1h,length=2h,nodes=1", "--limit", "max-jobs=1")
    status, out, _ = shell("simulate", trace, "--discipline", "levels", "--option", f"@{path}", *asked)
    assert status == 0
    assert "planning fcfs [max-jobs=1] 1 level" in out


def test_a_queue_keeps_no_reservations(shell: Shell, trace: Path) -> None:
    """Reservations with a queue are refused, and the message says what keeps them."""
    status, _, err = shell("simulate", trace, "--reservation", "start=1h,length=2h,nodes=1")
    assert status == 2
    right = "use the discipline planning, or another one that plans and evicts no jobs"
    assert err == f"gridweave: --reservation: are refused under the policy 'fcfs easy'; {right}\n"


@pytest.mark.parametrize(
    ("discipline", "option", "said"),
    [
        ("gang", "mpl=0", "gridweave: --option mpl: is 0; "),
        ("dynp", "slackness_pct=-1", "gridweave: --option slackness_pct: is -1"),
        ("fractional", "algorithm=GreedyPN", "gridweave: --option algorithm: 'GreedyPN' is not known; near are "),
    ],
)
def test_an_option_of_a_discipline_is_named_as_typed(
    shell: Shell, trace: Path, discipline: str, option: str, said: str
) -> None:
    """What is wrong with a discipline's own option is said of `--option KEY`, which is what was typed."""
    status, _, error = shell("simulate", trace, "--needs", "whole", "--discipline", discipline, "--option", option)
    assert status == 2
    assert error.startswith(said)


def test_nodes_that_fail(good: Callable[..., str], shell: Shell, trace: Path, tmp_path: Path) -> None:
    """What happens to nodes is read from a file, and the table says how many jobs were begun again."""
    file = tmp_path / "nodes.csv"
    file.write_text("at_ms,kind,first_node,nodes\n20000,down,0,1\n30000,up,0,1\n")
    assert ["restarts", "1"] in [line.split() for line in good(trace, "--node-events", file).splitlines()]
    file.write_text("at_ms,kind,first_node,nodes\n20000,down,4,1\n")
    status, _, err = shell("simulate", trace, "--node-events", file)
    assert status == 2
    assert err.splitlines()[-1] == "gridweave: node 4 goes down at 20000 ms, but the site has nodes 0 to 3"
    status, _, err = shell("simulate", trace, "--discipline", "lomarc", "--node-events", file)
    assert (status, err) == (2, "gridweave: --node-events: does not go with --discipline lomarc; leave it out\n")


def test_matrix_of_a_site_that_shares_time(good: Callable[..., str], shell: Shell, trace: Path) -> None:
    """The options of gang, its metrics, and the matrix at an instant; of another discipline there is none."""
    out = good(trace, "--discipline", "gang", "--option", "mpl=2", "--option", "slice_ms=10000", "--show-matrix", "5s")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.endswith("(*: the slice that goes on)") for line in lines)
    assert [line for line in lines if line[:2] in ("P0", "ti")] == [
        "P0-P2 P3",
        "time-slice 0 * J1 J4",
        "time-slice 1 J3 J3",
    ]
    assert any(line.startswith("loss as printed") for line in lines)
    moves = ["--option", "migration=all", "--option", "max_tasks=1,4"]
    _, _, err = shell("simulate", trace, "--discipline", "gang", *moves)
    said = [line for line in err.splitlines() if "max_tasks" in line]
    assert said == ["max_tasks = 1 is below the 4 nodes of the widest job: no such job is moved once it runs"]
    status, _, err = shell("simulate", trace, "--show-matrix", "5s")
    assert status != 0
    assert "--show-matrix: goes with --discipline gang; no other has a matrix" in err
    status, _, err = shell("simulate", trace, "--discipline", "gang", "--option", "mpl=0")
    assert "mpl: is 0; a matrix has from 1 row, which shares space alone, to 62" in err


def test_ctrl_c_saves_a_simulation_that_is_to_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in its thread until it is saved; what comes of it when it is taken up is the same."""
    monkeypatch.setattr(one_site, "_CHUNK", 20)
    workload = to_workload(random_jobs(np.random.default_rng(4), 200, nodes=16, load=0.95))
    saving = Saving(tmp_path / "saved", every_s=1e9)
    begun, interrupted = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        interrupted.wait()
        if saving.saved.is_set():
            raise KeyboardInterrupt

    def ask() -> None:
        Saving.ask(saving)
        interrupted.set()

    def play() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            simulate(workload, 16, saving=saving, progress=progress)

    monkeypatch.setattr(saving, "ask", ask)
    thread = threading.Thread(target=play)
    thread.start()
    begun.wait()
    with pytest.raises(KeyboardInterrupt), simulate_cli._saved_on_interrupt(saving):
        raise KeyboardInterrupt
    thread.join()
    result = simulate(workload, 16, saving=Saving(tmp_path / "saved", resume=True))
    assert result.start_ms.tolist() == simulate(workload, 16).start_ms.tolist()


def test_saving_from_the_shell(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """A simulation that ends leaves no file; --save and --resume exclude each other, and go with one policy."""
    saved = tmp_path / "saved"
    assert shell("simulate", trace, "--save", saved, "--save-every", "0s")[0] == 0
    assert not saved.exists()
    for given, said in (
        (("--save", saved, "--resume", saved), "--resume: saves to its file as well; leave --save out"),
        (("--save", saved, "--order", "fcfs,sjf"), "--save: goes with one policy, and these are 2"),
        (("--resume", saved), f"{saved}: cannot be read as a saved simulation"),
        (("--save", saved, "--discipline", "gang"), "--save: works with discipline queue or planning"),
    ):
        status, _, err = shell("simulate", trace, *given)
        assert status == 2
        assert said in err


IMPORTED = """
import json, sys
from gridweave.cli.main import run
try:
    run()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_only_what_is_played_is_imported(discipline: str, trace: Path) -> None:
    """A simulation of one discipline loads nothing of another, no policy or network of a grid, and no plots.

    Of compiled code too, which is kept for many disciplines.
    """
    words = ["simulate", str(trace), "--discipline", discipline, "--nodes", "16"]
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert f"gridweave.site.disciplines.{discipline}" in modules
    others = (".disciplines.gang", ".disciplines.sharing", ".disciplines.dynp")
    assert not [name for name in modules if any(other in name for other in others)]
    assert not modules & {"gridweave.grid.policy", "gridweave.netmodel.model", "matplotlib", "ray"}
