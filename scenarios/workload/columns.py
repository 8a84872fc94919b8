"""Optional workload columns, constant or drawn per job, and job classes that get their own metrics.

Columns describe the messages between a job's nodes, its input and output data, and its resource use: the fractions of
time spent on CPU, network and disk, the memory, and the kind of CPU work. The resource mixes come from Sodan and Lan,
*LOMARC: Lookahead Matchmaking for Multi-Resource Coscheduling* (below: *LOMARC*), section 6.1; docs/generators.md
explains how we interpreted ambiguous parts of the paper. Jobs are classified by width (narrow or wide), by run time
(short or long), or by month of submission.
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
"""Value used instead of a site name; it stands for each job's home site."""

PATTERN_NAMES = tuple(PATTERNS)
"""Pattern names; the column ``pattern`` holds indices into this tuple."""

Range = float | Sequence[float]
"""One value for all jobs, or the two bounds between which each job's value is drawn."""

Shares = str | Mapping[str, float]
"""One name for all jobs, or several names, each with its share of the jobs."""


def with_communication(
    workload: Workload, *, pattern: Shares, fraction: Range, message_bytes: Range, rng: np.random.Generator
) -> Workload:
    """Set how each job communicates (docs/netmodel.md, "The model of a job").

    Parameters
    ----------
    pattern : str or mapping from str to float
        A name from `gridweave.netmodel.communication.PATTERNS`, or names with the share of jobs that have each pattern.
    fraction : float or (float, float)
        Fraction of the run time on a single site that is spent on communication, 0 to 1; drawn uniformly from a range.
    message_bytes : float or (float, float)
        Message size in bytes, rounded to a whole number; drawn log-uniformly from a range.
    rng : numpy.random.Generator
        Always draws three numbers per job, in job order, even if some are unused.

    Returns
    -------
    Workload
        With the columns ``pattern``, ``communication_fraction`` and ``message_bytes``. The last two are 0 for a job
        that does not communicate.

    Raises
    ------
    OptionError
        If a pattern is unknown, or a number is out of range.

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
        "message_bytes": np.where(sends, log_evenly(ends[1], draws[:, 2]), 0),
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
    """Set the sizes of each job's input and output data, and the sites where the data are stored.

    Parameters
    ----------
    home : array_like of int, shape (n,)
        Index of each job's home site.
    sites : sequence of str
        Names of the sites.
    input_bytes, output_bytes : float or (float, float)
        Sizes in bytes, rounded to whole numbers; drawn log-uniformly from a range.
    input_site, output_site : str or mapping from str to float
        `AT_HOME`, a site name, or site names with the share of jobs whose data are at each site.
    rng : numpy.random.Generator
        Always draws four numbers per job, in job order, even if some are unused.

    Returns
    -------
    Workload
        With the columns ``input_bytes``, ``input_site``, ``output_bytes`` and ``output_site``.

    Raises
    ------
    OptionError
        If a site is unknown, or a number is out of range.
    """
    draws = rng.random((len(workload), 4))
    at_home = np.asarray(home, np.int64)
    columns: dict[str, npt.NDArray[np.generic]] = {}
    written = (("input", input_bytes, input_site), ("output", output_bytes, output_site))
    for index, (what, sizes, site) in enumerate(written):
        ends, shares = check_bytes(f"{what}_bytes", sizes), check_site(f"{what}_site", site, sites)
        columns[f"{what}_bytes"] = log_evenly(ends, draws[:, 2 * index])
        columns[f"{what}_site"] = at_home
        if shares is not None:
            numbers = np.array([list(sites).index(name) for name in shares], np.int64)
            columns[f"{what}_site"] = numbers[places_by_share(shares, draws[:, 2 * index + 1])]
    return workload.replace(columns={**workload.columns, **columns})


def check_pattern(pattern: Shares) -> dict[str, float]:
    """Return the share of each pattern, after checking that the pattern names are known.

    Raises
    ------
    OptionError
        If a pattern is unknown, or no share is above 0.
    """
    shares = shares_of("pattern", pattern)
    for name in shares:
        check_known("pattern", name, PATTERNS)
    return shares


def check_site(option: str, site: Shares, sites: Sequence[str]) -> dict[str, float] | None:
    """Return the share of each site, after checking the site names; None if every job uses its home site.

    Parameters
    ----------
    option : str
        Name of the option in error messages.
    sites : sequence of str
        Names of all sites.

    Raises
    ------
    OptionError
        If a site is unknown, or no share is above 0.
    """
    if site == AT_HOME:
        return None
    shares = shares_of(option, site)
    for name in shares:
        if name not in sites:
            raise OptionError(option, f"there is no site {name!r}; give {AT_HOME}, or one of {', '.join(sites)}")
    return shares


def check_fraction(fraction: Range) -> tuple[float, float]:
    """Check a fraction of the run time and return its bounds; they are equal if it is a single value.

    Raises
    ------
    OptionError
        If the bounds are not ascending numbers from 0 to 1.
    """
    return _ends("fraction", fraction, 1.0, "expected a fraction of the run time, from 0 to 1")


def check_bytes(option: str, size: Range) -> tuple[float, float]:
    """Check a size and return its bounds; they are equal if it is a single value.

    Raises
    ------
    OptionError
        If the bounds are not ascending sizes, or a range, from which sizes are drawn log-uniformly, starts below 1.
    """
    low, high = _ends(option, size, float(MAX_BYTES), f"bytes, from 0 to {MAX_BYTES:,}")
    if low < 1 and low < high:
        raise OptionError(option, f"is drawn from {low:g} up; sizes are drawn log-uniformly, from at least 1 byte")
    return low, high


def _ends(option: str, value: Range, most: float, right: str) -> tuple[float, float]:
    ends = [float(value)] if isinstance(value, (int, float)) else [float(end) for end in value]
    for end in ends:
        if not 0 <= end <= most:
            raise OptionError(option, f"is {end:g}; {right}")
    if len(ends) not in (1, 2) or ends[0] > ends[-1]:
        raise OptionError(option, f"is {[*ends]}; expected one number, or the lower and the upper end of a range")
    return ends[0], ends[-1]


def shares_of(option: str, names_or_shares: Shares) -> dict[str, float]:
    """Return the share of each name; a single name gets a share of 1. Raise OptionError if a share is invalid."""
    shares = (
        {names_or_shares: 1.0}
        if isinstance(names_or_shares, str)
        else {name: float(share) for name, share in names_or_shares.items()}
    )
    for name, share in shares.items():
        if not 0 <= share < np.inf:
            raise OptionError(option, f"has a share of {share:g} for {name}; a number from 0 up")
    if not sum(shares.values()) > 0:
        raise OptionError(option, "has no share above 0")
    return shares


def places_by_share(shares: Mapping[str, float], draws: npt.NDArray[np.float64]) -> IntArray:
    """Map each draw from [0, 1) to the index of a name, according to the shares; one share must be above 0."""
    parts = np.array(list(shares.values()), np.float64)
    bounds = np.cumsum(parts / parts.max())  # avoids overflow in the sum of large shares
    return np.asarray(np.searchsorted(bounds / bounds[-1], draws, side="right"), np.int64)


def _evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # A rounding error must not push a value out of the range.
    return np.clip(ends[0] + draws * (ends[1] - ends[0]), *ends)


def log_evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> IntArray:
    """Map draws from [0, 1] to whole numbers within these ends, evenly on a logarithmic scale."""
    if ends[0] == ends[1]:
        return np.full(len(draws), round(ends[0]), np.int64)
    drawn = np.exp(_evenly((float(np.log(ends[0])), float(np.log(ends[1]))), draws))
    return np.asarray(np.rint(np.clip(drawn, *ends)), np.int64)


FloatArray = npt.NDArray[np.float64]

RESOURCE_COLUMNS = (
    *("cpu_fraction", "network_fraction", "disk_fraction", "memory_fraction"),
    *("cpu_kind", "cache_bytes"),
)
"""Workload columns set by `assign_resources`."""

CPU_INTEGER, CPU_FLOAT = 0, 1
"""Values of ``cpu_kind``: whether a job's CPU work is mainly integer or floating-point arithmetic."""

