"""`gridweave submit`: what becomes of options, of scripts and their lines, and of mistakes in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_helpers import Elsewhere
from gridweave.cli.submit_options import MOST_BYTES, parse_after, parse_array, shipped, shipped_name
from gridweave.errors import InputError, OptionError
from gridweave.grid.client.configuration import Connection
from gridweave.site.elements import count_of
from gridweave.site.job import After, ArrayPlace, JobForm, JobRecord, JobRequest, Program, Resources, TaskGroup, Traffic
from gridweave.site.launch import LimitSignal
from gridweave.site.machine.folders import error_path

Shell = Callable[..., tuple[int, str, str]]

HOUR_MS = 3_600_000

OF_ITS_OWN = (
    "job works in a folder of its own: the machines cannot see this folder; use --chdir to name one of theirs\n"
)


@pytest.fixture
def here(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Elsewhere:
    """Start a gateway that the command finds by itself, and work in a folder of its own."""
    monkeypatch.setenv("GRIDWEAVE_URL", elsewhere.url)
    monkeypatch.setenv("LOGNAME", "anna")
    monkeypatch.chdir(tmp_path)
    return elsewhere


def handed_in(here: Elsewhere) -> list[JobRequest]:
    """Return what was handed in."""
    return [record.request for record in here.grid.records_by_id.values()]


def script(text: str, name: str = "job.sh") -> str:
    """Write a script, and return its name."""
    Path(name).write_text(text)
    return name


# -- options


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
    assert err.startswith("array step-mine: 2 jobs of 4 elements, each job 1 node for at most 1 h")
    places = [request.array for request in handed_in(here)]
    parts = [((1, 2), (3, 4), (5, 6), (7, 8)), ((9, 10), (20, 23))]
    assert places == [ArrayPlace(name="step-mine", index=part[0][0], elements=part) for part in parts]
    assert [job["key"] for job in json.loads(shell("submit", *options, "--json", "--", "./step")[1])["jobs"]] == [
        "mine-1",
        "mine-9",
    ]
    shell("submit", "--array", "1-1000", "--pack", "--", "./step")
    nodes = sum(here.grid.nodes.values())
    counts = [count_of(request.array.elements) for request in handed_in(here)[2:] if request.array is not None]
    assert (len(counts), sum(counts), max(counts)) == (2 * nodes, 1000, 42)
    status, _, err = shell("submit", "--pack", "--", "./step")
    assert status == 2
    assert "--pack: goes with --array" in err


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
        _, said = process.communicate(timeout=60)
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
        (["-t", "0", "--", "x"], "--time: '0' means no limit, and every job needs one; give for example 10m"),
        (["-t", "UNLIMITED", "--", "x"], "--time: 'UNLIMITED' means no limit"),
        (["--open-mode", "w", "--", "x"], "--open-mode: 'w' is not known; one of append, truncate"),
        (["--signal", "USR1@x", "--", "x"], "--signal: 'USR1@x': 'x' is not a number of seconds"),
        (["-a", "5-1", "--", "x"], "--array: '5-1' of '5-1' are not indexes; write 1-10"),
        (["-a", "1-1000000000", "--", "x"], "--array: '1-1000000000' has too many jobs; at most 100,000"),
        (["-a", "9999999999", "--", "x"], "index is 9999999999; a whole number from 0 to 2147483647"),
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


# -- scripts


def run_rank(request: JobRequest, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run what a job would run on a machine, as rank 0 of job 7."""
    program = request.program
    folder.mkdir(exist_ok=True)
    variables = {"GRIDWEAVE_FOLDER": str(folder), "GRIDWEAVE_RANK": "0", "GRIDWEAVE_JOB_ID": "7", "GRIDWEAVE_NODE": "0"}
    if request.array is not None:
        variables |= {"GRIDWEAVE_ARRAY": request.array.name, "GRIDWEAVE_ARRAY_INDEX": str(request.array.index)}
    env = {"PATH": os.environ["PATH"]} | program.environment | variables | environment
    return subprocess.run(
        program.argv, env=env, capture_output=True, text=True, check=False, cwd=program.working_directory or folder
    )


