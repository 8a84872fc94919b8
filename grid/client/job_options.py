"""All options of a job, each defined in one place.

`JobOptions` and `SubmitOptions` list all options, with an `Option` for each. Everything else is derived from them: the
options of ``gridweave submit`` and ``gridweave quote``, the lines ``#GRIDWEAVE`` and ``#SBATCH`` of a script, the
keyword arguments of `Client.submit`, the names in error messages, and docs/options.md. To add an option, add an entry
here and the code that acts on its value.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

from gridweave.grid.client import option_texts as texts
from gridweave.grid.client.arguments import Afters
from gridweave.grid.client.option import Option, Sbatch
from gridweave.site.job import ArrayPlace, JobForm, Resources, TaskGroup, Where
from gridweave.site.needs.text import parse_resources
from gridweave.site.resources.text import parse_gres

IfLost = Literal["requeue", "fail"]
"""What to do with a job if one of its machines fails."""

OpenMode = Literal["append", "truncate"]
"""What to do with an output file that already exists."""

Limit = str | datetime.timedelta
"""A wall time limit, as text (``10m``) or as a timedelta."""

Needs = Resources | str
"""A job's resource needs on shared nodes, as a struct or as text such as ``cpu=0.6``; empty text means unspecified."""

DEFAULT_LIMIT = "1h"


def _requeue(_name: str, requeue: Any) -> IfLost:
    return "requeue" if requeue else "fail"


def _stream(name: str, letter: str, text: str) -> Option:
    """Return the option that sets the file of a standard stream; the option has the same name in Slurm."""
    slurm = Sbatch(names=(name, letter), note="see [cli.md](cli.md#input-and-output)")
    return Option(flags=(f"--{name}", f"-{letter}"), metavar="FILE", help=text, sbatch=(slurm,))


def _data(flag: str, text: str) -> Option:
    """Return an option for data that a job moves between sites."""
    return Option(flags=(flag,), metavar="SITE:SIZE", help=text, parse=texts.checked_data, quoted=True)


def _slurm(names: tuple[str, ...], value: type, note: str, parse: Callable[[str, str], Any] | None = None) -> Option:
    """Return an option of ``#SBATCH`` lines that has no direct equivalent (`gridweave.grid.client.slurm_sizes`)."""
    return Option(value=value, help="A size in Slurm's terms.", sbatch=(Sbatch(names=names, parse=parse, note=note),))


