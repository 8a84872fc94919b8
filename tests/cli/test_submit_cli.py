"""`gridweave submit`: what becomes of options, of arrays, and of mistakes in them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.grid.client.option_texts import parse_after, parse_array
from gridweave.grid.client.scripts import shipped
from gridweave.site.array_tasks import count_of
from gridweave.site.job import After, ArrayPlace, JobRecord, JobRequest, Program, Resources, Traffic
from support.commands import OF_ITS_OWN, handed_in, script
from support.gateway import Elsewhere
from support.machine import PATIENCE_S

Shell = Callable[..., tuple[int, str, str]]


HOUR_MS = 3_600_000


def test_what_a_job_sends_reaches_the_grid(here: Elsewhere, shell: Shell) -> None:
    """What a job communicates, reads and writes is said on the command line or in the script, where it counts less."""
    data = ("--input-data", "north:20GB", "--output-data", "south:500 MB")
    assert shell("submit", "--communication", "light", *data, "--", "true")[0] == 0
    text = "#!/bin/sh\n#GRIDWEAVE --communication fraction=0.2,pattern=ring,message=1MB --input-data north:1kB\ntrue\n"
    assert shell("submit", script(text))[0] == 0
    assert shell("submit", "--communication", "none", script(text))[0] == 0
    assert shell("submit", "--", "true")[0] == 0
    said, in_script, over_script, nothing = [request.traffic for request in handed_in(here)]
    output = {"output_bytes": 500_000_000, "output_site": "south"}
    assert said == Traffic(communication="light", input_bytes=20_000_000_000, input_site="north", **output)
    exact = "fraction=0.2,pattern=ring,message=1MB"
    assert in_script == Traffic(communication=exact, input_bytes=1_000, input_site="north")
    assert over_script == Traffic(communication="none", input_bytes=1_000, input_site="north")
    assert nothing is None


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("north", "--input-data: 'north' is not a site and a size; write for example alpha:20GB"),
        ("north:much", "--input-data: 'much' is not an amount of data; write for example 64 GB or 64 GiB"),
        (":5GB", "--input-data: ':5GB' is not a site and a size; write for example alpha:20GB"),
    ],
)
def test_data_that_makes_no_sense_is_refused_here(shell: Shell, given: str, line: str) -> None:
    """A line says what is wrong, without a grid."""
    status, _, err = shell("submit", "--input-data", given, "--", "true")
    assert (status, err) == (2, f"gridweave: {line}\n")


def test_what_a_job_needs_reaches_the_grid(here: Elsewhere, shell: Shell) -> None:
    """What a job needs of shared nodes is said on the command line or in the script, where it counts less."""
    assert shell("submit", "--resources", "cpu=0.6,network=0.3,disk=0.1", "--", "true")[0] == 0
    text = "#!/bin/sh\n#GRIDWEAVE --resources disk=1,memory=0.25,kind=1,cores=2\ntrue\n"
    assert shell("submit", script(text))[0] == 0
    assert shell("submit", "--resources", "cpu=1", "--cpu-need", "0.25", script(text))[0] == 0
    assert shell("submit", "--cpu-need", "0.25", "--", "true")[0] == 0
    said, in_script, over_script, of_tasks = [request.resources for request in handed_in(here)]
    assert said == Resources(cpu=0.6, network=0.3, disk=0.1, memory=0.5)
    assert in_script == Resources(cpu=0.0, disk=1.0, memory=0.25, cpu_kind=1, cores=2)
    assert over_script == Resources(cpu=1.0, memory=0.5, cpu_need=0.25)
    assert of_tasks == Resources(cpu_need=0.25)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("cpu=0.6", "cpu, network and disk are (0.6, 0.0, 0.0); expected fractions of the run time that sum to 1"),
        ("cpu=1.5,disk=-0.5", "cpu, network and disk are (1.5, 0.0, -0.5); expected fractions of the run time"),
        ("cpu=1,gpu=1", "'gpu=1' is not understood; write for example cpu=0.6,network=0.3,disk=0.1 (fractions"),
        ("cpu=half", "'half' is not valid for cpu; write for example cpu=0.6"),
        ("cpu=nan", "cpu, network and disk are (nan, 0.0, 0.0); expected fractions of the run time that sum to 1"),
        ("cpu=1,cpu=1", "'cpu=1' is not understood"),
        ("cpu=1,memory=0", "memory is 0.0; expected a fraction of a node, above 0 and at most 1; write for"),
        ("cpu=1,cores=0", "cores 0, CPU kind 0 or cache of 0 bytes is out of range"),
        ("gpu", "'gpu' is not understood"),
    ],
)
@pytest.mark.parametrize("command", [("submit", "--", "true"), ("quote",)])
def test_needs_that_no_job_has_are_refused_in_a_line(
    here: Elsewhere, shell: Shell, command: tuple[str, ...], given: str, says: str
) -> None:
    """A line names the option and says what is right; nothing is submitted."""
    status, _, err = shell(command[0], "--resources", given, *command[1:])
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"gridweave: --resources: {given!r}: ")
    assert says in err


def test_memory_is_said_once(shell: Shell) -> None:
    """The memory of a job is in --resources or in --memory-need."""
    status, _, err = shell("submit", "--resources", "cpu=1", "--memory-need", "0.5", "--", "true")
    assert status == 2
    assert err == "gridweave: --memory-need: conflicts with --resources; write memory=... there\n"


def test_options_reach_the_grid(here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option of a job reaches the grid; its number goes to standard output, and a remark to standard error."""
    monkeypatch.setenv("FROM_HERE", "here")
    shell("submit", "--", "true")
    options = ("-n", 4, "-t", "2-00:00:00", "-J", "solve", "--env", "A=B=C", "--env", "FROM_HERE", "-D", "/data")
    more = (
        "--hold",
        "--after",
        "1",
        "--after",
        "1:ended",
        "--ranks",
        "first-node",
        "--no-requeue",
        "--priority",
        "2.5",
    )
    status, out, err = shell("submit", *options, *more, "--job-class", "big", "--", "./solver", "-n", "input")
    assert (status, out) == (0, "2\n")
    assert err == "submitted: 4 nodes for at most 2 d; see: gridweave explain 2\n"
    assert handed_in(here)[1] == JobRequest(
        program=Program(
            argv=("./solver", "-n", "input"),
            environment={"A": "B=C", "FROM_HERE": "here"},
            working_directory="/data",
            ranks="first-node",
            if_lost="fail",
        ),
        nodes=4,
        limit_ms=48 * HOUR_MS,
        name="solve",
        user="anna",
        job_class="big",
        priority=2.5,
        hold=True,
        after=(After(job_id=1), After(job_id=1, has="ended")),
    )


