"""Describe machines as nodes of a site; keep the detected kinds as long as the grid's journals are in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gridweave.errors import InputError
from gridweave.grid.config.reading import ReadGrid
from gridweave.grid.config.tables import FOUND, GridFile, KindTable
from gridweave.site.machine.hardware.find import Hardware, find_hardware
from gridweave.site.resources.chunks import NodeKind

_ROUND_MB = 1_000


def kinds_of_machines(machines: Sequence[Hardware]) -> tuple[NodeKind, ...]:
    """Return the kinds of a site's nodes if each machine is a node; equal neighbours form one kind.

    Memory is rounded down to GB, so that equal machines count as equal. Every kind has its type of GPU, or ``cpu``, as
    a label.

    Examples
    --------
    >>> big, small = Hardware(cores=8, memory_mb=64_321), Hardware(cores=2, memory_mb=4_000)
    >>> [(kind.name, kind.count, kind.memory_mb) for kind in kinds_of_machines([big, big, small])]
    [('cpu', 2, 64000), ('cpu-2', 1, 4000)]
    """
    kinds: list[NodeKind] = []
    names: dict[str, int] = {}
    for machine in machines:
        base = machine.gpu_type or ("gpu" if machine.gpus else "cpu")
        node = NodeKind(
            name=base,
            count=1,
            cores=machine.cores,
            memory_mb=machine.memory_mb // _ROUND_MB * _ROUND_MB or machine.memory_mb,
            gpus=len(machine.gpus),
            gpu_type=machine.gpu_type,
            labels=(base,),
        )
        last = kinds[-1] if kinds else None
        if last is not None and msgspec.structs.replace(last, name=base, count=1) == node:
            kinds[-1] = msgspec.structs.replace(last, count=last.count + 1)
            continue
        names[base] = names.get(base, 0) + 1
        kinds.append(msgspec.structs.replace(node, name=base if names[base] == 1 else f"{base}-{names[base]}"))
    return tuple(kinds)


FoundKinds = dict[str, tuple[NodeKind, ...]]
"""The kinds of nodes that were found for each site with ``kinds = "found"``, by site."""


def with_found(
    read: ReadGrid, kept: Mapping[str, tuple[NodeKind, ...]], *, is_local: bool
) -> tuple[ReadGrid, FoundKinds]:
    """Replace ``kinds = "found"`` by the kinds in ``kept``; at the first start, by the kinds of this machine.

    Raise InputError if the grid runs on a Ray cluster, or two sites would have the same machine.
    """
    file = read.file
    names = [site.name for site in read.sites if site.kinds == FOUND]
    if not names or not isinstance(file, GridFile):
        return read, {}
    where = f"{read.source}: sites.{names[-1]}.kinds is {FOUND!r}"
    right = "list the kinds; `gridweave up --show-machine` prints those of a machine"
    if not is_local:
        raise InputError(f"{where}, which works only for a grid on this machine; {right}")
    if len(names) > 1:
        raise InputError(f"{where}, as for {names[0]}, but a machine is a node of one site; {right}")
    kinds = {name: kept.get(name) or kinds_of_machines([find_hardware()]) for name in names}
    sites = [
        msgspec.structs.replace(site, kinds=kind_tables(kinds[site.name])) if site.name in kinds else site
        for site in file.sites
    ]
    file = msgspec.structs.replace(file, sites=sites)
    return ReadGrid(file, read.network, read.text, read.source, read.base), kinds


def kind_tables(kinds: Sequence[NodeKind]) -> list[KindTable]:
    """Convert kinds of nodes to the tables that describe them in a file."""
    return [
        KindTable(
            name=kind.name,
            count=kind.count,
            cores=kind.cores,
            memory=None if kind.memory_mb is None else f"{kind.memory_mb}MB",
            gpus=f"{kind.gpu_type}:{kind.gpus}" if kind.gpu_type else kind.gpus,
            labels=list(kind.labels),
        )
        for kind in kinds
    ]


def site_text(kinds: Sequence[NodeKind]) -> str:
    """Return the kinds as the table of a site in GRID.toml.

    Examples
    --------
    >>> print(site_text([NodeKind(name="cpu", count=1, cores=8, memory_mb=64_000, labels=("cpu",))]))
    [[sites]]
    name = "lab"
    kinds = [
      { name = "cpu", count = 1, cores = 8, memory = "64GB" },
    ]
    """
    lines = []
    for kind in kinds:
        cells = [f'name = "{kind.name}"', f"count = {kind.count}", f"cores = {kind.cores}"]
        if kind.memory_mb is not None:
            whole = kind.memory_mb % 1000 == 0
            cells.append(f'memory = "{kind.memory_mb // 1000}GB"' if whole else f'memory = "{kind.memory_mb}MB"')
        if kind.gpus:
            cells.append(f'gpus = "{kind.gpu_type}:{kind.gpus}"' if kind.gpu_type else f"gpus = {kind.gpus}")
        lines.append(f"  {{ {', '.join(cells)} }},")
    return "\n".join(["[[sites]]", 'name = "lab"', "kinds = [", *lines, "]"])