class JobOptions(TypedDict, total=False):
    """The options of a job, as keyword arguments of `Client.submit`; absent options have their defaults.

    Values are checked when the job is submitted. Numbers may be numpy numbers, and text may be a path.
    """

    nodes: Annotated[
        int,
        Option(
            flags=("--nodes", "-n"),
            value=int,
            least=1,
            metavar="N",
            help="Number of nodes or, with --cores and the like, of chunks: parts of nodes, all alike.",
            default="1",
            field="nodes",
            quoted=True,
        ),
    ]
    cores: Annotated[
        int,
        Option(
            flags=("--cores",),
            value=int,
            least=1,
            metavar="C",
            help="Cores of each chunk.",
            default="whole nodes, or 1 with another resource",
            field="cores",
            quoted=True,
        ),
    ]
    memory: Annotated[
        str,
        Option(
            flags=("--memory",),
            metavar="SIZE",
            help="Memory of each chunk, e.g. 8GB.",
            parse=texts.checked_memory,
            field="memory_mb",
            quoted=True,
        ),
    ]
    gpus: Annotated[
        int | str,
        Option(
            flags=("--gpus",),
            metavar="[TYPE:]G",
            help="GPUs of each chunk, e.g. 1 or a100:1.",
            parse=texts.checked_gpus,
            field="gpus",
            quoted=True,
        ),
    ]
    gres: Annotated[
        Mapping[str, int],
        Option(
            flags=("--gres",),
            many=dict,
            metavar="NAME:N",
            help="Other countable resource of each chunk, e.g. fpga:2. Repeatable.",
            parse=parse_gres,
            field="others",
            quoted=True,
        ),
    ]
    labels: Annotated[
        str | Iterable[str],
        Option(
            flags=("--label",),
            many=tuple,
            metavar="NAME",
            help="Label, or kind, that the job's nodes must have. Repeatable.",
            field="labels",
            quoted=True,
        ),
    ]
    exclusive: Annotated[
        bool,
        Option(
            flags=("--exclusive/--no-exclusive",),
            value=bool,
            help="Run no other job on the job's nodes; always so for whole nodes.",
            sbatch=(Sbatch(names=("exclusive",), value=True),),
            field="exclusive",
            quoted=True,
        ),
    ]
    per_node: Annotated[
        int,
        Option(
            flags=("--per-node",),
            value=int,
            least=1,
            metavar="K",
            help="Exact number of chunks on each of the job's nodes; -n must be a multiple of it.",
            default="any",
            field="per_node",
            quoted=True,
        ),
    ]
    limit: Annotated[
        Limit,
        Option(
            flags=("--time", "-t"),
            metavar="TIME",
            help="Wall time limit, e.g. 10m or 2-00:00:00.",
            default=DEFAULT_LIMIT,
            parse=texts.parse_limit,
            sbatch=(
                Sbatch(
                    names=("time", "t"),
                    parse=texts.parse_limit_of_slurm,
                    note="all formats of Slurm; a bare number is minutes; 0 and `UNLIMITED` are refused, because every "
                    "job needs a limit",
                ),
            ),
            field="limit_ms",
            quoted=True,
        ),
    ]
    name: Annotated[
        str,
        Option(
            flags=("--name", "-J"),
            metavar="NAME",
            help="Name of the job.",
            default="that of the command or script",
            sbatch=(Sbatch(names=("job-name", "J")),),
            field="name",
        ),
    ]
    environment: Annotated[
        Mapping[str, object] | None,
        Option(
            flags=("--env",),
            many=dict,
            metavar="NAME=VALUE",
            help="Set an environment variable; NAME alone copies its value from here. Repeatable.",
            parse=texts.parse_variable,
            field="environment",
        ),
    ]
    working_directory: Annotated[
        str | Path | None,
        Option(
            flags=("--chdir", "-D"),
            metavar="PATH",
            help="Working directory on the machines.",
            sbatch=(
                Sbatch(
                    names=("chdir", "D"),
                    note="a path on the machines, absolute unless they share the folder here",
                ),
            ),
            field="working_directory",
        ),
    ]
    ranks: Annotated[
        Where,
        Option(
            flags=("--ranks",),
            metavar="WHERE",
            help="Where to start processes: each-node (one per node) or first-node (only one, as for scripts).",
            choices=get_args(Where),
            field="ranks",
        ),
    ]
    if_lost: Annotated[
        IfLost,
        Option(
            flags=("--requeue/--no-requeue",),
            value=bool,
            help="Run the job again if its machine fails, or when it is requeued.",
            parse=_requeue,
            sbatch=(Sbatch(names=("requeue",), value="requeue"), Sbatch(names=("no-requeue",), value="fail")),
            field="if_lost",
        ),
    ]
    hold: Annotated[
        bool,
        Option(
            flags=("--hold/--no-hold",),
            value=bool,
            help="Hold the job until `gridweave release`.",
            sbatch=(Sbatch(names=("hold", "H"), value=True),),
            field="hold",
        ),
    ]
    after: Annotated[Afters, Option(help="Jobs to wait for until they have finished, or as an After says.")]
    array: Annotated[ArrayPlace | None, Option(help="The job's place in an array of jobs.")]
    priority: Annotated[
        float,
        Option(
            flags=("--priority",),
            value=float,
            metavar="X",
            help="Priority, for sites that order their queue by it.",
            field="priority",
        ),
    ]
    job_class: Annotated[
        str,
        Option(
            flags=("--job-class",),
            metavar="NAME",
            help="Class of the job, for `gridweave experience`.",
            field="job_class",
        ),
    ]
    user: Annotated[
        str,
        Option(flags=("--user",), metavar="NAME", help="Submit for another user (operators only).", field="user"),
    ]
    account: Annotated[
        str,
        Option(
            flags=("--account", "-A"),
            metavar="NAME",
            help="Account whose node-hours the job uses.",
            sbatch=(Sbatch(names=("account", "A")),),
            field="account",
        ),
    ]
    forms: Annotated[
        JobForm | Iterable[JobForm],
        Option(
            flags=("--form",),
            many=tuple,
            metavar="FORM",
            help="Form in which the job can run, if machines differ, e.g. width=4,on=x86,speed=3; its own command "
            "follows a colon. Repeatable.",
            parse=texts.parse_form,
            field="forms",
        ),
    ]
    resources: Annotated[
        Needs,
        Option(
            flags=("--resources",),
            metavar="PARTS",
            help="Let the job share nodes: the fractions of its run time that it uses CPU, network and disk, and of a "
            "node's memory, e.g. cpu=0.6,network=0.3,disk=0.1,memory=0.5.",
            default="those of its class",
            parse=parse_resources,
            field="resources",
            quoted=True,
        ),
    ]
    communication: Annotated[
        str,
        Option(
            flags=("--communication",),
            metavar="PROFILE",
            help="Communication between nodes: none, light, nearest-neighbour, ring, all-to-all, master-workers, "
            "or fraction=0.2,pattern=all-to-all,message=1MB.",
            default="the grid's",
            field="traffic",
            quoted=True,
        ),
    ]
    input_data: Annotated[
        str, _data("--input-data", "Site and size of the data that the job reads at its start, e.g. alpha:20GB.")
    ]
    output_data: Annotated[
        str, _data("--output-data", "Site and size of the data that the job writes at its end, e.g. beta:500MB.")
    ]