def test_a_script_goes_with_its_job(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """A script is run by the interpreter that it names, with its arguments as they are, on the first node."""
    text = '#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], "$HOME", """it\'s""")\nsys.exit(3)\n'
    assert shell("submit", script(text, "work.py"), "a b", "$c", "-n", "it's")[0] == 0
    (request,) = handed_in(here)
    assert (request.name, request.program.ranks) == ("work.py", "first-node")
    done = run_rank(request, tmp_path / "rank")
    assert (done.returncode, done.stdout) == (3, "['a b', '$c', '-n', \"it's\"] $HOME it's\n")
    assert shipped_name(request.program.argv) == "work.py (a script)"
    assert "work.py (a script)" in shell("show", 1)[1]


def test_a_script_without_an_interpreter(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """A script that names no interpreter is one of the shell."""
    shell("submit", script("echo $0 | sed 's:.*/::'; echo $#"), "x", "y")
    assert run_rank(handed_in(here)[0], tmp_path / "rank").stdout == "script-0\n2\n"


def test_several_scripts_are_a_job_each(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """Words that all are scripts here are jobs, each with its own lines; behind -- they are arguments of the first."""
    names = [script(f"#!/bin/sh\n#GRIDWEAVE -n {nodes}\necho {nodes} $1\n", f"{nodes}.sh") for nodes in (1, 2, 3)]
    status, out, err = shell("submit", "-t", "5m", "--key", "k", *names)
    assert (status, out) == (0, "1-3\n")
    assert err == "submitted: 3 jobs; see: gridweave jobs\neach " + OF_ITS_OWN
    assert [(one.name, one.nodes, one.limit_ms) for one in handed_in(here)] == [
        (f"{nodes}.sh", nodes, 300_000) for nodes in (1, 2, 3)
    ]
    again = json.loads(shell("submit", "-t", "5m", "--key", "k", "--json", *names)[1])
    assert [job["job_id"] for job in again["jobs"]] == [1, 2, 3]
    shell("submit", names[0], "--", names[1])
    shell("submit", names[0], names[1], "word")
    assert [run_rank(one, tmp_path / str(n)).stdout for n, one in enumerate(handed_in(here)[3:])] == ["1 2.sh\n"] * 2


def test_a_job_works_where_one_stands_if_the_machines_know_the_folder(
    here: Elsewhere, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a grid of `up` the folder here, or one below it, is that of the job, and files are named from there."""
    monkeypatch.setattr(Connection, "shares_folders", property(lambda _: True))
    (tmp_path / "below").mkdir()
    Path("data").write_text("from here\n")
    _, _, err = shell("submit", "-o", "out", "-i", "data", "--", "cat")
    assert "folder" not in err
    shell("submit", "-D", "below", "--", "true")
    shell("submit", "-D", "/data", "--", "true")
    folders = [request.program.working_directory for request in handed_in(here)]
    assert folders == [str(tmp_path), str(tmp_path / "below"), "/data"]
    assert run_rank(handed_in(here)[0], tmp_path / "rank").returncode == 0
    assert Path("out").read_text() == "from here\n"


def test_standard_input_is_a_file(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """A whole path is a file of the machines; another one is read here and sent along, to a script as well."""
    Path("data").write_text("it's $HOME\nhere\n")
    (tmp_path / "there").write_text("there\n")
    shell("submit", "--input", "data", "--", "cat")
    shell("submit", "-i", str(tmp_path / "there"), "--", "cat")
    shell("submit", script("#!/bin/sh\n#SBATCH -i data\ncat; echo $1\n"), "x")
    shell("submit", "-i", "/nothing/such", "--", "cat")
    done = [run_rank(request, tmp_path / f"rank{number}") for number, request in enumerate(handed_in(here))]
    assert [one.stdout for one in done] == ["it's $HOME\nhere\n", "there\n", "it's $HOME\nhere\nx\n", ""]
    assert done[3].returncode != 0
    wrong = (("no", None, "No such file"), ("nul", b"\0", "without NUL"), ("bin", b"\xff", "not UTF-8"))
    for name, data, says in wrong:
        if data is not None:
            Path(name).write_bytes(data)
        status, _, err = shell("submit", "--input", name, "--", "cat")
        assert status == 2
        assert f"--input: {name}: " in err
        assert says in err


def test_a_script_on_standard_input(here: Elsewhere, tmp_path: Path) -> None:
    """A script may come from standard input."""
    command = [sys.executable, "-m", "gridweave.cli", "submit", "-", "x"]
    subprocess.run(command, input=b"#!/bin/sh\n#GRIDWEAVE -n 3\necho hello $1\n", check=True, capture_output=True)
    (request,) = handed_in(here)
    assert (request.name, request.nodes) == ("stdin", 3)
    assert run_rank(request, tmp_path / "rank").stdout == "hello x\n"


def test_a_program_behind_dashes_is_one_of_the_machines(here: Elsewhere, shell: Shell) -> None:
    """What stands behind -- is a command of the machines, also if a script of that name is here."""
    shell("submit", "--", script("#!/bin/sh\n"))
    shell("submit", script("#!/bin/sh\n"), "--", "x")
    assert [request.program.argv[:1] for request in handed_in(here)] == [("job.sh",), ("/bin/sh",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a rank."""
    return tmp_path_factory.mktemp("rank")


@given(
    st.text(alphabet=st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=200),
    st.text("a'\"$`\\ \n%", max_size=9),
)
def test_any_text_arrives_as_it_is(folder: Path, text: str, argument: str) -> None:
    """Whatever a script says, and is given, arrives on the machine byte by byte."""
    argv = shipped((argument,), "#!/bin/cat\n" + text, output=None, error=None, name="x.sh")
    shown = {"GRIDWEAVE_FOLDER": str(folder), "GRIDWEAVE_RANK": "0", "PATH": os.environ["PATH"]}
    lines = argv[2].replace('exec "$script" "$@"', 'cat "$script"; printf %s "$1" > "$script-1"')
    done = subprocess.run((*argv[:2], lines, *argv[3:]), env=shown, capture_output=True, check=True)
    assert done.stdout.decode() == "#!/bin/cat\n" + text
    assert (folder / "script-0-1").read_bytes().decode() == argument


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"#!/bin/sh\r\necho\r\n", "job.sh:1: its lines end as in DOS"),
        (b"#!/bin/sh\n\0", "contains NUL characters, so it is not a script; for a program write: -- job.sh"),
        (b"#!/bin/sh\n\xff", "byte 10 is not UTF-8"),
        (
            b"#!/bin/sh\n" + b"x" * MOST_BYTES,
            "has 100,010 bytes; a script is sent with its job and may have at most 100,000",
        ),
    ],
    ids=["dos", "nul", "latin", "long"],
)
def test_what_is_no_script(here: Elsewhere, shell: Shell, data: bytes, says: str) -> None:
    """A script that no machine could run is refused here."""
    Path("job.sh").write_bytes(data)
    status, _, err = shell("submit", "job.sh")
    assert status == 2
    assert says in err


def test_the_longest_script_can_be_run(tmp_path: Path) -> None:
    """A script of the greatest length fits into an argument of this system."""
    text = "#!/bin/sh\nwc -c < $0\n".ljust(MOST_BYTES, "#")
    argv = shipped((), text, output=None, error=None, name="x.sh")
    request = JobRequest(program=Program(argv=argv), limit_ms=1)
    assert run_rank(request, tmp_path / "rank").stdout.strip() == str(MOST_BYTES)


# -- lines of scripts

SLURM = """\
#!/bin/bash
#SBATCH --nodes=2 -t 1-12:30   # a day and a half
#SBATCH --job-name "big sweep"
#SBATCH -a1-3%2
#SBATCH --export=NONE,COLOR=blue
#SBATCH --requeue --signal=B:USR1@90
# a comment

echo "$SLURM_JOB_ID/$SLURM_ARRAY_JOB_ID/$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"
echo "$SLURM_NNODES $SLURM_NTASKS $SLURM_JOB_NAME $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX $COLOR"
#SBATCH --nodes=99
"""


def test_lines_of_slurm(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """What #SBATCH lines say counts up to the first command, and the script finds Slurm's variables."""
    assert shell("submit", "--key", "k", script(SLURM))[0] == 0
    first, *_ = requests = handed_in(here)
    assert [(request.nodes, request.limit_ms) for request in requests] == [(2, 131_400_000)] * 3
    assert (first.name, first.program.if_lost, first.program.ranks) == ("big sweep", "requeue", "first-node")
    assert (first.program.checkpoint_signal, first.program.grace_ms) == ("USR1", 90_000)
    assert first.array == ArrayPlace(name="big sweep-k", index=1, at_once=2)
    done = run_rank(requests[2], tmp_path / "rank")
    assert done.stdout == "7/big sweep-k/3 of 3\n2 2 big sweep 1-3 blue\n"


def test_a_script_in_an_allocation_of_slurm_keeps_the_numbers_of_slurm(
    here: Elsewhere, shell: Shell, tmp_path: Path
) -> None:
    """There scancel must find the allocation that the script runs in, and no job that has gridweave's number there."""
    prints = 'echo "$SLURM_JOB_ID $SLURM_JOBID $SLURM_JOB_NAME $SLURM_ARRAY_JOB_ID/$SLURM_ARRAY_TASK_ID $SLURM_NTASKS"'
    shell("submit", script(f"#!/bin/sh\n#SBATCH -J own -a 3 -n 2\n{prints}\n"))
    allocation = {"SLURM_JOB_ID": "4711", "SLURM_JOBID": "4711", "SLURM_JOB_NAME": "gw-1"}
    done = run_rank(handed_in(here)[0], tmp_path / "rank", **allocation)
    assert done.stdout == "4711 4711 gw-1 4711/3 2\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/bin/sh\n#PBS -N sample\n#PBS -l nodes=2\n", ["2: #PBS -N sample: is not read, as it is for another", "3"]),
        ("#!/bin/sh\n#$ -pe mpi 8\n#BSUB -n 4\n", ["2: #$ -pe mpi 8: is not read, as it is for another", "3: #BSUB"]),
        ("#!/bin/sh\n  #SBATCH -N 3\n", ["2: #SBATCH -N 3: is not read, as it does not begin with exactly #SBATCH"]),
        ("#!/bin/sh\n#sbatch -N 3\n#SBATCH: -N 3\n", ["2: #sbatch -N 3: is not read, as it does not", "3: #SBATCH: "]),
        ("#!/bin/sh\ntrue\n\n#SBATCH -N 3\n", ["4: #SBATCH -N 3: is not read, as it stands after the first command"]),
        ("#!/bin/sh\ntrue\n#GRIDWEAVE -n 3\n", ["3: #GRIDWEAVE -n 3: is not read, as it stands after the first"]),
        ("#!/bin/sh\n# SBATCH -N 3\n##SBATCH -N 3\n#$(date)\n# PBS\n", []),
    ],
)
def test_lines_that_are_not_read_are_named(here: Elsewhere, shell: Shell, text: str, says: list[str]) -> None:
    """A job that gets less than its script asks for in vain must not surprise anybody; comments may be anything."""
    status, _, err = shell("submit", script(text))
    assert (status, handed_in(here)[0].nodes) == (0, 1)
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == len(says)
    assert all(line.startswith(f"warning: job.sh:{each}") for line, each in zip(warnings, says, strict=True))


