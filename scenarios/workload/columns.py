"""What is said of jobs besides their widths and times, the same for all or drawn job by job; and classes of jobs.

What jobs send between their nodes, and the data that they read and write. What they need beside nodes: parts of their
time on CPU, network and disk, memory, and the kind of their CPU work; the mixes are those of Sodan and Lan, *LOMARC:
Lookahead Matchmaking for Multi-Resource Coscheduling* (below: *LOMARC*), section 6.1, and docs/generators.md says how
the text was read where it leaves something open. Classes whose metrics are given apart: narrow and wide, short and
long, and by month of submission.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.grid.sends import MAX_BYTES
from gridweave.netmodel.communication import PATTERNS
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave.site.job import SUM_TOLERANCE
from gridweave.site.service.zones import load_zone

AT_HOME: Final = "home"
"""In the place of a site: that of the job's user."""

PATTERN_NAMES = tuple(PATTERNS)
"""The column ``pattern`` holds places in this."""

Range = float | Sequence[float]
"""One number for all jobs, or the two ends that the number of each job is drawn between."""

Shares = str | Mapping[str, float]
"""One name for all jobs, or shares of the jobs by name."""


def with_communication(
    workload: Workload, *, pattern: Shares, fraction: Range, message_bytes: Range, rng: np.random.Generator
) -> Workload:
    """Say of each job how it communicates (docs/netmodel.md, "What a job is taken to be").

    Parameters
    ----------
    pattern : str or mapping from str to float
        A name of `gridweave.netmodel.communication.PATTERNS`, or shares of the jobs by such names.
    fraction : float or (float, float)
        Part of the run time on one site's own network that goes into communication, 0 to 1; between two ends it is
        drawn evenly.
    message_bytes : float or (float, float)
        Size of a message; between two ends it is drawn evenly in the logarithm. In whole bytes.
    rng : numpy.random.Generator
        Three numbers for each job, in the order of the jobs, whatever of them is used.

    Returns
    -------
    Workload
        With the columns ``pattern``, ``communication_fraction`` and ``message_bytes``. A job without communication has
        a fraction and messages of 0.

    Raises
    ------
    OptionError
        If a pattern is not known, or a number makes no sense.

    Examples
    --------
    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[4, 8], estimate_ms=[9, 9], run_ms=[9, 9])
    >>> rng = np.random.default_rng(1)
    >>> sending = with_communication(jobs, pattern="ring", fraction=(0.1, 0.3), message_bytes=65536, rng=rng)
    >>> [PATTERN_NAMES[code] for code in sending.columns["pattern"]], sending.columns["message_bytes"].tolist()
    (['ring', 'ring'], [65536, 65536])
    """
    shares = check_pattern(pattern)
    ends = check_fraction(fraction), check_bytes("message_bytes", message_bytes)
    draws = rng.random((len(workload), 3))
    codes = np.array([PATTERN_NAMES.index(name) for name in shares], np.int64)[places_by_share(shares, draws[:, 0])]
    sends = codes != PATTERN_NAMES.index("none")
    columns = {
        "pattern": codes,
        "communication_fraction": np.where(sends, _evenly(ends[0], draws[:, 1]), 0.0),
        "message_bytes": np.where(sends, _log_evenly(ends[1], draws[:, 2]), 0),
    }
    return workload.replace(columns={**workload.columns, **columns})


def with_data(
    workload: Workload,
    *,
    home: npt.ArrayLike,
    sites: Sequence[str],
    input_bytes: Range = 0.0,
    output_bytes: Range = 0.0,
    input_site: Shares = AT_HOME,
    output_site: Shares = AT_HOME,
    rng: np.random.Generator,
) -> Workload:
    """Say of each job what it reads and writes, and at which site that lies.

    Parameters
    ----------
    home : array_like of int, shape (n,)
        The site of each job's user.
    sites : sequence of str
        Their names.
    input_bytes, output_bytes : float or (float, float)
        Sizes; between two ends they are drawn evenly in the logarithm. In whole bytes.
    input_site, output_site : str or mapping from str to float
        `AT_HOME`, the name of a site, or shares of the jobs by site.
    rng : numpy.random.Generator
        Four numbers for each job, in the order of the jobs, whatever of them is used.

    Returns
    -------
    Workload
        With the columns ``input_bytes``, ``input_site``, ``output_bytes`` and ``output_site``.

    Raises
    ------
    OptionError
        If there is no such site, or a number makes no sense.
    """
    draws = rng.random((len(workload), 4))
    at_home = np.asarray(home, np.int64)
    columns: dict[str, npt.NDArray[np.generic]] = {}
    written = (("input", input_bytes, input_site), ("output", output_bytes, output_site))
    for place, (what, sizes, where) in enumerate(written):
        ends, shares = check_bytes(f"{what}_bytes", sizes), check_site(f"{what}_site", where, sites)
        columns[f"{what}_bytes"] = _log_evenly(ends, draws[:, 2 * place])
        columns[f"{what}_site"] = at_home
        if shares is not None:
            numbers = np.array([list(sites).index(name) for name in shares], np.int64)
            columns[f"{what}_site"] = numbers[places_by_share(shares, draws[:, 2 * place + 1])]
    return workload.replace(columns={**workload.columns, **columns})


