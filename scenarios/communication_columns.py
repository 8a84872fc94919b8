"""What jobs send between their nodes, and the data they read and write: the same for all, or drawn job by job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.netmodel.communication import PATTERNS
from gridweave.scenarios.workload import IntArray, Workload

AT_HOME: Final = "home"
"""In the place of a site: that of the job's user."""

MAX_BYTES = 2**53
"""Of a message or of a job's data; up to here a float64 counts every byte."""

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
    workload : Workload
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
    codes = np.array([PATTERN_NAMES.index(name) for name in shares], np.int64)[_places(shares, draws[:, 0])]
    sends = codes != PATTERN_NAMES.index("none")
    columns = {
        "pattern": codes,
        "communication_fraction": np.where(sends, _evenly(ends[0], draws[:, 1]), 0.0),
        "message_bytes": np.where(sends, _log_evenly(ends[1], draws[:, 2]), 0),
    }
    return workload.replace(columns=dict(workload.columns) | columns)


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
    workload : Workload
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
            columns[f"{what}_site"] = numbers[_places(shares, draws[:, 2 * place + 1])]
    return workload.replace(columns=dict(workload.columns) | columns)


def check_pattern(pattern: Shares) -> dict[str, float]:
    """Return the shares of patterns.

    Parameters
    ----------
    pattern : str or mapping from str to float

    Returns
    -------
    dict from str to float

    Raises
    ------
    OptionError
        If a pattern is not known, or there is no share above 0.
    """
    shares = _shares("pattern", pattern)
    for name in shares:
        if name not in PATTERNS:
            raise OptionError("pattern", f"{name!r} is not known; one of {', '.join(PATTERNS)}")
    return shares


def check_site(option: str, site: Shares, sites: Sequence[str]) -> dict[str, float] | None:
    """Return the shares of sites; None if each job's is that of its user.

    Parameters
    ----------
    option : str
        What it is called.
    site : str or mapping from str to float
    sites : sequence of str
        That there are.

    Returns
    -------
    dict from str to float, or None

    Raises
    ------
    OptionError
        If there is no such site, or there is no share above 0.
    """
    if site == AT_HOME:
        return None
    shares = _shares(option, site)
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


def _shares(option: str, given: Shares) -> dict[str, float]:
    shares = {given: 1.0} if isinstance(given, str) else {name: float(share) for name, share in given.items()}
    for name, share in shares.items():
        if not 0 <= share < np.inf:
            raise OptionError(option, f"has a share of {share:g} for {name}; a number from 0 up")
    if not sum(shares.values()) > 0:
        raise OptionError(option, "has no share above 0")
    return shares


def _places(shares: Mapping[str, float], draws: npt.NDArray[np.float64]) -> IntArray:
    """Return for each job the place of its name among the shares."""
    bounds = np.cumsum(list(shares.values()))
    return np.asarray(np.searchsorted(bounds / bounds[-1], draws, side="right"), np.int64)


def _evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Rounding must not lead out of the range.
    return np.clip(ends[0] + draws * (ends[1] - ends[0]), *ends)


def _log_evenly(ends: tuple[float, float], draws: npt.NDArray[np.float64]) -> IntArray:
    if ends[0] == ends[1]:
        return np.full(len(draws), round(ends[0]), np.int64)
    drawn = np.exp(_evenly((float(np.log(ends[0])), float(np.log(ends[1]))), draws))
    return np.asarray(np.rint(np.clip(drawn, *ends)), np.int64)