def test_options_may_follow_without_a_space(here: Elsewhere, shell: Shell) -> None:
    """As Slurm reads them."""
    assert shell("submit", script("#!/bin/sh\n#SBATCH--time=00:10:00\n#SBATCH-N 3\n"))[0] == 0
    (request,) = handed_in(here)
    assert (request.nodes, request.limit_ms) == (3, 600_000)


@pytest.mark.parametrize("name", ["job.sh", "job"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\ufeff#!/bin/sh\n#SBATCH -N 3\n", ":1: begins with a byte order mark, so its first line"),
        ("\n#!/bin/bash\n#SBATCH -N 3\n", ":2: #!/bin/bash is not at the beginning of the file"),
        ("  #!/bin/bash\n#SBATCH -N 3\n", ":1: #!/bin/bash is not at the beginning of the file"),
    ],
)
def test_a_script_begins_with_its_interpreter(here: Elsewhere, shell: Shell, name: str, text: str, says: str) -> None:
    """The system would run it by another one, or not at all."""
    status, _, err = shell("submit", script(text, name))
    assert (status, handed_in(here)) == (2, [])
    assert f"{name}{says}" in err


def test_a_later_line_may_name_an_interpreter(here: Elsewhere, shell: Shell) -> None:
    """After a comment in a script without one it is refused; after a command, or a first #!, it is a comment."""
    assert shell("submit", script("# mine\n#!/bin/bash\n"))[0] == 2
    assert shell("submit", script("true\n#!/bin/bash\n"))[0] == 0
    assert shell("submit", script("#!/bin/sh\n#!/bin/bash\n"))[0] == 0