def test_what_is_left_out(here: Elsewhere, shell: Shell) -> None:
    """A job of which nothing is said takes a node for an hour, is called by its program, and runs on each node."""
    assert shell("submit", "hostname", "-f")[0] == 0
    program = Program(argv=("hostname", "-f"))
    assert handed_in(here) == [JobRequest(program=program, limit_ms=HOUR_MS, name="hostname", user="anna")]


def test_arrays(here: Elsewhere, shell: Shell) -> None:
    """An array is a job for each index, under one name; with a key it can be handed in again."""
    status, out, err = shell("submit", "--array", "1-9:4%2", "--key", "mine", "--", "./sweep")
    assert (status, out) == (0, "1-3\n")
    said = "array sweep-mine: 3 jobs of 1 node for at most 1 h; see: gridweave jobs --array sweep-mine\n"
    assert err == said + "each " + OF_ITS_OWN
    places = [request.array for request in handed_in(here)]
    assert places == [ArrayPlace(name="sweep-mine", index=index, at_once=2) for index in (1, 5, 9)]
    again = json.loads(shell("submit", "--array", "1-9:4%2", "--key", "mine", "--json", "--", "./sweep")[1])
    assert [(job["job_id"], job["key"], job["index"]) for job in again["jobs"]] == [
        (1, "mine-1", 1),
        (2, "mine-5", 5),
        (3, "mine-9", 9),
    ]
    assert shell("submit", "--after", "sweep-mine:ended", "--", "./gather")[0] == 0
    assert handed_in(here)[3].after == tuple(After(job_id=number, has="ended") for number in (1, 2, 3))
    assert shell("submit", "--after", "sweep-mine:failed", "--after", "1-2:failed", "--", "./cleanup")[0] == 0
    assert [(one.job_id, one.group) for one in handed_in(here)[4].after] == [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)]
    shown = shell("show", "5")[1]
    assert "all of jobs 1-3 have ended and one of them has failed" in " ".join(shown.split())