class SubmitOptions(JobOptions, total=False):
    """Additional options of ``gridweave submit``, which can also be set by option lines in a script."""

    site: Annotated[
        str,
        Option(
            flags=("--site",),
            metavar="SITE",
            help="Submit directly to this site, as one of its own users.",
            is_site=True,
        ),
    ]
    key: Annotated[
        str,
        Option(
            flags=("--key",),
            metavar="TEXT",
            help="Idempotency key: submitting the same key again gives the same job.",
        ),
    ]
    input: Annotated[
        str, _stream("input", "i", "Read standard input from this file, on the machines or on this computer.")
    ]
    output: Annotated[str, _stream("output", "o", "Write standard output to this file on the machines.")]
    error: Annotated[str, _stream("error", "e", "Write standard error to this file on the machines.")]
    open_mode: Annotated[
        OpenMode,
        Option(
            flags=("--open-mode",),
            metavar="append|truncate",
            help="What to do with output files that exist.",
            default="a job that runs again appends",
            choices=get_args(OpenMode),
            sbatch=(
                Sbatch(
                    names=("open-mode",),
                    note="`append` or `truncate`; without it a job that runs again adds to its output files, so that "
                    "all attempts can be read",
                ),
            ),
        ),
    ]
    after_jobs: Annotated[
        tuple[texts.AfterJobs, ...],
        Option(
            flags=("--after",),
            many=tuple,
            metavar="JOB[:STATE]",
            help="Wait until these jobs have finished (or started, ended, failed). Repeatable.",
            parse=texts.parse_after,
            sbatch=(
                Sbatch(
                    names=("dependency", "d"),
                    parse=texts.parse_dependency,
                    note="`after`, `afterany`, `afterok`, `afternotok`, with commas; not `singleton`, `?` and `+time`",
                ),
            ),
            field="after",
        ),
    ]
    indexes: Annotated[
        texts.ArrayIndexes,
        Option(
            flags=("--array", "-a"),
            metavar="1-100%10",
            help="Submit an array: one job per index, at most 10 running at once.",
            parse=texts.parse_array,
            sbatch=(Sbatch(names=("array", "a")),),
            field="array",
        ),
    ]
    pack: Annotated[
        bool,
        Option(
            flags=("--pack",),
            value=bool,
            help="Run several array tasks in one job, one after another; meant for short tasks.",
        ),
    ]
    pack_size: Annotated[
        int,
        Option(
            flags=("--pack-size",),
            value=int,
            least=1,
            most=10_000,
            metavar="N",
            help="With --pack: number of array tasks in one job.",
            default="depends on the nodes",
        ),
    ]
    checkpoint_signal: Annotated[
        texts.CheckpointSignal,
        Option(
            flags=("--checkpoint-signal",),
            metavar="SIGNAL[@SECONDS]",
            help="Signal on which the job saves its work and exits, and the seconds it has for that; it resumes later.",
            parse=texts.parse_checkpoint_signal,
            field="grace_ms",
        ),
    ]
    signal: Annotated[
        texts.SignalAhead,
        Option(
            flags=("--signal",),
            metavar="[B:]SIGNAL[@SECONDS]",
            help="Signal to send before the limit, e.g. USR1@90 for 90 s before it. It goes to the script's srun steps "
            "or, without srun, to the programs that it starts; with B: only to the script.",
            parse=texts.parse_signal_ahead,
            sbatch=(
                Sbatch(
                    names=("signal",),
                    note="`USR1@60`: sent 60 s before the limit, as in Slurm to the steps that the script has started "
                    "with `srun`, with `B:` only to the script. A script in which `srun` does not occur has no steps: "
                    "the programs that it starts get the signal (in Slurm nothing does), and the script itself does "
                    "not; one that ends in `exec PROGRAM` needs `B:`. A command without a script gets it in all its "
                    "processes. Unless `--no-requeue` is set, the job also gets it "
                    "as the signal to save its work and exit when it is evicted",
                ),
            ),
            field="limit_signal",
        ),
    ]
    cpu_need: Annotated[
        float,
        Option(
            flags=("--cpu-need",),
            value=float,
            metavar="X",
            help="Fraction of a node's CPU that a task needs to run at full speed, e.g. 0.25.",
        ),
    ]
    memory_need: Annotated[
        float,
        Option(
            flags=("--memory-need",),
            value=float,
            metavar="X",
            help="Fraction of a node's memory that a task needs, e.g. 0.1.",
        ),
    ]
    task_groups: Annotated[
        tuple[TaskGroup, ...],
        Option(
            flags=("--task-group",),
            many=tuple,
            metavar="GROUP",
            help="Group of identical tasks, if the tasks of a job differ, e.g. tasks=4,cpu=0.25,memory=0.1. "
            "Repeatable, lowest ranks first.",
            parse=texts.parse_task_group,
        ),
    ]
    batch_options: Annotated[
        tuple[str, ...],
        Option(
            flags=("--batch-option",),
            many=tuple,
            metavar="NAME=VALUE",
            help="Option to pass on to the site's batch system, e.g. constraint=fast. Repeatable.",
            field="batch_options",
        ),
    ]
    slurm_nodes: Annotated[
        int,
        _slurm(
            ("nodes", "N"),
            int,
            "a number; ranges are not supported. Alone, the job gets whole nodes; with options below, its tasks are "
            "divided evenly among the nodes",
        ),
    ]
    tasks: Annotated[
        int,
        _slurm(
            ("ntasks", "n"),
            int,
            "chunks of one core or, with options below, of more. A grid of whole nodes gives as many nodes, unless "
            "`--nodes` is set",
        ),
    ]
    tasks_per_node: Annotated[int, _slurm(("ntasks-per-node",), int, "with `--ntasks` and without `--nodes`: at most")]
    cpus_per_task: Annotated[int, _slurm(("cpus-per-task", "c"), int, "cores of each task")]
    slurm_memory: Annotated[
        str, _slurm(("mem",), str, "of each node, e.g. `8G` (GiB) or `4096` (MiB); needs `--nodes` or the like")
    ]
    slurm_memory_per_cpu: Annotated[str, _slurm(("mem-per-cpu",), str, "of each core, e.g. `2G`")]
    slurm_gpus: Annotated[str, _slurm(("gpus", "G"), str, "of the whole job, e.g. `4` or `a100:4`", texts.checked_gpus)]
    slurm_gpus_per_node: Annotated[str, _slurm(("gpus-per-node",), str, "as `--gres=gpu`", texts.checked_gpus)]
    slurm_gpus_per_task: Annotated[str, _slurm(("gpus-per-task",), str, "of each task", texts.checked_gpus)]
    slurm_gres: Annotated[
        str, _slurm(("gres",), str, "of each node, e.g. `gpu:a100:4,fpga:1`; needs `--nodes` or the like")
    ]
    constraint: Annotated[str, _slurm(("constraint", "C"), str, "labels, joined by `&`")]
    slurm_variables: Annotated[Mapping[str, str], Option(help="Slurm's variables for the size of the job.")]
    exported: Annotated[
        texts.Exported,
        Option(
            help="Environment variables to send with the job.",
            sbatch=(
                Sbatch(
                    names=("export",),
                    parse=texts.parse_export,
                    note="`NONE` (the default), `A=B`, `A` (copies its value from here), `ALL`: everything that is set "
                    "here, functions that bash exports included, except what belongs to this machine (`PATH`, `HOME`, "
                    "`LD_*`, `SSH_*`, `GRIDWEAVE_*`, ...)",
                ),
            ),
        ),
    ]