def test_what_wins(here: Elsewhere, shell: Shell) -> None:
    """The command line wins over #GRIDWEAVE lines, these over #SBATCH lines, and later lines over earlier ones."""
    text = (
        "#!/bin/sh\n#SBATCH -N 1 -t 5\n#GRIDWEAVE -n 2 --env A=1\n#SBATCH -N 3 -J slurm\n#GRIDWEAVE --hold --env B=1\n"
    )
    shell("submit", "--env", "A=2", "--no-hold", script(text))
    shell("submit", "-n", 4, "-t", "10m", "-J", "own", script(text))
    first, second = handed_in(here)
    assert (first.nodes, first.limit_ms, first.name, first.hold) == (2, 300_000, "slurm", False)
    assert {key: first.program.environment[key] for key in "AB"} == {"A": "2", "B": "1"}
    assert (second.nodes, second.limit_ms, second.name, second.hold) == (4, 600_000, "own", True)
    shell("submit", "--priority", 0, script("#!/bin/sh\n#GRIDWEAVE --priority 5\n"))
    assert handed_in(here)[2].priority == 0


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("-n 6", lambda request: request.nodes == 6 and request.program.environment["SLURM_NTASKS"] == "6"),
        ("-N 2 -n 8", lambda request: request.nodes == 2 and request.program.environment["SLURM_NTASKS"] == "8"),
        ("-t 90", lambda request: request.limit_ms == 90 * 60_000),
        ("-t 90:30", lambda request: request.limit_ms == 90 * 60_000 + 30_000),
        ("-t 1:30:15", lambda request: request.limit_ms == 5_415_000),
        ("-t 2-3", lambda request: request.limit_ms == 51 * HOUR_MS),
        ("-t 2-3:30", lambda request: request.limit_ms == 51 * HOUR_MS + 1_800_000),
        ("--time=2-03:30:10", lambda request: request.limit_ms == 51 * HOUR_MS + 1_810_000),
        ("-H", lambda request: request.hold),
        ("--chdir=/data", lambda request: request.program.working_directory == "/data"),
        ("-D/data", lambda request: request.program.working_directory == "/data"),
        (
            "--dependency=afterok:1:2,afterany:3,afternotok:4,after:5",
            lambda request: [(one.job_id, one.has) for one in request.after]
            == [(1, "finished"), (2, "finished"), (3, "ended"), (4, "failed"), (5, "started")],
        ),
        ("--export=ALL", lambda request: request.program.environment["LOGGED"] == "yes"),
        ("--export=LOGGED,B=2", lambda request: request.program.environment.items() >= {("LOGGED", "yes"), ("B", "2")}),
        ("--export=NONE", lambda request: "LOGGED" not in request.program.environment),
    ],
)  # fmt: skip
def test_options_of_slurm(
    here: Elsewhere, shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str, check: Callable[[JobRequest], bool]
) -> None:
    """Each supported option means what it means to Slurm."""
    monkeypatch.setenv("LOGGED", "yes")
    monkeypatch.setenv("GRIDWEAVE_TOKEN", "gw_a_secret")
    assert shell("submit", script(f"#!/bin/sh\n#SBATCH {line}\n"))[0] == 0
    (request,) = handed_in(here)
    assert check(request)
    assert not any("gw_a_secret" in value for value in request.program.environment.values())
    assert "PATH" not in request.program.environment


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("#SBATCH --partition=debug", "job.sh:3: #SBATCH --partition: is not supported; there are --nodes, --ntasks"),
        ("#SBATCH -N 1 -p debug", "job.sh:3: #SBATCH -p: is not supported"),
        ("#SBATCH --tmp 4G -N 2", "job.sh:3: #SBATCH --tmp: is not supported"),
        ("#GRIDWEAVE --batch-option fast", "--batch-option: 'fast' is not an option; write name=value, for example"),
        ("#SBATCH --exclusive", "#SBATCH --exclusive: is not supported"),
        ("#SBATCH -N 2-4", "job.sh:3: #SBATCH --nodes: '2-4' is not a number from 1 up; ranges"),
        ("#SBATCH -N", "job.sh:3: #SBATCH -N: has no value"),
        ("#SBATCH nodes=3", "job.sh:3: #SBATCH nodes=3: is not an option"),
        ("#SBATCH -t soon", "job.sh:3: #SBATCH --time: 'soon' is not a time; write 90 (minutes)"),
        ("#SBATCH -d singleton", "#SBATCH --dependency: 'singleton' is not supported; there are after:JOB"),
        ("#SBATCH -d afterok:1?afterok:2", "'afterok:1?afterok:2' is not supported"),
        ("#SBATCH -d after:1+10", "'after:1+10' is not supported"),
        ("#SBATCH --export=", "#SBATCH --export: has no value"),
        ("#SBATCH -J 'a", "job.sh:3: #SBATCH: no closing quotation"),
        ("#GRIDWEAVE --node 3", "job.sh:3: #GRIDWEAVE: No such option: --node"),
        ("#GRIDWEAVE -n x", "job.sh:3: #GRIDWEAVE: Invalid value for '--nodes'"),
        ("#GRIDWEAVE --wait", "job.sh:3: #GRIDWEAVE: --wait is only for the command line"),
        ("#GRIDWEAVE --json", "job.sh:3: #GRIDWEAVE: --json is only for the command line"),
        ("#GRIDWEAVE --url http://x", "job.sh:3: #GRIDWEAVE: --url is only for the command line"),
        ("#GRIDWEAVE -n 3 true", "job.sh:3: #GRIDWEAVE: a command is only for the command line"),
    ],
)
def test_what_is_wrong_in_a_script(here: Elsewhere, shell: Shell, line: str, says: str) -> None:
    """A line that cannot be used, or is not supported, is named with file, line and option; nothing is handed in."""
    status, out, err = shell("submit", script(f"#!/bin/sh\n\n{line}\ntrue\n"))
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert handed_in(here) == []


