"""The chunks that the jobs of a workload ask for: from plain columns, or drawn at random (docs/resources.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.columns import log_evenly, places_by_share, shares_of
from gridweave.scenarios.workload.table import MAX_WIDTH, IntArray, Workload
from gridweave.site.resources.chunks import MAX_AMOUNT, WHOLE_NODE, Chunk

NO_CHUNK = -1
"""Value of the column ``chunk`` for jobs that ask for whole nodes."""

MEMORY_SIZES = 32
"""Number of different sizes of memory that are drawn, so that a workload has few different chunks."""


def with_chunks(workload: Workload, chunks: Sequence[Chunk | None]) -> Workload:
    """Set each job's chunk, replacing the workload's existing chunks; None means whole nodes.

    `Workload.chunks` then has the distinct chunks in the order in which they first appear. Raises InputError if the
    numbers of chunks and jobs differ, or a job's width is not a multiple of `Chunk.per_node`.

    Examples
    --------
    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 0, 0], width=[4, 8, 1], estimate_ms=[9] * 3, run_ms=[9] * 3)
    >>> asking = with_chunks(jobs, [Chunk(cores=4, gpus=1), None, Chunk(cores=4, gpus=1)])
    >>> asking.columns["chunk"].tolist(), asking.chunks == (Chunk(cores=4, gpus=1),)
    ([0, -1, 0], True)
    """
    numbers: dict[Chunk, int] = {}
    number = [NO_CHUNK if chunk in (None, WHOLE_NODE) else numbers.setdefault(chunk, len(numbers)) for chunk in chunks]
    return workload.replace(columns={**workload.columns, "chunk": np.array(number, np.int64)}, chunks=tuple(numbers))


def with_amounts(
    workload: Workload,
    *,
    cores: npt.ArrayLike,
    memory_mb: npt.ArrayLike = 0,
    gpus: npt.ArrayLike = 0,
    gpu_type: npt.ArrayLike = "",
) -> Workload:
    """Set the chunk that each job asks for, from columns of plain amounts.

    Parameters
    ----------
    workload : Workload
        The jobs; the chunks that they have so far are replaced.
    cores : array_like of int, shape (n,) or ()
        Cores of each chunk; 0: the job asks for whole nodes, and its other amounts are ignored.
    memory_mb : array_like of int, shape (n,) or ()
        Memory of each chunk in MB (10**6 bytes); 0: not counted.
    gpus : array_like of int, shape (n,) or ()
        GPUs of each chunk.
    gpu_type : array_like of str, shape (n,) or ()
        Required type of the GPUs; empty: any type. Ignored for jobs without GPUs.

    Returns
    -------
    Workload
        `Workload.chunks` has the different chunks in ascending order of the amounts, then of the types of GPUs.

    Raises
    ------
    InputError
        If an amount is negative or larger than `MAX_AMOUNT`; the message names the job.

    Examples
    --------
    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 0, 0], width=[4, 8, 1], estimate_ms=[9] * 3, run_ms=[9] * 3)
    >>> asking = with_amounts(jobs, cores=[8, 0, 2], gpus=[1, 0, 0])
    >>> asking.columns["chunk"].tolist(), asking.chunks == (Chunk(cores=2), Chunk(cores=8, gpus=1))
    ([1, -1, 0], True)
    """
    amounts = {
        name: np.broadcast_to(np.asarray(values, np.int64), len(workload))
        for name, values in (("cores", cores), ("memory_mb", memory_mb), ("gpus", gpus))
    }
    for name, values in amounts.items():
        wrong = (values < 0) | (values > MAX_AMOUNT)
        if wrong.any():
            row = int(np.argmax(wrong))
            problem = f"{name} {values[row]} is not within 0 to {MAX_AMOUNT}"
            raise InputError(f"{workload.name}: job {workload.job_id[row]}: {problem}")
    types = np.where(amounts["gpus"] > 0, np.broadcast_to(np.asarray(gpu_type, np.str_), len(workload)), "")
    first, of_job = _distinct(*amounts.values(), types)
    is_whole = amounts["cores"][first] == 0
    number = np.where(is_whole, NO_CHUNK, np.cumsum(~is_whole) - 1)
    rows = zip(*(values[first[~is_whole]].tolist() for values in (*amounts.values(), types)), strict=True)
    chunks = tuple(
        Chunk(cores=cores, memory_mb=memory_mb, gpus=gpus, gpu_type=kind) for cores, memory_mb, gpus, kind in rows
    )
    return workload.replace(columns={**workload.columns, "chunk": number[of_job]}, chunks=chunks)


def _distinct(*columns: npt.NDArray[np.generic]) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct combination of values, ascending, and the combination of each row."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        key = np.unique(key * max(len(values), 1) + code, return_inverse=True)[1]
    first = np.unique(key, return_index=True)[1]
    return first.astype(np.int64), key.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRanges:
    """The ranges from which the chunks of some jobs are drawn; both ends are included.

    Attributes
    ----------
    share : float
        Share of the jobs, relative to the shares of other ranges; at least 0.
    cores, gpus : (int, int)
        Numbers for each chunk, at least 1 core; uniform.
    memory_mb : (int, int)
        Memory of each chunk in MB: one of `MEMORY_SIZES` sizes, all equally likely and evenly spaced on a logarithmic
        scale. (0, 0): not counted.
    gpu_type : str
        Required type of the GPUs; empty: any type.
    max_chunks : int, optional
        Largest number of chunks; wider jobs get this many.
    homes : frozenset of int, optional
        Indexes of the home sites whose jobs are drawn from these ranges; None: all sites.

    Raises
    ------
    OptionError
        If a range is empty, or a number is out of range.
    """

    share: float = 1.0
    cores: tuple[int, int] = (1, 1)
    memory_mb: tuple[int, int] = (0, 0)
    gpus: tuple[int, int] = (0, 0)
    gpu_type: str = ""
    max_chunks: int | None = None
    homes: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < np.inf:
            raise OptionError("share", f"is {self.share}; expected a share of the jobs, at least 0")
        for name, lowest in (("cores", 1), ("memory_mb", 0), ("gpus", 0)):
            ends = getattr(self, name)
            if not lowest <= ends[0] <= ends[1] <= MAX_AMOUNT:
                raise OptionError(name, f"is {ends[0]} to {ends[1]}; expected a range within {lowest} to {MAX_AMOUNT}")
        if self.memory_mb[0] == 0 < self.memory_mb[1]:
            raise OptionError("memory_mb", f"is 0 to {self.memory_mb[1]}; a logarithmic scale must start at 1 or more")
        if self.max_chunks is not None and self.max_chunks < 1:
            raise OptionError("max_chunks", f"is {self.max_chunks}; expected at least 1")


def draw_mixed_chunks(
    workload: Workload,
    mix: Sequence[ChunkRanges],
    rng: np.random.Generator,
    *,
    home: npt.ArrayLike = 0,
) -> Workload:
    """Draw a chunk for each job from several ranges.

    Parameters
    ----------
    workload : Workload
        The jobs; the chunks that they have so far are replaced. Widths count chunks.
    mix : sequence of ChunkRanges
        The ranges of a job are drawn by their shares.
    rng : numpy.random.Generator
        Always draws four numbers per job, in job order.
    home : array_like of int, shape (n,) or ()
        Index of each job's home site, for `ChunkRanges.homes`.

    Raises
    ------
    OptionError
        If no share is above 0 for the jobs of some site.
    """
    draws = rng.random((len(workload), 4))
    of_job, homes = np.zeros(len(workload), np.int64), np.broadcast_to(np.asarray(home, np.int64), len(workload))
    for site in np.unique(homes).tolist():
        rows = homes == site
        shares = {str(n): part.share if part.homes is None or site in part.homes else 0.0 for n, part in enumerate(mix)}
        of_job[rows] = places_by_share(shares_of("share", shares), draws[rows, 0])
    steps = np.floor(draws[:, 3] * MEMORY_SIZES) / (MEMORY_SIZES - 1)
    amounts = {name: np.zeros(len(workload), np.int64) for name in ("cores", "gpus", "memory_mb")}
    types, width = np.zeros(len(workload), object), workload.width.copy()
    for number, part in enumerate(mix):
        rows = of_job == number
        amounts["cores"][rows] = _whole(part.cores, draws[rows, 1])
        amounts["gpus"][rows] = _whole(part.gpus, draws[rows, 2])
        if part.memory_mb[1]:
            amounts["memory_mb"][rows] = log_evenly((float(part.memory_mb[0]), float(part.memory_mb[1])), steps[rows])
        types[rows] = part.gpu_type
        width[rows] = np.minimum(width[rows], part.max_chunks or MAX_WIDTH)
    return with_amounts(workload.replace(width=width), gpu_type=types.astype(np.str_), **amounts)


def draw_chunks(
    workload: Workload,
    rng: np.random.Generator,
    *,
    cores: tuple[int, int] = (1, 16),
    gpus: tuple[int, int] = (0, 4),
    memory_mb: tuple[int, int] = (1000, 64_000),
    gpu_share: float = 1.0,
) -> Workload:
    """Draw a chunk for each job, for benchmarks and examples.

    Parameters
    ----------
    workload : Workload
        The jobs; the chunks that they have so far are replaced. Widths stay the same, but count chunks.
    rng : numpy.random.Generator
        Always draws four numbers per job, in job order, so that another range or share does not change the other
        amounts.
    cores, gpus, memory_mb : (int, int)
        As in `ChunkRanges`.
    gpu_share : float
        Probability that a job's GPUs are drawn from their range; the other jobs ask for none.

    Raises
    ------
    OptionError
        If a range is empty or has an end that is out of range, or the share is not within 0 to 1.
    """
    if not 0 <= gpu_share <= 1:
        raise OptionError("gpu_share", f"is {gpu_share}; expected a share of the jobs, from 0 to 1")
    with_gpus = ChunkRanges(share=gpu_share, cores=cores, memory_mb=memory_mb, gpus=gpus)
    without = ChunkRanges(share=1 - gpu_share, cores=cores, memory_mb=memory_mb)
    return draw_mixed_chunks(workload, [with_gpus, without], rng)


def _whole(ends: tuple[int, int], draws: npt.NDArray[np.float64]) -> IntArray:
    """Map draws from [0, 1) to whole numbers within these ends, all equally likely."""
    return ends[0] + np.floor(draws * (ends[1] - ends[0] + 1)).astype(np.int64)