def check_pattern(pattern: Shares) -> dict[str, float]:
    """Return the shares of patterns.

    Raises
    ------
    OptionError
        If a pattern is not known, or there is no share above 0.
    """
    shares = shares_of("pattern", pattern)
    for name in shares:
        check_known("pattern", name, PATTERNS)
    return shares


def check_site(option: str, site: Shares, sites: Sequence[str]) -> dict[str, float] | None:
    """Return the shares of sites; None if each job's is that of its user.

    Parameters
    ----------
    option : str
        What it is called.
    sites : sequence of str
        That there are.

    Raises
    ------
    OptionError
        If there is no such site, or there is no share above 0.
    """
    if site == AT_HOME:
        return None
    shares = shares_of(option, site)
    for name in shares:
        if name not in sites:
            raise OptionError(option, f"there is no site {name!r}; give {AT_HOME}, or one of {', '.join(sites)}")
    return shares


def check_fraction(fraction: Range) -> tuple[float, float]:
    """Return the ends of a fraction of the run time.

    Raises
    ------
    OptionError
        If they are not ascending parts of one.
    """
    return _ends("fraction", fraction, 1.0, "a part of the run time, from 0 to 1")


def check_bytes(option: str, size: Range) -> tuple[float, float]:
    """Return the ends of a size.

    Raises
    ------
    OptionError
        If they are not ascending sizes, or the lower one of two is less than a byte: there is no logarithm of 0.
    """
    low, high = _ends(option, size, float(MAX_BYTES), f"bytes, from 0 to {MAX_BYTES:,}")
    if low < 1 and low < high:
        raise OptionError(option, f"is drawn from {low:g} up; sizes are drawn in the logarithm, from 1 byte up")
    return low, high


def _ends(option: str, value: Range, most: float, right: str) -> tuple[float, float]:
    ends = [float(value)] if isinstance(value, (int, float)) else [float(end) for end in value]
    for end in ends:
        if not 0 <= end <= most:
            raise OptionError(option, f"is {end:g}; {right}")
    if len(ends) not in (1, 2) or ends[0] > ends[-1]:
        raise OptionError(option, f"is {[*ends]}; one number, or the lower and the upper end of a range")
    return ends[0], ends[-1]


def shares_of(option: str, given: Shares) -> dict[str, float]:
    """Return the share of each name, checked; a name alone has all."""
    shares = {given: 1.0} if isinstance(given, str) else {name: float(share) for name, share in given.items()}
    for name, share in shares.items():
        if not 0 <= share < np.inf:
            raise OptionError(option, f"has a share of {share:g} for {name}; a number from 0 up")
    if not sum(shares.values()) > 0:
        raise OptionError(option, "has no share above 0")
    return shares


def places_by_share(shares: Mapping[str, float], draws: npt.NDArray[np.float64]) -> IntArray:
    """Return for each job the place of its name among the shares, of which one at least is above 0."""
    parts = np.array(list(shares.values()), np.float64)
    bounds = np.cumsum(parts / parts.max())  # the sum of large shares may be no number
    return np.asarray(np.searchsorted(bounds / bounds[-1], draws, side="right"), np.int64)


def _evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Rounding must not lead out of the range.
    return np.clip(ends[0] + draws * (ends[1] - ends[0]), *ends)