def test_packed_arrays(here: Elsewhere, shell: Shell) -> None:
    """Elements go into jobs by their number, or so many by the nodes of the grid; a key finds the same jobs again."""
    options = ("--array", "1-9:2,20-22", "--pack", "--pack-size", 4, "--key", "mine")
    status, out, err = shell("submit", *options, "--", "./step")
    assert (status, out) == (0, "1-2\n")
    assert err.startswith("array step-mine: 2 jobs of 4 tasks, each job 1 node for at most 1 h")
    places = [request.array for request in handed_in(here)]
    parts = [((1, 2), (3, 4), (5, 6), (7, 8)), ((9, 10), (20, 23))]
    assert places == [ArrayPlace(name="step-mine", index=part[0][0], array_tasks=part) for part in parts]
    assert [job["key"] for job in json.loads(shell("submit", *options, "--json", "--", "./step")[1])["jobs"]] == [
        "mine-1",
        "mine-9",
    ]
    shell("submit", "--array", "1-1000", "--pack", "--", "./step")
    nodes = sum(here.grid.nodes.values())
    counts = [count_of(request.array.array_tasks) for request in handed_in(here)[2:] if request.array is not None]
    assert (len(counts), sum(counts), max(counts)) == (2 * nodes, 1000, 42)
    status, _, err = shell("submit", "--pack", "--", "./step")
    assert status == 2
    assert "--pack: works only with --array" in err


def test_a_site_of_ones_own(here: Elsewhere, shell: Shell) -> None:
    """A job can be handed in to a site."""
    assert shell("submit", "--site", "south", "--", "true")[1] == f"{2 * 10**12 + 1}\n"


def ended(here: Elsewhere, **ends: str) -> None:
    """Have jobs end as soon as they are handed in: by name, with an outcome."""

    def runs(record: JobRecord) -> None:
        here.grid.start(record.job_id)
        outcome = ends[record.request.name]
        if outcome != "finished":
            record.reason = "rank 0 ended with exit code 3"
            record.exit_codes = ((0, 3, None),) if outcome == "failed" else ()
            here.grid.write(record.job_id, b"out of luck\n", stream="err")
        here.grid.end(record.job_id, outcome)

    here.grid.runs = runs


def test_waiting(here: Elsewhere, shell: Shell) -> None:
    """With --wait the command ends when the job does and says how: with its exit code, or 4, and its last words."""
    ended(here, good="finished", bad="failed", late="limit")
    status, out, err = shell("submit", "--wait", "--", "good")
    assert (status, out) == (0, "1\n")
    assert err.splitlines()[2].startswith("job 1 has finished after ")
    status, out, err = shell("submit", "--wait", "--", "bad")
    assert (status, out) == (3, "2\n")
    assert err.splitlines()[2:] == ["out of luck", "gridweave: job 2 has failed: rank 0 ended with exit code 3"]
    status, out, err = shell("submit", "--wait", "--array", "1-3", "--", "late")
    assert status == 4
    assert "3 of 3 jobs failed: 3-5" in err
    status, out, _ = shell("submit", "--wait", "--json", "--", "bad")
    assert (status, [record["outcome"] for record in json.loads(out)]) == (3, ["failed"])


