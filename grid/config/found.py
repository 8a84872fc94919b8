"""Describe machines as the nodes of a site, and keep what was found while the journals of a grid are in use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.site.machine.hardware.find import Hardware
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
