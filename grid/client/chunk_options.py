"""Convert a job's options for cores, memory, GPUs and labels to the chunk that the job requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gridweave.errors import OptionError
from gridweave.grid.client.arguments import text, whole
from gridweave.grid.client.job_options import JobOptions
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk
from gridweave.site.resources.text import parse_gpus, parse_memory

RESOURCES = ("cores", "memory", "gpus", "gres", "per_node")
"""The options that ask for parts of nodes. With any of them, a chunk has at least one core."""


def requested_chunk(options: JobOptions) -> Chunk | msgspec.UnsetType:
    """Return a job's chunk; UNSET for whole nodes of any kind. Raise OptionError for invalid values.

    Examples
    --------
    >>> requested_chunk({"memory": "8GB", "gpus": "a100:1"})
    Chunk(cores=1, memory_mb=8000, gpus=1, gpu_type='a100', others=(), labels=(), exclusive=False, per_node=0)
    >>> requested_chunk({"nodes": 4, "exclusive": True})
    UNSET
    """
    labels = _labels(options.get("labels", ()))
    if not any(name in options for name in RESOURCES):
        return msgspec.structs.replace(WHOLE_NODE, labels=labels) if labels else msgspec.UNSET
    gpus, gpu_type = _gpus(options.get("gpus", 0))
    return Chunk(
        cores=_at_least("cores", options.get("cores", 1), 1),
        memory_mb=parse_memory("memory", text("memory", options["memory"])) if "memory" in options else 0,
        gpus=gpus,
        gpu_type=gpu_type,
        others=_others(options.get("gres", {})),
        labels=labels,
        exclusive=bool(options.get("exclusive", False)),
        per_node=_at_least("per_node", options["per_node"], 1) if "per_node" in options else 0,
    )


def _at_least(name: str, value: Any, least: int) -> int:
    number = whole(name, value)
    if number < least:
        raise OptionError(name, f"is {number}; expected a whole number from {least} up")
    return number


def _gpus(value: Any) -> tuple[int, str]:
    return parse_gpus("gpus", value if isinstance(value, str) else str(whole("gpus", value)))


def _others(gres: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(gres, Mapping):
        raise OptionError("gres", f"{gres!r:.100} is not a mapping; give for example {{'fpga': 2}}")
    return tuple(sorted((text("gres", name), _at_least("gres", number, 1)) for name, number in gres.items()))


def _labels(labels: Any) -> tuple[str, ...]:
    if isinstance(labels, str):
        labels = (labels,)
    return tuple(sorted({text("labels", label) for label in labels}))