def test_options_of_slurm_alone_go_with_the_job(here: Elsewhere, shell: Shell) -> None:
    """Those of #SBATCH lines that a site may pass on, short and long, and those of the command line, all count."""
    lines = "#SBATCH -C fast --gres gpu:1\n#SBATCH --mem=4G -N 2\n#GRIDWEAVE --batch-option qos=night"
    status, _, err = shell("submit", "--batch-option", "nice=7", script(f"#!/bin/sh\n{lines}\n"))
    assert (status, "warning" in err) == (0, False)
    (request,) = handed_in(here)
    assert request.nodes == 2
    assert request.batch_options == ("constraint=fast", "gres=gpu:1", "mem=4G", "qos=night", "nice=7")


def test_forms_of_machines_that_differ(here: Elsewhere, shell: Shell) -> None:
    """Each --form is one, those of the script too; the job asks for as many nodes as the widest has."""
    lines = "#GRIDWEAVE --form width=4,on=sparc+x86,speed=2.5"
    assert shell("submit", "--form", "on=x86, memory=512, cores=2", script(f"#!/bin/sh\n{lines}\n"))[0] == 0
    (request,) = handed_in(here)
    assert request.nodes == 4
    assert request.forms == (
        JobForm(width=4, on=("sparc", "x86"), speed=2.5),
        JobForm(on=("x86",), memory_mb=512, cores=2),
    )