def _log_evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> IntArray:
    if ends[0] == ends[1]:
        return np.full(len(draws), round(ends[0]), np.int64)
    drawn = np.exp(_evenly((float(np.log(ends[0])), float(np.log(ends[1]))), draws))
    return np.asarray(np.rint(np.clip(drawn, *ends)), np.int64)


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
    """Return the mix that a text means: a name out of `MIXES`, or per cent of CPU-, network- and disk-bound jobs.

    OptionError if it is neither.

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
    raise OptionError("mix", f"{text!r} is not known; write {known}, or percentages that sum to 100, as in 40/30/30")


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


NARROW_UP_TO = 32
"""The widest narrow job, in nodes (Zhang, section 2.2: small jobs use 32 or fewer nodes)."""


@dataclass(frozen=True, eq=False, slots=True)
class JobClasses:
    """Jobs parted into classes: each job is in exactly one.

    Attributes
    ----------
    names : tuple of str
        The classes; a class may be empty.
    of_job : numpy.ndarray of int64, shape (n,)
        For each job the place of its class in ``names``.
    """

    names: tuple[str, ...]
    of_job: IntArray


def classes_by_width(width: npt.ArrayLike, narrow_up_to: float = NARROW_UP_TO) -> JobClasses:
    """Part jobs into narrow and wide ones.

    Parameters
    ----------
    width : array_like of int, shape (n,)
        Nodes of each job.
    narrow_up_to : float, optional
        The widest narrow job, in nodes; 32 as in Zhang, section 2.2.

    Returns
    -------
    JobClasses
        "narrow" and "wide".
    """
    return JobClasses(("narrow", "wide"), (np.asarray(width) > narrow_up_to).astype(np.int64))


def classes_by_length(run_ms: npt.ArrayLike, short_up_to_ms: float | None = None) -> JobClasses:
    """Part jobs into short and long ones.

    Parameters
    ----------
    run_ms : array_like of int, shape (n,)
        How long each job ran.
    short_up_to_ms : float, optional
        The longest short job; the median of the run times if left out.

    Returns
    -------
    JobClasses
        "short" and "long".
    """
    run = np.asarray(run_ms)
    if short_up_to_ms is None:
        short_up_to_ms = float(np.median(run)) if len(run) else 0.0
    return JobClasses(("short", "long"), (run > short_up_to_ms).astype(np.int64))


def classes_by_month(submit_ms: npt.ArrayLike, start_unix_s: int | None, timezone: str | None = None) -> JobClasses:
    """Part jobs by the calendar month in which they were submitted: "1996-09" and so on, ascending, none without a job.

    `start_unix_s` is the instant of time zero, in seconds since 1970 (UTC); `timezone` the IANA name of the zone whose
    calendar counts, UTC if left out. InputError if there is no date to begin with, the zone is not known, or a date
    leaves the calendar.
    """
    submit = np.asarray(submit_ms, np.int64)
    if start_unix_s is None:
        raise InputError(
            "months need a date for time zero, and the workload has none (SWF: ; UnixStartTime: 843480031)"
        )
    zone = load_zone(timezone)
    if not len(submit):
        return JobClasses((), submit)
    try:
        names, edges_ms = _month_edges(int(submit.min()), int(submit.max()), start_unix_s, zone)
    except (OverflowError, ValueError, OSError):
        raise InputError(
            f"months from {start_unix_s} s since 1970 on are beyond the calendar (years 1 to 9999)"
        ) from None
    month = np.searchsorted(edges_ms, submit, side="right") - 1
    present, of_job = np.unique(month, return_inverse=True)
    return JobClasses(tuple(names[number] for number in present.tolist()), of_job.astype(np.int64))


def _month_edges(first_ms: int, last_ms: int, start_unix_s: int, zone: ZoneInfo) -> tuple[list[str], IntArray]:
    """Return the names of all months from first to last, and the instant at which each begins."""
    first, last = (
        datetime.datetime.fromtimestamp(start_unix_s + instant_ms // MS_PER_S, zone)
        for instant_ms in (first_ms, last_ms)
    )
    names = []
    edges_ms = []
    for number in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
        begin = datetime.datetime(number // 12, number % 12 + 1, 1, tzinfo=zone)
        names.append(f"{begin:%Y-%m}")
        edges_ms.append((round(begin.timestamp()) - start_unix_s) * MS_PER_S)
    return names, np.array(edges_ms, np.int64)
