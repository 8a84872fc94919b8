"""The resources of a Slurm cluster's nodes, in total and free. Pure; used for both `sinfo` and slurmrestd."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.resources.chunks import NodeKind, capacity_of, columns_of
from gridweave.site.resources.groups import NodeGroup

NODES_FORMAT = "NodeList:|,StateLong:|,CPUsState:|,Memory:|,AllocMem:|,Gres:|,GresUsed:|,Features:|"
"""Options of ``sinfo --Node --Format`` that print one line per node; each field ends with a bar."""

UNKNOWN_MS = -1
"""`NodeGroup.idle_from_ms` of nodes with a job whose end is unknown."""

_MIB, _MB = 1 << 20, 10**6

_USABLE = ("idle", "planned", "mixed", "allocated")

BUSY = {"completing", "reserved", "powering_down", "power_down", "blocked"}
"""Flags of nodes that are up, but start no jobs now."""

_SCALES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as Slurm reports it.

    Attributes
    ----------
    name : str
    words : tuple of str
        Its state: the base state, followed by any flags.
    cpus, used_cpus : int
        Slurm's CPUs, i.e. cores, or hardware threads where Slurm counts these.
    memory_mib, used_memory_mib : int
    gres, used_gres : str
        Generic resources in Slurm's form, e.g. ``gpu:a100:4(S:0-1)``.
    features : tuple of str
    """

    name: str
    words: tuple[str, ...]
    cpus: int
    used_cpus: int
    memory_mib: int
    used_memory_mib: int
    gres: str
    used_gres: str
    features: tuple[str, ...]

    @property
    def kind(self) -> NodeKind:
        """The kind of the node. If the node has several types of GPU, only the most frequent type counts."""
        gres = read_gres(self.gres)
        types = [(-count, of_type) for (name, of_type), count in gres.items() if name == "gpu"]
        negative, gpu_type = min(types, default=(0, ""))
        return NodeKind(
            name="",
            count=1,
            cores=max(1, self.cpus),
            memory_mb=self.memory_mib * _MIB // _MB,
            gpus=-negative,
            gpu_type=gpu_type,
            others=tuple(sorted(_others(gres).items())),
            labels=tuple(sorted(self.features)),
        )

    def free(self, kind: NodeKind, columns: Sequence[str]) -> tuple[int, ...]:
        """Return the free amounts of these resources on the node."""
        used = read_gres(self.used_gres)
        amounts = {
            "cores": self.used_cpus,
            "memory_mb": -(-self.used_memory_mib * _MIB // _MB),
            "gpus": used.get(("gpu", kind.gpu_type), 0),
            **_others(used),
        }
        pairs = zip(capacity_of(kind, columns), columns, strict=True)
        return tuple(max(0, there - amounts.get(column, 0)) for there, column in pairs)


def read_nodes(text: str) -> tuple[NodeDetails, ...]:
    """Parse the output of ``sinfo`` in `NODES_FORMAT`; raise UnavailableError if a line has another format.

    Examples
    --------
    >>> read_nodes("g1|mixed|6/2/0/8|8000|600|gpu:a100:4,fpga:2|gpu:a100:4(IDX:0-3),fpga:0|ib,fast|")[0].kind.gpus
    4
    """
    nodes = []
    for line in filter(str.strip, text.splitlines()):
        fields = [field.strip() for field in line.split("|")]
        cpus = fields[2].split("/") if len(fields) == 9 else []
        if len(cpus) != 4 or not all(number.isdecimal() for number in (*cpus, *fields[3:5])):
            raise UnavailableError(f"a line of sinfo cannot be parsed: {line!r:.100}")
        nodes.append(
            NodeDetails(
                name=fields[0],
                words=tuple(state_words(fields[1])),
                cpus=int(cpus[3]),
                used_cpus=int(cpus[0]),
                memory_mib=int(fields[3]),
                used_memory_mib=int(fields[4]),
                gres=fields[5],
                used_gres=fields[6],
                features=read_features(fields[7]),
            )
        )
    return tuple(nodes)


_MARKS = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "%": "powering_down", "!": "power_down",
    "$": "maintenance", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
"""Maps the suffixes that ``sinfo`` appends to a node's state to slurmrestd's flags."""


def state_words(text: str) -> list[str]:
    """Split a state printed by ``sinfo`` into the base state and its flags.

    Examples
    --------
    >>> state_words("idle*"), state_words("mixed")
    (['idle', 'not_responding'], ['mixed'])
    """
    marks = text[len(text.rstrip("*~#!%$@^-+")) :]
    return [text.removesuffix(marks), *(_MARKS[mark] for mark in marks if mark in _MARKS)]


def read_features(text: str) -> tuple[str, ...]:
    """Parse a node's features, separated by commas; "(null)" and "" mean none."""
    return tuple(feature for feature in text.split(",") if feature and feature != "(null)")


def read_gres(text: str) -> dict[tuple[str, str], int]:
    """Parse generic resources; return the count by name and type. Resources that jobs do not use up are left out.

    Examples
    --------
    >>> read_gres("gpu:a100:4(S:0-1),fpga:2,bandwidth:lustre:no_consume:4G,licence")
    {('gpu', 'a100'): 4, ('fpga', ''): 2, ('licence', ''): 1}
    >>> read_gres("(null)")
    {}
    """
    counts: Counter[tuple[str, str]] = Counter()
    for item in filter(None, re.sub(r"\([^)]*\)", "", text).split(",")):
        name, *rest = item.strip().split(":")
        match = re.fullmatch(r"(\d+)([KMGT]?)", rest[-1]) if rest else None
        if "no_consume" in rest:
            continue
        count = int(match[1]) * _SCALES.get(match[2], 1) if match else 1
        of_type = ":".join(rest[:-1] if match else rest)
        if count:
            counts[name, of_type] += count
    return dict(counts)


def _others(gres: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Return the counts of all resources except GPUs by name, whatever their type."""
    counts: Counter[str] = Counter()
    for (name, _), count in gres.items():
        if name != "gpu":
            counts[name] += count
    return dict(counts)


def kinds_of(nodes: Iterable[NodeDetails]) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes, by their capacities and features. They have no names, because Slurm knows none."""
    counts = Counter(node.kind for node in nodes)
    kinds = (msgspec.structs.replace(kind, count=count) for kind, count in counts.items())
    return tuple(sorted(kinds, key=_order_of))


def _order_of(kind: NodeKind) -> tuple[object, ...]:
    return kind.cores, kind.memory_mb or 0, kind.gpus, kind.gpu_type, kind.others, kind.labels


def groups_of(
    nodes: Iterable[NodeDetails], kinds: Sequence[NodeKind], ends: Mapping[str, int | None], up: frozenset[str]
) -> tuple[NodeGroup, ...]:
    """Return what is free on each node that is up, one group for each node.

    ``ends`` has the time in ms at which the last job on each node ends, None if unknown; nodes without jobs may be
    missing.
    """
    columns = columns_of(kinds)
    indexes = {msgspec.structs.replace(kind, count=1): index for index, kind in enumerate(kinds)}
    groups = []
    for node in nodes:
        if node.name not in up:
            continue
        kind = node.kind
        is_usable = node.words[0].lower() in _USABLE and not BUSY.intersection(map(str.lower, node.words[1:]))
        free = node.free(kind, columns) if is_usable else (0,) * len(columns)
        is_idle = free == capacity_of(kind, columns)
        end_ms = 0 if is_idle else ends.get(node.name)
        groups.append(NodeGroup(indexes[kind], 1, free, UNKNOWN_MS if end_ms is None else end_ms))
    return tuple(groups)