def test_a_form_has_a_command_of_its_own(here: Elsewhere, shell: Shell) -> None:
    """What stands after the colon is its command, as a shell splits it; other forms have that of the job."""
    assert shell("submit", "--form", "width=4: mpirun ./solver 'a b'", "--form", "on=x86", "--", "./solver")[0] == 0
    (request,) = handed_in(here)
    assert request.forms == (JobForm(width=4, argv=("mpirun", "./solver", "a b")), JobForm(on=("x86",)))
    assert request.program.argv == ("./solver",)


def test_groups_of_tasks(here: Elsewhere, shell: Shell) -> None:
    """Each --task-group is one, those of the script first; a job has as many tasks as they have together."""
    lines = "#GRIDWEAVE --task-group tasks=1,memory=0.5"
    assert shell("submit", "--task-group", "tasks=7, cpu=0.25, memory=0.1", script(f"#!/bin/sh\n{lines}\n"))[0] == 0
    (request,) = handed_in(here)
    assert request.nodes == 8
    groups = TaskGroup(tasks=1, memory=0.5), TaskGroup(tasks=7, cpu_need=0.25, memory=0.1)
    assert request.resources == Resources(cpu_need=1.0, memory=0.5, groups=groups)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--task-group", "cpu=0.5"],
            "'cpu=0.5': does not say how many tasks that are, from 1; write for example tasks=4",
        ),
        (["--task-group", "tasks=0"], "'tasks=0': does not say how many tasks"),
        (["--task-group", "tasks=2,memory=1.5"], "--task-group: memory 1.5 is not above 0 and up to 1, a node's"),
        (["--task-group", "tasks=2", "--cpu-need", "0.5"], "leave out --cpu-need and --memory-need"),
        (["-n", "3", "--task-group", "tasks=2"], "the groups have 2 tasks, and the job 3; say the same, or leave"),
        (["--form", "wide=4"], "--form: 'wide=4': 'wide=4' is not understood; write for example width=4,on=sparc+x86"),
        (["--form", "width=4: "], "--form: 'width=4: ': no command after the colon; write for example width=4: ./so"),
        (["--form", "width=4: ./x 'a"], "the command cannot be read: No closing quotation"),
        (["--form", "width=4,width=5"], "'width=5' is not understood"),
        (["--form", "width=four"], "'four' is not valid for width; write for example"),
        (["--form", "speed=0"], "form 1 has the speed 0; above 0 and up to 10000"),
        (["-n", "2", "--form", "width=4"], "nodes is 2, and the widest form has the width 4; say the same, or leave"),
    ],
)
def test_forms_and_groups_that_are_none_are_refused(
    here: Elsewhere, shell: Shell, options: list[str], says: str
) -> None:
    """In one line, before anything is handed in."""
    status, _, err = shell("submit", *options, "--", "true")
    assert (status, len(err.splitlines())) == (2, 1)
    assert says in err
    assert handed_in(here) == []


def test_what_is_not_supported_may_be_ignored(here: Elsewhere, shell: Shell) -> None:
    """With --ignore-unsupported each such option is a warning, and all others count."""
    name = script("#!/bin/sh\n#SBATCH -p debug -N 2\n#SBATCH --mem=4G --exclusive\n#SBATCH --gres gpu:1 -t 5\n")
    status, out, err = shell("submit", "--ignore-unsupported", name)
    assert (status, out) == (0, "1\n")
    assert [line for line in err.splitlines() if "warning" in line] == [
        f"warning: job.sh:{line}: #SBATCH {option}: is not supported, and ignored"
        for line, option in ((2, "-p"), (3, "--mem"), (3, "--exclusive"), (4, "--gres"))
    ]
    (request,) = handed_in(here)
    assert (request.nodes, request.limit_ms) == (2, 300_000)


# -- output to files


