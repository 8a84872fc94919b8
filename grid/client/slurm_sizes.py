"""Convert the sizes in ``#SBATCH`` lines, given per job, node, task or core, to identical chunks.

Slurm counts tasks; gridweave counts chunks. A chunk is a task, or everything that the job gets on one node if the
amounts per node cannot be divided evenly among its tasks (docs/options.md, "In `#SBATCH` lines").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from gridweave.errors import OptionError, ProblemsError
from gridweave.grid.client.job_options import SubmitOptions
from gridweave.site.resources.text import MB, is_name, parse_gpus, parse_gres

PARTS = (
    *("tasks", "tasks_per_node", "cpus_per_task", "slurm_memory", "slurm_memory_per_cpu"),
    *("slurm_gpus", "slurm_gpus_per_node", "slurm_gpus_per_task", "slurm_gres"),
)
"""The options that ask for parts of nodes."""

PASSED_ON = {
    "constraint": "constraint",
    "slurm_gres": "gres",
    "slurm_memory": "mem",
    "slurm_memory_per_cpu": "mem-per-cpu",
}
"""The options that a grid of whole nodes leaves to sites with a batch system, by key, and their names there."""

_KEYS = {"slurm_nodes", "constraint", *PARTS}
_COUNTED = {"slurm_nodes", "tasks"}
_BYTES = re.compile(r"(\d{1,12})([KMGT]?)B?", re.ASCII | re.IGNORECASE)


class Layout(NamedTuple):
    """How the tasks of a job are spread.

    Attributes
    ----------
    tasks : int
        Number of tasks.
    per_node : int
        Number of tasks on each node; 0: any number.
    """

    tasks: int
    per_node: int

    @property
    def nodes(self) -> int | None:
        """The number of nodes, or None if it is not fixed."""
        return self.tasks // self.per_node if self.per_node else None


class Amounts(NamedTuple):
    """The resources that a job requests per task or per node."""

    cores: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def times(self, count: int) -> Amounts:
        """Return the amounts for several tasks."""
        others = tuple((name, amount * count) for name, amount in self.others)
        return Amounts(self.cores * count, self.memory_bytes * count, self.gpus * count, others)

    def divided(self, count: int) -> Amounts | None:
        """Return each task's share of the amounts; None if they cannot be divided evenly (memory: in whole MB)."""
        memory_bytes = -(-self.memory_bytes // count)
        whole = [self.gpus, *(amount for _, amount in self.others)]
        if any(amount % count for amount in whole) or _mb(memory_bytes) * count != _mb(self.memory_bytes):
            return None
        return Amounts(0, memory_bytes, self.gpus // count, tuple((name, n // count) for name, n in self.others))

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum of two amounts; no other resource may occur in both."""
        memory_bytes = self.memory_bytes + other.memory_bytes
        others = tuple(sorted(self.others + other.others))
        return Amounts(self.cores + other.cores, memory_bytes, self.gpus + other.gpus, others)


def _mb(memory_bytes: int) -> int:
    return math.ceil(memory_bytes / MB)


def asks_for_parts(options: SubmitOptions) -> bool:
    """Whether the meaning of the ``#SBATCH`` lines depends on whether the grid counts cores, memory and GPUs."""
    return any(key in options for key in (*PARTS, "constraint"))


def in_chunks(options: SubmitOptions) -> SubmitOptions:
    """Return options in which the sizes of ``#SBATCH`` lines are replaced by chunks, for a grid that counts resources.

    Gridweave's own options, such as ``cores``, override the ``#SBATCH`` lines. Raise ProblemsError with an
    `OptionError` for each size that identical chunks cannot express.

    Examples
    --------
    >>> in_chunks({"tasks": 8, "cpus_per_task": 4, "slurm_gpus_per_task": "1"})["nodes"]
    8
    """
    problems: list[OptionError] = []
    derived: dict[str, Any] = {"labels": _labels(options, problems)} if "constraint" in options else {}
    if not _is_whole(options):
        derived |= _chunk(options, problems)
    elif "slurm_nodes" in options:
        derived["nodes"] = options["slurm_nodes"]
    if problems:
        raise ProblemsError(problems)
    whole_nodes = options.get("nodes", derived.get("nodes", 1))
    derived["slurm_variables"] = _variables(options, derived.pop("fixed_nodes", whole_nodes))
    return _without_sizes(options, derived)


def in_whole_nodes(options: SubmitOptions, ignored: list[str] | None) -> SubmitOptions:
    """Return options in which the sizes of ``#SBATCH`` lines are replaced by a number of whole nodes.

    Options that a batch system may know are passed on to it. ``ignored`` gets the keys of options that have no effect.
    Without this list, raise ProblemsError with an `OptionError` for each option that asks for parts of nodes.
    """
    lost = [key for key in _KEYS - _COUNTED if key in options and (ignored is not None or key not in PASSED_ON)]
    if ignored is None and lost:
        why = "asks for parts of nodes, and this grid gives out whole nodes; leave it out, or submit without it: "
        raise ProblemsError([OptionError(key, f"{why}--ignore-unsupported") for key in sorted(lost)])
    if ignored is not None:
        ignored += sorted(lost)
    nodes = options.get("slurm_nodes", options.get("tasks"))
    derived: dict[str, Any] = {} if nodes is None else {"nodes": nodes}
    passed = [f"{name}={options[key]}" for key, name in PASSED_ON.items() if key in options and key not in lost]  # type: ignore[literal-required]
    if passed:
        derived["batch_options"] = (*passed, *options.get("batch_options", ()))
        options = SubmitOptions(**options)
        options.pop("batch_options", None)
    derived["slurm_variables"] = _variables(options, options.get("nodes", nodes or 1))
    return _without_sizes(options, derived)


def _without_sizes(options: SubmitOptions, derived: dict[str, Any]) -> SubmitOptions:
    own = {key: value for key, value in options.items() if key not in _KEYS}
    return cast("SubmitOptions", derived | own)


def _is_whole(options: SubmitOptions) -> bool:
    """Whether the lines ask for whole nodes: only a number of nodes, or tasks that do not divide evenly among them."""
    parts = {key for key in PARTS if key in options}
    uneven = "slurm_nodes" in options and options.get("tasks", 0) % options["slurm_nodes"] > 0
    return not parts or (parts == {"tasks"} and uneven and options["tasks"] > options["slurm_nodes"])


def _chunk(options: SubmitOptions, problems: list[OptionError]) -> dict[str, Any]:
    """Return gridweave's own options for the number of chunks and the resources of each chunk."""
    layout = _layout(options, problems)
    gpu_types: set[str] = set()
    task, node = _amounts(options, layout, gpu_types, problems)
    count, chunk = layout.per_node, node and node.divided(layout.per_node or 1)
    width, per_node = layout.tasks, count
    if chunk is not None:
        chunk = task.plus(chunk)
    elif node is None or not count:
        chunk = task
    else:
        chunk, width, per_node = task.times(count).plus(node), layout.tasks // count, 1
    derived: dict[str, Any] = {"nodes": width, "cores": chunk.cores}
    if chunk.memory_bytes:
        derived["memory"] = f"{_mb(chunk.memory_bytes)}MB"
    if chunk.gpus:
        derived["gpus"] = ":".join([*gpu_types, str(chunk.gpus)])
    if chunk.others:
        derived["gres"] = dict(chunk.others)
    is_fixed = node is not None or "slurm_nodes" in options or "tasks_per_node" in options
    if is_fixed and per_node:
        derived["per_node"] = per_node
    return derived | {"fixed_nodes": layout.nodes if is_fixed else None}


def _layout(options: SubmitOptions, problems: list[OptionError]) -> Layout:
    nodes, tasks, per_node = options.get("slurm_nodes"), options.get("tasks"), options.get("tasks_per_node")
    if tasks is None:
        return Layout((nodes or 1) * (per_node or 1), per_node or 1)
    if nodes is not None:
        # Slurm, too, leaves nodes without a task out.
        nodes = min(nodes, tasks)
        if tasks % nodes:
            problems.append(OptionError("tasks", f"{tasks} tasks do not divide evenly among {nodes} nodes"))
        elif per_node is not None and tasks // nodes > per_node:
            right = f"expected at least {tasks // nodes} for {tasks} tasks on {nodes} nodes"
            problems.append(OptionError("tasks_per_node", f"is {per_node}; {right}"))
        return Layout(tasks, tasks // nodes)
    if per_node is not None:
        per_node = min(per_node, tasks)
        if tasks % per_node:
            problems.append(OptionError("tasks_per_node", f"is {per_node}; expected a divisor of {tasks} tasks"))
        return Layout(tasks, per_node)
    return Layout(tasks, 1 if tasks == 1 else 0)


def _amounts(
    options: SubmitOptions, layout: Layout, gpu_types: set[str], problems: list[OptionError]
) -> tuple[Amounts, Amounts | None]:
    """Return the amounts for each task and the amounts for each node; None if the job asks for nothing per node."""
    cores = options.get("cpus_per_task", 1)
    per_cpu = _memory(options, "slurm_memory_per_cpu", problems)
    task_gpus, node_gpus = _gpus(options, layout, gpu_types, problems)
    task = Amounts(cores, cores * per_cpu, task_gpus)
    others = _others(options, problems)
    memory_bytes = _memory(options, "slurm_memory", problems)
    if memory_bytes and per_cpu:
        problems.append(OptionError("slurm_memory", "is given together with --mem-per-cpu; leave one of them out"))
    node = Amounts(0, memory_bytes, node_gpus, others)
    if node == Amounts():
        return task, None
    if not layout.per_node:
        keys = ("slurm_memory", "slurm_gpus_per_node", "slurm_gres")
        why = "is per node, and the number of tasks per node is open; give --nodes or --ntasks-per-node, too"
        problems += [OptionError(key, why) for key in keys if key in options]
    return task, node


def _memory(options: SubmitOptions, key: str, problems: list[OptionError]) -> int:
    """Return a size of memory in bytes; without a unit it is in MiB, as in Slurm."""
    text = cast("dict[str, Any]", options).get(key)
    if text is None or (text == "0" and options.get("exclusive")):
        return 0
    match = _BYTES.fullmatch(text)
    if match is None or not int(match[1]):
        right = "write for example 8G; for all memory of a node add --exclusive"
        problems.append(OptionError(key, f"{text!r} is not a size of memory; {right}"))
        return 0
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or "M"))


_GPU_KEYS = ("slurm_gpus_per_task", "slurm_gpus", "slurm_gpus_per_node")


def _gpus(options: SubmitOptions, layout: Layout, gpu_types: set[str], problems: list[OptionError]) -> tuple[int, int]:
    """Return the GPUs per task and per node, of which at least one is 0; add the type of the GPUs to ``gpu_types``."""
    derived = [(key, cast("dict[str, Any]", options)[key]) for key in _GPU_KEYS if key in options]
    derived += [("slurm_gres", text) for name, text in _gres_parts(options) if name == "gpu"]
    if len(derived) > 1:
        names = "--gpus, --gpus-per-node, --gpus-per-task and --gres=gpu"
        problems.append(OptionError(derived[-1][0], f"asks for GPUs a second time; give only one of {names}"))
    if not derived:
        return 0, 0
    key, text = derived[0]
    try:
        number, gpu_type = parse_gpus(key, text)
    except OptionError as error:
        problems.append(error)
        return 0, 0
    gpu_types |= {gpu_type} - {""}
    if key == "slurm_gpus_per_task":
        return number, 0
    if key != "slurm_gpus":
        return 0, number
    if number % layout.tasks == 0:
        return number // layout.tasks, 0
    if layout.nodes is not None and number % layout.nodes == 0:
        return 0, number // layout.nodes
    problems.append(OptionError(key, f"{number} GPUs do not divide evenly among the {layout.tasks} tasks of the job"))
    return 0, 0


def _gres_parts(options: SubmitOptions) -> Iterator[tuple[str, str]]:
    """Yield the resources in ``--gres``, each with its number; for GPUs with their type, such as ``a100:2``."""
    for part in options.get("slurm_gres", "none").split(","):
        name, _, rest = part.strip().partition(":")
        if name != "none":
            yield name, rest if rest.rpartition(":")[2].isdecimal() else f"{rest}:1".removeprefix(":")


def _others(options: SubmitOptions, problems: list[OptionError]) -> tuple[tuple[str, int], ...]:
    derived: dict[str, int] = {}
    for name, number in _gres_parts(options):
        if name != "gpu":
            try:
                derived |= [parse_gres("slurm_gres", f"{name}:{number}")]
            except OptionError as error:
                problems.append(error)
    return tuple(sorted(derived.items()))


def _labels(options: SubmitOptions, problems: list[OptionError]) -> tuple[str, ...]:
    labels = tuple(sorted({label.strip() for label in options["constraint"].split("&")}))
    if not all(map(is_name, labels)):
        right = "expected labels joined by &, e.g. ib&ssd"
        problems.append(OptionError("constraint", f"{options['constraint']!r} is not supported; {right}"))
    return labels


def _variables(options: SubmitOptions, nodes: int | None) -> dict[str, str]:
    """Return the variables that Slurm sets in a job; without the number of nodes if it is not fixed."""
    per_cpu, per_node = (_memory(options, key, []) >> 20 for key in ("slurm_memory_per_cpu", "slurm_memory"))
    tasks = options.get("tasks", (nodes or 1) * options.get("tasks_per_node", 1))
    derived = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NTASKS_PER_NODE": options.get("tasks_per_node"),
        "SLURM_CPUS_PER_TASK": options.get("cpus_per_task"),
        "SLURM_MEM_PER_CPU": per_cpu or None,
        "SLURM_MEM_PER_NODE": per_node or None,
    }
    return {name: str(value) for name, value in derived.items() if value is not None}
