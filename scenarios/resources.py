"""What jobs need beside nodes: parts of their time on CPU, network and disk, memory, and the kind of their CPU work.

The mixes are those of Sodan and Lan, *LOMARC: Lookahead Matchmaking for Multi-Resource Coscheduling* (below: *LOMARC*),
section 6.1. docs/generators.md says how the text was read where it leaves something open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload import Workload
from gridweave.site.job import SUM_TOLERANCE

FloatArray = npt.NDArray[np.float64]

RESOURCE_COLUMNS = (
    *("cpu_fraction", "network_fraction", "disk_fraction", "memory_fraction"),
    *("cpu_kind", "cache_bytes"),
)
"""Columns of a workload that this module fills."""

CPU_INTEGER, CPU_FLOAT = 0, 1
"""Values of ``cpu_kind``: what the CPU part of a job is dominated by."""

CPU_WELL = 0.33
"""Probability that the CPU parts of two jobs go well together (LOMARC, section 6.1)."""

CACHE_BYTES = (0, 40 * 1024, 80 * 1024, 400 * 1024)
"""Data in the L2 and L3 cache, of the jobs that were measured (LOMARC, Table 1)."""

_MEMORY_PARTS = ((0.70, 0.05, 0.5), (0.25, 0.5, 0.8), (0.05, 0.8, 1.0))


@dataclass(frozen=True, slots=True)
class ResourceMix:
    """How many of the jobs are bound by which resource.

    Parameters
    ----------
    cpu, network, disk : float
        Probabilities, within 0 to 1, that sum to 1.

    Raises
    ------
    OptionError
        If they do not.
    """

    cpu: float
    network: float
    disk: float

    def __post_init__(self) -> None:
        parts = (self.cpu, self.network, self.disk)
        if not all(0 <= part <= 1 for part in parts) or not math.isclose(math.fsum(parts), 1, abs_tol=1e-9):
            shown = ", ".join(f"{part:g}" for part in parts)
            raise OptionError("mix", f"{shown} (CPU, network, disk) are not probabilities that sum to 1")


MIXES: Mapping[str, ResourceMix] = MappingProxyType(
    {
        "M1": ResourceMix(cpu=0.4, network=0.3, disk=0.3),
        "M2": ResourceMix(cpu=0.4, network=0.1, disk=0.5),
        "M3": ResourceMix(cpu=0.3, network=0.5, disk=0.2),
    }
)
"""The mixes of LOMARC, section 6.1: scientific with data mining, data mining, and conventional."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """Jobs bound by one resource: ranges of its fraction, of a second one, and of their sum; the third is the rest."""

    own: str
    second: str
    rest: str
    own_range: tuple[float, float]
    second_range: tuple[float, float]
    sum_range: tuple[float, float]


_BOUNDS = (
    _Bound("cpu_fraction", "disk_fraction", "network_fraction", (0.5, 0.9), (0.05, 0.4), (0.6, 0.95)),
    _Bound("network_fraction", "disk_fraction", "cpu_fraction", (0.4, 0.65), (0.05, 0.4), (0.5, 0.8)),
    _Bound("disk_fraction", "network_fraction", "cpu_fraction", (0.4, 0.65), (0.05, 0.4), (0.5, 0.8)),
)


def mix_named(text: str) -> ResourceMix:
    """Return the mix that a text means.

    Parameters
    ----------
    text : str
        A name out of `MIXES`, or three numbers of per cent: CPU-, network- and disk-bound jobs.

    Returns
    -------
    ResourceMix

    Raises
    ------
    OptionError
        If it is neither.

    Examples
    --------
    >>> mix_named("M2") == mix_named("40/10/50")
    True
    """
    if text.upper() in MIXES:
        return MIXES[text.upper()]
    parts = text.split("/")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        cpu, network, disk = map(int, parts)
        if cpu + network + disk == 100:
            return ResourceMix(cpu / 100, network / 100, disk / 100)
    known = ", ".join(MIXES)
    raise OptionError("mix", f"{text!r} is not known; right is {known}, or per cent that sum to 100, as in 40/30/30")


def assign_resources(
    workload: Workload,
    mix: str | ResourceMix,
    rng: np.random.Generator,
    *,
    cpu_well: float = CPU_WELL,
    dominant: bool = True,
) -> Workload:
    """Give every job fractions of its time on each resource, memory, a kind of CPU work and cache.

    Parameters
    ----------
    workload : Workload
        Columns of `RESOURCE_COLUMNS` that it has are replaced.
    mix : str or ResourceMix
        A mix, or a text for `mix_named`.
    rng : numpy.random.Generator
        Each of the columns draws from a stream of its own, spawned from it.
    cpu_well : float
        Probability that the CPU parts of two jobs go well together, within 0 to 1.
    dominant : bool
        Whether a job that is bound by a resource spends more of its time there than on either of the others. If not,
        the published ranges alone hold, and 8% of the disk- and network-bound jobs spend most of it on the CPU.

    Returns
    -------
    Workload
        With all of `RESOURCE_COLUMNS`.

    Raises
    ------
    OptionError
        If the mix or `cpu_well` is none.

    Notes
    -----
    Two jobs go well together unless the CPU work of both is floating point (LOMARC, Table 1: two integer programs were
    slowed by up to 1.4, two floating-point ones by up to 2.1). A job is a floating-point one with the probability
    sqrt(1 - cpu_well), so a pair goes well with the probability `cpu_well`, whatever the order in which jobs meet.
    """
    mix = mix_named(mix) if isinstance(mix, str) else mix
    if not 0 <= cpu_well <= 1:
        raise OptionError("cpu_well", f"{cpu_well} is not a probability; give 0 to 1")
    n = len(workload)
    for_bounds, for_fractions, for_memory, for_kinds, for_cache = rng.spawn(5)
    bound = np.searchsorted([mix.cpu, mix.cpu + mix.network], for_bounds.random(n), side="right")
    columns: dict[str, npt.NDArray[np.generic]] = dict(_draw_fractions(bound, for_fractions.spawn(3), dominant))
    columns["memory_fraction"] = _draw_memory(n, for_memory)
    columns["cpu_kind"] = np.where(for_kinds.random(n) < math.sqrt(1 - cpu_well), CPU_FLOAT, CPU_INTEGER)
    columns["cache_bytes"] = for_cache.choice(np.array(CACHE_BYTES, np.int64), n)
    return workload.replace(columns={**workload.columns, **columns})


def _draw_fractions(
    bound: npt.NDArray[np.intp], rngs: list[np.random.Generator], dominant: bool
) -> dict[str, FloatArray]:
    """Return the three fractions of each job."""
    columns = {name: np.empty(len(bound)) for name in RESOURCE_COLUMNS[:3]}
    for number, (ranges, rng) in enumerate(zip(_BOUNDS, rngs, strict=True)):
        rows = np.flatnonzero(bound == number)
        while len(rows):
            own = rng.uniform(*ranges.own_range, len(rows))
            second = rng.uniform(*ranges.second_range, len(rows))
            rest = 1 - (own + second)
            columns[ranges.own][rows], columns[ranges.second][rows], columns[ranges.rest][rows] = own, second, rest
            low, high = ranges.sum_range
            right = (own + second >= low) & (own + second < high)
            if dominant:
                right &= (own > second) & (own > rest)
            rows = rows[~right]
    return columns


def _draw_memory(size: int, rng: np.random.Generator) -> FloatArray:
    """Return parts of a node's memory."""
    shares, lows, highs = np.array(_MEMORY_PARTS).T
    part = rng.choice(len(shares), size, p=shares)
    memory: FloatArray = rng.uniform(lows[part], highs[part])
    return memory


def check_resources(workload: Workload) -> None:
    """Refuse a workload whose jobs cannot be matched by what they need.

    Parameters
    ----------
    workload : Workload

    Raises
    ------
    InputError
        If it lacks one of the four fractions, or those of CPU, network and disk do not sum to 1 for some job.
    """
    for name in RESOURCE_COLUMNS[:4]:
        if name not in workload.columns:
            raise InputError(f"{workload.name}: has no column {name}; draw one with a mix, or read a file of resources")
    total = sum((workload.columns[name].astype(np.float64) for name in RESOURCE_COLUMNS[:3]), np.zeros(len(workload)))
    wrong = np.abs(total - 1) > SUM_TOLERANCE
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{workload.name}: job {workload.job_id[row]}: its fractions of CPU, network and disk sum to "
            f"{total[row]:.6g}; they are parts of its run time and sum to 1"
        )