def test_output_goes_to_files_of_the_machines(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """Patterns are filled in on the machine; standard error goes along if no file is named for it."""
    folder = tmp_path / "it's a place"
    folder.mkdir()
    text = "#!/bin/sh\necho out; echo err >&2\n"
    shell(
        "submit", "-o", f"{folder}/%x-%j-%A_%a-%t-100%%.txt", "--array", "4", "--key", "k", "-J", "na me", script(text)
    )
    shell("submit", "-D", str(folder), "-o", "out-%j", "-e", "err-%j", "--", "sh", "-c", "echo out; echo err >&2")
    shell("submit", "-D", str(folder), "-e", "only-err", "--", "sh", "-c", "echo out; echo err >&2")
    for request, printed in zip(handed_in(here), ("", "", "out\n"), strict=True):
        done = run_rank(request, tmp_path / "rank")
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {
        "na me-7-na me-k_4-0-100%.txt": "out\nerr\n",
        "out-7": "out\n",
        "err-7": "err\n",
        "only-err": "err\n",
    }


def test_output_without_a_place_is_kept_by_the_grid(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """A relative name without --chdir would be in a folder that goes: the grid keeps the output, and says so."""
    _, _, err = shell("submit", script("#!/bin/sh\n#SBATCH -o slurm-%j.out\necho out\n"))
    assert err.startswith(
        "--output slurm-%j.out: the grid keeps it, as no --chdir is given; read it with: gridweave logs"
    )
    assert run_rank(handed_in(here)[0], tmp_path / "rank").stdout == "out\n"


# -- texts


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.integers(0, 50))
def test_any_indexes_can_be_written(indexes: list[int], at_once: int) -> None:
    """Every set of indexes is read back as it is."""
    text = ",".join(map(str, indexes)) + (f"%{at_once}" if at_once else "")
    assert parse_array(text) == (sorted(set(indexes)), at_once)


@given(st.text("0123456789-,:%", max_size=12))
def test_an_array_is_read_or_refused(text: str) -> None:
    """Whatever the text, there are indexes or an error of the project."""
    try:
        indexes, at_once = parse_array(text)
    except OptionError:
        return
    assert indexes == sorted(set(indexes))
    assert at_once >= 0


def test_what_is_no_array() -> None:
    """Arrays of nothing and of too many are refused."""
    for text in ("", "a", "1-", "3-1", "1-5:0", "1,,2", "1%0", "0-100000", "1-99999999:2", "1%2%3", "-1"):
        with pytest.raises(OptionError, match="--array"):
            parse_array(text)
    assert len(parse_array("0-99999")[0]) == 100_000


def test_what_comes_before() -> None:
    """A job that must be over first is named alone, or with how."""
    assert parse_after("7") == ("7", "finished")
    assert parse_after("a-b:failed") == ("a-b", "failed")
    for text in ("", ":ended", "7:done", "7:ended:x"):
        with pytest.raises(OptionError):
            parse_after(text)


# -- files that are opened on the machine


def _opening(**files: str | None) -> tuple[str, ...]:
    """Return what a job runs that writes to files."""
    text = "#!/bin/sh\necho out; echo err >&2\n"
    return shipped((), text, name="a/b", **({"output": None, "error": None} | files))


def test_the_folder_of_an_output_file_is_made(tmp_path: Path) -> None:
    """As deep as it may be; a slash in the name of a job makes none."""
    argv = _opening(output="logs_%j/deep/%x.txt", error=str(tmp_path / "err s/e.txt"))
    done = run_rank(JobRequest(program=Program(argv=argv), limit_ms=1), tmp_path / "rank")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "rank" / "logs_7" / "deep" / "a_b.txt").read_text() == "out\n"
    assert (tmp_path / "err s" / "e.txt").read_text() == "err\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"output": "/proc/none/out.txt"}, "--output /proc/none/out.txt: cannot be written: "),
        ({"error": "/proc/none"}, "--error /proc/none: cannot be written: "),
        ({"output": "taken"}, "--output taken: cannot be written: "),
        ({"read": "missing.txt"}, "--input missing.txt: cannot be read: "),
    ],
)
@pytest.mark.parametrize("command", ["script", "program"])
def test_a_file_that_cannot_be_opened_is_the_reason(
    tmp_path: Path, files: dict[str, str], says: str, command: str
) -> None:
    """It is named, with why, where the machine looks for the reason; the program does not run."""
    text = None if command == "program" else "#!/bin/sh\ntouch ran\n"
    argv = shipped(("touch", "ran"), text, name="x", **({"output": None, "error": None} | files))
    rank = tmp_path / "rank"
    (rank / "taken").mkdir(parents=True)
    done = run_rank(JobRequest(program=Program(argv=argv), limit_ms=1), rank)
    told = error_path(rank, 0).read_text()
    assert done.returncode == 126
    assert told.startswith(says)
    assert len(told) > len(says)
    assert told in done.stderr
    assert not (rank / "ran").exists()


@pytest.mark.parametrize(
    ("mode", "kept"), [(None, "old\nout\nout\n"), ("append", "old\nout\nout\n"), ("truncate", "out\n")]
)
def test_the_output_of_every_attempt_can_be_read(tmp_path: Path, mode: str | None, kept: str) -> None:
    """A job that runs again adds to its file, unless it is to be truncated; its first attempt begins it."""
    rank = tmp_path / "rank"
    argv = _opening(output="out.txt", open_mode=mode)
    request = JobRequest(program=Program(argv=argv), limit_ms=1)
    rank.mkdir()
    (rank / "out.txt").write_text("old\n")
    run_rank(request, rank, GRIDWEAVE_ATTEMPT="1")
    run_rank(request, rank, GRIDWEAVE_ATTEMPT="2")
    text = (rank / "out.txt").read_text().replace("err\n", "")
    assert text == (kept if mode else kept.removeprefix("old\n"))


def test_a_script_knows_how_often_it_has_started(here: Elsewhere, shell: Shell, tmp_path: Path) -> None:
    """By the variable of Slurm, which is not set at its first start."""
    name = script("#!/bin/sh\n#SBATCH -N1\necho restarts ${SLURM_RESTART_COUNT:-none}\n")
    assert shell("submit", name)[0] == 0
    (request,) = handed_in(here)
    said = [run_rank(request, tmp_path / "rank", GRIDWEAVE_ATTEMPT=attempt).stdout for attempt in ("1", "2", "4")]
    assert said == ["restarts none\n", "restarts 1\n", "restarts 3\n"]


