"""`gridweave submit`: scripts that go with their jobs, and the files that these read and write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.grid.client.configuration import Connection
from gridweave.grid.client.scripts import MOST_BYTES, shipped, shipped_name
from gridweave.site.job import JobRequest, Program
from gridweave.site.machine.folders import error_path
from support.commands import OF_ITS_OWN, handed_in, run_rank, script
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]


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
        "--output slurm-%j.out: without --chdir the grid keeps this output; read it with: gridweave logs"
    )
    assert run_rank(handed_in(here)[0], tmp_path / "rank").stdout == "out\n"


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