CPU_WELL = 0.33
"""Probability that the CPU work of two jobs is compatible (LOMARC, section 6.1)."""

CACHE_BYTES = (0, 40 * 1024, 80 * 1024, 400 * 1024)
"""Amounts of data that the measured jobs kept in the L2 and L3 caches (LOMARC, Table 1)."""

_MEMORY_PARTS = ((0.70, 0.05, 0.5), (0.25, 0.5, 0.8), (0.05, 0.8, 1.0))


@dataclass(frozen=True, slots=True)
class ResourceMix:
    """The share of jobs bound by each resource.

    Parameters
    ----------
    cpu, network, disk : float
        Probabilities that sum to 1.

    Raises
    ------
    OptionError
        If the values are not probabilities that sum to 1.
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
"""The mixes in LOMARC, section 6.1: scientific with data mining, data mining, and conventional."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """The ranges of the time fractions of a job that is bound by the resource ``own``.

    They limit the fractions of ``own`` and of a second resource, and the sum of both; the third fraction is the rest.
    """

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
    """Parse a mix: a name from `MIXES`, or percentages of CPU-, network- and disk-bound jobs.

    Raise OptionError if the text is neither.

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
    names = ", ".join(MIXES)
    raise OptionError("mix", f"{text!r} is not known; write {names}, or percentages that sum to 100, as in 40/30/30")