@pytest.mark.parametrize(
    ("lines", "checkpoint", "ahead"),
    [
        ("#SBATCH --signal=B:USR1@10", "USR1", LimitSignal("USR1", 10_000, "rank")),
        ("#SBATCH --signal=USR2", "USR2", LimitSignal("USR2", 60_000, "steps")),
        ("#SBATCH --signal=RB:SIGTERM@5 --no-requeue", None, LimitSignal("TERM", 5_000, "rank")),
        ("#SBATCH --no-requeue\n#SBATCH --signal B:USR2@30", None, LimitSignal("USR2", 30_000, "rank")),
        ("#GRIDWEAVE --signal B:USR1@99999", "USR1", LimitSignal("USR1", 99_999_000, "rank")),
    ],
)
def test_a_signal_ahead_of_the_limit(
    here: Elsewhere, shell: Shell, lines: str, checkpoint: str | None, ahead: LimitSignal
) -> None:
    """It goes with the job, also for one that is not to run again; what may run again saves its work at it."""
    assert shell("submit", script(f"#!/bin/sh\n{lines}\ntrue\n"))[0] == 0
    program = handed_in(here)[0].program
    assert (program.checkpoint_signal, program.limit_signal) == (checkpoint, ahead)
    assert program.if_lost == ("requeue" if checkpoint else "fail")


def test_a_signal_that_nothing_would_get_is_remarked(here: Elsewhere, shell: Shell) -> None:
    """Without `B:` it goes to steps, and a script without srun has none."""
    said = "as in Slurm it goes to the steps that srun starts, and the script has no srun; give B:USR1@10"
    for lines, is_said in (("USR1@10\ntrue", True), ("USR1@10\nsrun true", False), ("B:USR1@10\ntrue", False)):
        assert (said in shell("submit", script(f"#!/bin/sh\n#SBATCH --signal={lines}\n"))[2]) == is_said


def test_a_command_gets_the_signal_itself(here: Elsewhere, shell: Shell) -> None:
    """There is no script around it."""
    assert shell("submit", "--signal", "USR1@10", "--", "./solver")[0] == 0
    assert handed_in(here)[0].program.limit_signal == LimitSignal("USR1", 10_000, "all")


def test_an_account_in_a_script(here: Elsewhere, shell: Shell) -> None:
    """As the option of the command."""
    for line in ("#SBATCH --account=physics", "#SBATCH -A physics", "#GRIDWEAVE --account physics"):
        assert shell("submit", script(f"#!/bin/sh\n{line}\ntrue\n"))[0] == 0
    assert [request.account for request in handed_in(here)] == ["physics"] * 3


def test_exported_functions_go_with_a_script(
    here: Elsewhere, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bash exports them, though a plain shell starts the script."""
    monkeypatch.setenv("BASH_FUNC_greet%%", '() {  echo "hello $1"\n}')
    for export in ("ALL", "NONE"):
        assert shell("submit", script(f"#!/bin/bash\n#SBATCH --export={export}\ngreet world\n"))[0] == 0
    all_of_it, nothing = (run_rank(request, tmp_path / "rank") for request in handed_in(here))
    assert (all_of_it.returncode, all_of_it.stdout) == (0, "hello world\n")
    assert nothing.returncode == 127
    assert shell("submit", "--env", "a.b=c d", "-o", "/dev/stdout", "--", "env")[0] == 0
    assert "a.b=c d\n" in run_rank(handed_in(here)[2], tmp_path / "rank").stdout


def test_everything_wrong_in_a_script_is_told_at_once(here: Elsewhere, shell: Shell) -> None:
    """Each with its file and line, also what is only wrong once it is read."""
    lines = (
        "#SBATCH --partition=debug", "#SBATCH --time=0", "#SBATCH --output=%y.txt", "#SBATCH --array=5-1",
        "#GRIDWEAVE --time soon", "#SBATCH --exclusive", "#SBATCH --signal=NONE@5", "#SBATCH --open-mode=w",
    )  # fmt: skip
    status, out, err = shell("submit", script("#!/bin/sh\n" + "\n".join(lines) + "\ntrue\n"))
    assert (status, out) == (2, "")
    told = err.splitlines()
    assert [line.split(": ")[1] for line in told] == [f"job.sh:{number}" for number in range(2, 10)]
    assert "--time: '0' means no limit, and every job needs one" in told[1]
    assert "the pattern '%y' is not known" in told[2]
    assert "'5-1' of '5-1' are not indexes" in told[3]
    assert here.gateway.heard("/v1/jobs") == []


def test_patterns_that_are_not_known() -> None:
    """A pattern that Slurm knows and machines cannot tell is refused, and so is one with a width."""
    for pattern in ("%s", "%5j", "%u"):
        with pytest.raises(InputError, match="is not known; there are"):
            shipped(("x",), None, output=pattern, error=None, name="x")