def test_an_interrupt_while_it_waits(here: Elsewhere) -> None:
    """Ctrl-C ends the wait with 130 and says how to end the job, which goes on."""
    command = [sys.executable, "-m", "gridweave.cli", "submit", "--wait", "--", "true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        while not here.gateway.heard("/v1/jobs/1"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said.splitlines()[2:] == [
        "the jobs keep running; cancel them with: gridweave cancel 1",
        "gridweave: interrupted",
    ]
    assert here.grid.records_by_id[1].state == "waiting"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND: is missing; write for example: gridweave submit -n 4"),
        (["-n", "0", "--", "x"], "Invalid value for '--nodes'"),
        (["-t", "soon", "--", "x"], "--time: 'soon' is not a time"),
        (["-t", "0", "--", "x"], "--time: '0' means no limit, but every job needs one; give for example 10m"),
        (["-t", "UNLIMITED", "--", "x"], "--time: 'UNLIMITED' means no limit"),
        (["--open-mode", "w", "--", "x"], "--open-mode: 'w' is not known; one of append, truncate"),
        (["--signal", "USR1@x", "--", "x"], "--signal: 'USR1@x': 'x' is not a number of seconds"),
        (["-a", "5-1", "--", "x"], "--array: '5-1' of '5-1' are not indexes; write 1-10"),
        (["-a", "1-1000000000", "--", "x"], "--array: '1-1000000000' has too many jobs; at most 100,000"),
        (["-a", "9999999999", "--", "x"], "index is 9999999999; expected a whole number from 0 to 2147483647"),
        (["--after", "3:ok", "--", "x"], "--after: '3:ok': write JOB or JOB:STATE, with STATE one of started"),
        (["--after", "nobody", "--", "x"], "there is no array 'nobody'"),
        (["--env", "=x", "--", "x"], "--env: '=x' has no name"),
        (["--env", "NOT_THERE", "--", "x"], "--env: there is no variable NOT_THERE here; write NOT_THERE=VALUE"),
        (["-D", "data", "--", "x"], "--chdir: 'data' is not an absolute path"),
        (["--ranks", "all", "--", "x"], "--ranks: 'all' is not known; one of each-node, first-node"),
        (["-o", "/a/%y", "--", "x"], "'/a/%y': the pattern '%y' is not known; there are %%, %A"),
        (
            ["-n", "2", "-o", "/a/out", "--", "x"],
            "--output: '/a/out': 2 ranks would write this one file; put %t into it",
        ),
        (["--name", "a\nb", "--", "x"], "is not a name"),
        (["missing.sh"], "missing.sh: there is no such file here; for a command on the machines write: -- missing.sh"),
        (["-n", "13", "--", "x"], "13 nodes; the grid has 12"),
        (["--", "echo", "a\udcff"], "'a\\udcff' is not UTF-8, and cannot be sent; write it as UTF-8"),
    ],
    ids=str,
)
def test_mistakes(here: Elsewhere, shell: Shell, arguments: list[str], says: str) -> None:
    """A mistake is one line with status 2, and nothing is handed in."""
    status, out, err = shell("submit", *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert handed_in(here) == []


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.integers(0, 50))
def test_any_indexes_can_be_written(indexes: list[int], at_once: int) -> None:
    """Every set of indexes is read back as it is."""
    text = ",".join(map(str, indexes)) + (f"%{at_once}" if at_once else "")
    assert parse_array("--array", text) == (sorted(set(indexes)), at_once)


@given(st.text("0123456789-,:%", max_size=12))
def test_an_array_is_read_or_refused(text: str) -> None:
    """Whatever the text, there are indexes or an error of the project."""
    try:
        indexes, at_once = parse_array("--array", text)
    except OptionError:
        return
    assert indexes == sorted(set(indexes))
    assert at_once >= 0


def test_what_is_no_array() -> None:
    """Arrays of nothing and of too many are refused."""
    for text in ("", "a", "1-", "3-1", "1-5:0", "1,,2", "1%0", "0-100000", "1-99999999:2", "1%2%3", "-1"):
        with pytest.raises(OptionError, match="--array"):
            parse_array("--array", text)
    assert len(parse_array("--array", "0-99999")[0]) == 100_000


def test_what_comes_before() -> None:
    """A job that must be over first is named alone, or with how."""
    assert parse_after("--after", "7") == ("7", "finished")
    assert parse_after("--after", "a-b:failed") == ("a-b", "failed")
    for text in ("", ":ended", "7:done", "7:ended:x"):
        with pytest.raises(OptionError):
            parse_after("--after", text)


def test_patterns_that_are_not_known() -> None:
    """A pattern that Slurm knows and machines cannot tell is refused, and so is one with a width."""
    for pattern in ("%s", "%5j", "%u"):
        with pytest.raises(InputError, match="is not known; there are"):
            shipped(("x",), None, output=pattern, error=None, name="x")