def assign_resources(
    workload: Workload,
    mix: str | ResourceMix,
    rng: np.random.Generator,
    *,
    cpu_well: float = CPU_WELL,
    dominant: bool = True,
) -> Workload:
    """Draw each job's fractions of time on the resources, its memory, its kind of CPU work, and its cache use.

    Parameters
    ----------
    workload : Workload
        The jobs; existing columns in `RESOURCE_COLUMNS` are replaced.
    mix : str or ResourceMix
        A mix, or text that `mix_named` can parse.
    rng : numpy.random.Generator
        Each column draws from its own spawned stream.
    cpu_well : float
        Probability that the CPU work of two jobs is compatible.
    dominant : bool
        Whether a job bound by a resource always spends more time on this resource than on either of the other two. If
        False, only the published ranges apply; 8% of the disk- and network-bound jobs then mostly use the CPU.

    Returns
    -------
    Workload
        With all of `RESOURCE_COLUMNS`.

    Raises
    ------
    OptionError
        If the mix is unknown, or `cpu_well` is not a probability.

    Notes
    -----
    The CPU work of two jobs is compatible unless both do floating-point work (LOMARC, Table 1: a pair of integer
    programs slowed down by a factor of up to 1.4, a pair of floating-point programs by up to 2.1). A job does
    floating-point work with probability sqrt(1 - cpu_well), so any two jobs are compatible with probability `cpu_well`.
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
    """Draw the CPU, network and disk fractions of each job; redraw fractions that are outside their ranges."""
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
    """Draw the fraction of a node's memory that each job uses."""
    shares, lows, highs = np.array(_MEMORY_PARTS).T
    part = rng.choice(len(shares), size, p=shares)
    memory: FloatArray = rng.uniform(lows[part], highs[part])
    return memory


def check_resources(workload: Workload) -> None:
    """Check that a workload has the resource columns required for coscheduling.

    Raises
    ------
    InputError
        If one of the four fractions is missing, or a job's CPU, network and disk fractions do not sum to 1.
    """
    for name in RESOURCE_COLUMNS[:4]:
        if name not in workload.columns:
            raise InputError(f"{workload.name}: has no column {name}; draw it from a mix, or read a file of resources")
    total = sum((workload.columns[name].astype(np.float64) for name in RESOURCE_COLUMNS[:3]), np.zeros(len(workload)))
    wrong = np.abs(total - 1) > SUM_TOLERANCE
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{workload.name}: job {workload.job_id[row]}: its fractions of CPU, network and disk sum to "
            f"{total[row]:.6g}; they are fractions of its run time and must sum to 1"
        )


NARROW_UP_TO = 32
"""Maximum width of a narrow job in nodes (Zhang, section 2.2: small jobs use 32 or fewer nodes)."""


@dataclass(frozen=True, eq=False, slots=True)
class JobClasses:
    """A partition of jobs into classes: each job is in exactly one class.

    Attributes
    ----------
    names : tuple of str
        Names of the classes; a class may be empty.
    of_job : numpy.ndarray of int64, shape (n,)
        Index of each job's class in ``names``.
    """

    names: tuple[str, ...]
    of_job: IntArray


def classes_by_width(width: npt.ArrayLike, narrow_up_to: float = NARROW_UP_TO) -> JobClasses:
    """Classify jobs as narrow or wide.

    Parameters
    ----------
    width : array_like of int, shape (n,)
        Number of nodes of each job.
    narrow_up_to : float, optional
        Maximum width of a narrow job; 32 as in Zhang, section 2.2.

    Returns
    -------
    JobClasses
        "narrow" and "wide".
    """
    return JobClasses(("narrow", "wide"), (np.asarray(width) > narrow_up_to).astype(np.int64))


def classes_by_length(run_ms: npt.ArrayLike, short_up_to_ms: float | None = None) -> JobClasses:
    """Classify jobs as short or long.

    Parameters
    ----------
    run_ms : array_like of int, shape (n,)
        Run time of each job.
    short_up_to_ms : float, optional
        Maximum run time of a short job; defaults to the median run time.

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
    """Classify jobs by the calendar month of submission, e.g. "1996-09", in ascending order without empty months.

    `start_unix_s` is the Unix time of the workload's time zero. `timezone` is the IANA name of the calendar's time
    zone; it defaults to UTC. Raises InputError if there is no start date, the zone is unknown, or a date is not in the
    years 1 to 9999.
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
    """Return the names and start times (in ms) of all months from the first to the last job."""
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
