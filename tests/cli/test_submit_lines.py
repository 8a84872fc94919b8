"""`gridweave submit`: the lines of a script that are options, those of Slurm included, and mistakes in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.site.job import ArrayPlace, JobForm, JobRequest, Resources, TaskGroup
from gridweave.site.launch import LimitSignal
from support.commands import handed_in, run_rank, script
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]

HOUR_MS = 3_600_000


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
        ("#!/bin/sh\n#PBS -N sample\n#PBS -l nodes=2\n", ["2: #PBS -N sample: is ignored: it is for another", "3"]),
        ("#!/bin/sh\n#$ -pe mpi 8\n#BSUB -n 4\n", ["2: #$ -pe mpi 8: is ignored: it is for another", "3: #BSUB"]),
        ("#!/bin/sh\n  #SBATCH -N 3\n", ["2: #SBATCH -N 3: is ignored: it does not begin with exactly #SBATCH"]),
        ("#!/bin/sh\n#sbatch -N 3\n#SBATCH: -N 3\n", ["2: #sbatch -N 3: is ignored: it does not", "3: #SBATCH: "]),
        (
            "#!/bin/sh\ntrue\n\n#SBATCH -N 3\n",
            ["4: #SBATCH -N 3: is ignored: it comes after the script's first command"],
        ),
        ("#!/bin/sh\ntrue\n#GRIDWEAVE -n 3\n", ["3: #GRIDWEAVE -n 3: is ignored: it comes after the script's first"]),
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
        ("\ufeff#!/bin/sh\n#SBATCH -N 3\n", ":1: begins with a byte order mark, so its #! line"),
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
        ("#SBATCH --partition=debug", "job.sh:3: #SBATCH --partition: is not supported; use one of --account, --array"),
        ("#SBATCH -N 1 -p debug", "job.sh:3: #SBATCH -p: is not supported"),
        ("#SBATCH --tmp 4G -N 2", "job.sh:3: #SBATCH --tmp: is not supported"),
        ("#SBATCH --n 4", "job.sh:3: #SBATCH --n: is not supported"),
        ("#GRIDWEAVE --batch-option fast", "--batch-option: 'fast' is not an option; expected name=value, e.g."),
        ("#SBATCH -N 2-4", "job.sh:3: #SBATCH --nodes: '2-4' is not a number from 1 up; ranges"),
        ("#SBATCH -N", "job.sh:3: #SBATCH -N: has no value"),
        ("#SBATCH nodes=3", "job.sh:3: #SBATCH nodes=3: is not an option"),
        ("#SBATCH -t soon", "job.sh:3: #SBATCH --time: 'soon' is not a time; expected 90 (minutes)"),
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
            "'cpu=0.5': has no number of tasks (at least 1); write for example tasks=4",
        ),
        (["--task-group", "tasks=0"], "'tasks=0': has no number of tasks"),
        (
            ["--task-group", "tasks=2,memory=1.5"],
            "--task-group: memory is 1.5; expected a fraction of a node, above 0 and at most 1",
        ),
        (["--task-group", "tasks=2", "--cpu-need", "0.5"], "leave out --cpu-need, --memory-need and --resources"),
        (["--task-group", "tasks=2", "--resources", "cpu=1"], "leave out --cpu-need, --memory-need and --resources"),
        (
            ["-n", "3", "--task-group", "tasks=2"],
            "the groups have 2 tasks, but the job has 3 nodes; make them equal, or leave",
        ),
        (["--form", "wide=4"], "--form: 'wide=4': 'wide=4' is not understood; write for example width=4,on=sparc+x86"),
        (["--form", "width=4: "], "--form: 'width=4: ': no command after the colon; write for example width=4: ./so"),
        (["--form", "width=4: ./x 'a"], "the command cannot be read: No closing quotation"),
        (["--form", "width=4,width=5"], "'width=5' is not understood"),
        (["--form", "width=four"], "'four' is not valid for width; write for example"),
        (["--form", "speed=0"], "form 1 has speed 0; expected above 0 and at most 10000"),
        (
            ["-n", "2", "--form", "width=4"],
            "nodes is 2, but the widest form has width 4; give the same number, or omit",
        ),
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
    whole = "is ignored, because this grid gives out whole nodes"
    assert [line for line in err.splitlines() if "warning" in line] == [
        "warning: job.sh:2: #SBATCH -p: is not supported, and ignored",
        f"warning: job.sh:3: #SBATCH --mem: {whole}",
        f"warning: job.sh:4: #SBATCH --gres: {whole}",
    ]
    (request,) = handed_in(here)
    assert (request.nodes, request.limit_ms) == (2, 300_000)


@pytest.mark.parametrize(
    ("lines", "checkpoint", "ahead"),
    [
        ("#SBATCH --signal=B:USR1@10", "USR1", LimitSignal("USR1", 10_000, "rank")),
        ("#SBATCH --signal=USR2", "USR2", LimitSignal("USR2", 60_000, "below")),
        ("#SBATCH --signal=USR2\n# without srun", "USR2", LimitSignal("USR2", 60_000, "below")),
        ("#SBATCH --signal=USR2\nsrun solver", "USR2", LimitSignal("USR2", 60_000, "steps")),
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


def test_a_remark_says_who_gets_the_signal_of_a_script_without_srun(here: Elsewhere, shell: Shell) -> None:
    said = "the programs that it starts get the signal, and the script does not; give B:USR1@10"
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


def test_all_problems_of_a_line_are_reported_at_once(here: Elsewhere, shell: Shell) -> None:
    """Of a #GRIDWEAVE line as of the command line."""
    status, _, err = shell("submit", script("#!/bin/sh\n#GRIDWEAVE --time soon --array 5-1\ntrue\n"))
    first, second = err.splitlines()
    assert status == 2
    assert "job.sh:2: --time: 'soon' is not a time" in first
    assert "job.sh:2: --array: '5-1' of '5-1' are not indexes" in second
    status, _, err = shell("submit", "--time", "soon", "--ranks", "all", "--", "true")
    assert (status, [line.split(": ")[1] for line in err.splitlines()]) == (2, ["--time", "--ranks"])
    assert handed_in(here) == []


def test_everything_wrong_in_a_script_is_told_at_once(here: Elsewhere, shell: Shell) -> None:
    """Each with its file and line, also what is only wrong once it is read."""
    lines = (
        "#SBATCH --partition=debug", "#SBATCH --time=0", "#SBATCH --output=%y.txt", "#SBATCH --array=5-1",
        "#GRIDWEAVE --time soon", "#SBATCH --tmp=4G", "#SBATCH --signal=NONE@5", "#SBATCH --open-mode=w",
    )  # fmt: skip
    status, out, err = shell("submit", script("#!/bin/sh\n" + "\n".join(lines) + "\ntrue\n"))
    assert (status, out) == (2, "")
    told = err.splitlines()
    assert [line.split(": ")[1] for line in told] == [f"job.sh:{number}" for number in range(2, 10)]
    assert "--time: '0' means no limit, but every job needs one" in told[1]
    assert "the pattern '%y' is not known" in told[2]
    assert "'5-1' of '5-1' are not indexes" in told[3]
    assert here.gateway.heard("/v1/jobs") == []
