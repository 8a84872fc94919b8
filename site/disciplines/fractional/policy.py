"""How a site gives jobs fractions of nodes, as its operator writes it down: the 116 names of algorithms, and options.

Source: Stillwell, Vivien and Casanova, *Dynamic Fractional Resource Scheduling versus Batch Scheduling*, section 4.5.
"""

from __future__ import annotations

import difflib
import itertools
import re

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.site.disciplines.fractional.kernels.fractional_pass import (
    GREEDY,
    GREEDY_P,
    GREEDY_PM,
    LEVEL,
    MCB8,
    NOTHING,
    OPT_MAX,
    OPT_MIN,
    PER,
    STRETCH_PER,
    FractionalCodes,
)
from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.work import RATE_ONE

NAME = "fractional"
"""Of the discipline."""

MS_PER_S = 1000

MAX_LONG_MS = 10**12
"""Times the largest weight, it is to stay in 64 bits."""

SUBMIT_PARTS = {"": NOTHING, "Greedy": GREEDY, "GreedyP": GREEDY_P, "GreedyPM": GREEDY_PM, "MCB8": MCB8}
PERIODIC_PARTS = {"": NOTHING, "per": PER, "stretch-per": STRETCH_PER}

BEST = "GreedyPM*/per/OPT=MIN/MINVT=600"
"""What Stillwell recommends (section 5.3.2), with a period of ten times the penalty."""

_LIMIT = re.compile(r"(MINFT|MINVT)=([1-9][0-9]{0,8})")


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """An algorithm, taken apart.

    Attributes
    ----------
    on_submit : str
        What is done when a job is submitted: a key of `SUBMIT_PARTS`.
    on_end : bool
        Whether jobs are also scheduled when one has ended (``*``).
    periodic : str
        What is done at the end of each period: a key of `PERIODIC_PARTS`.
    optimise : str
        ``AVG``, ``MIN``, or ``MAX`` for stretch-per.
    min_flow_s, min_virtual_s : int
        MINFT and MINVT; 0 if not set.
    """

    on_submit: str = ""
    on_end: bool = False
    periodic: str = ""
    optimise: str = "MIN"
    min_flow_s: int = 0
    min_virtual_s: int = 0

    @property
    def uses_mcb8(self) -> bool:
        """Whether tasks are ever packed anew, so that MINFT and MINVT have a meaning."""
        return self.periodic != "" or self.on_submit == "MCB8"

    @property
    def name(self) -> str:
        """What it is called."""
        parts = [self.on_submit + "*" * self.on_end, *([self.periodic] if self.periodic else [])]
        parts.append(f"OPT={self.optimise}")
        parts += [f"MINFT={self.min_flow_s}"] * (self.min_flow_s > 0)
        parts += [f"MINVT={self.min_virtual_s}"] * (self.min_virtual_s > 0)
        return "/".join(parts)


def _mechanisms() -> list[tuple[str, bool, str]]:
    """Return the 14 ways to place tasks (Stillwell, sections 4.5 and 4.7)."""
    when = ((True, ""), (False, "per"), (True, "per"))
    named = [(first, *rest) for first, rest in itertools.product(("Greedy", "GreedyP", "GreedyPM", "MCB8"), when)]
    return [*named, ("", False, "per"), ("", False, "stretch-per")]


def _all_algorithms() -> dict[str, Algorithm]:
    """Return the 116 algorithms of Stillwell, section 5.1, by name."""
    found: dict[str, Algorithm] = {}
    for on_submit, on_end, periodic in _mechanisms():
        for optimise in ("AVG", "MAX" if periodic == "stretch-per" else "MIN"):
            plain = Algorithm(on_submit=on_submit, on_end=on_end, periodic=periodic, optimise=optimise)
            variants = [plain]
            if plain.uses_mcb8:
                variants += [msgspec.structs.replace(plain, min_flow_s=bound) for bound in (300, 600)]
                variants += [msgspec.structs.replace(plain, min_virtual_s=bound) for bound in (300, 600)]
            found.update((one.name, one) for one in variants)
    return found


ALGORITHMS = _all_algorithms()
"""The algorithms of the paper, by name."""


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm of a name: one of `ALGORITHMS`, or one with another number of seconds as MINFT or MINVT.

    OptionError if there is none; it says which names are near.

    Examples
    --------
    >>> algorithm_named("GreedyPM*/per/OPT=MIN/MINVT=600").min_virtual_s
    600
    >>> algorithm_named("/stretch-per/OPT=MAX").periodic
    'stretch-per'
    """
    found = ALGORITHMS.get(name) or _parsed(name)
    if found is None:
        near = difflib.get_close_matches(name, ALGORITHMS, n=3, cutoff=0.5)
        more = f"near are {', '.join(near)}" if near else f"one is {BEST}"
        raise OptionError("algorithm", f"{name!r} is not known; {more}")
    return found


def _parsed(name: str) -> Algorithm | None:
    """Return an algorithm of another MINFT or MINVT, or with both, if the name is well formed."""
    limits = {match[1]: int(match[2]) for match in _LIMIT.finditer(name)}
    plain = ALGORITHMS.get(_LIMIT.sub("", name).rstrip("/"))
    if plain is None or not limits or not plain.uses_mcb8:
        return None
    found = msgspec.structs.replace(plain, min_flow_s=limits.get("MINFT", 0), min_virtual_s=limits.get("MINVT", 0))
    return found if found.name == name else None


class FractionalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site gives jobs fractions of its nodes.

    Attributes
    ----------
    algorithm : str
        A name as in Stillwell, section 4.5.
    period_ms : int
        After which time the tasks of all jobs are placed anew, for an algorithm with ``per``.
    penalty_ms : int
        How long a job does no work that runs again after a pause, or of which a task has moved.
    long_ms : int
        The share of a job with more virtual time falls as the inverse of that; 0 for no bound, as in the paper.

    Raises
    ------
    OptionError
        If a value is impossible; it says what would be right.

    Examples
    --------
    >>> FractionalPolicy().label
    'GreedyPM*/per/OPT=MIN/MINVT=600'
    >>> FractionalPolicy(algorithm="GreedyP*/OPT=AVG", penalty_ms=0).label
    'GreedyP*/OPT=AVG penalty=0'
    """

    algorithm: str = BEST
    period_ms: int = 600 * MS_PER_S
    penalty_ms: int = 300 * MS_PER_S
    long_ms: int = 0
    discipline: str = NAME

    def __post_init__(self) -> None:
        if self.discipline != NAME:
            raise OptionError("discipline", f"{self.discipline!r} is not {NAME!r}, whose policy this is")
        algorithm_named(self.algorithm)
        if not 1 <= self.period_ms <= MAX_TIME_MS:
            raise OptionError("period", f"is {self.period_ms} ms; from 1 to {MAX_TIME_MS:,}")
        if not 0 <= self.penalty_ms <= MAX_TIME_MS:
            raise OptionError("penalty", f"is {self.penalty_ms} ms; from 0 to {MAX_TIME_MS:,}")
        if not 0 <= self.long_ms <= MAX_LONG_MS:
            raise OptionError("long", f"is {self.long_ms} ms; from 0 to {MAX_LONG_MS:,}")

    @property
    def label(self) -> str:
        """What tables and plots call it; it tells apart any two that schedule differently."""
        words = [self.algorithm]
        if algorithm_named(self.algorithm).periodic and self.period_ms != 600 * MS_PER_S:
            words.append(f"period={self.period_ms / MS_PER_S:g}")
        if self.penalty_ms != 300 * MS_PER_S:
            words.append(f"penalty={self.penalty_ms / MS_PER_S:g}")
        if self.long_ms:
            words.append(f"long={self.long_ms / MS_PER_S:g}")
        return " ".join(words)

    @property
    def averages(self) -> bool:
        """Whether yields come from a linear program (OPT=AVG)."""
        return algorithm_named(self.algorithm).optimise == "AVG"

    @property
    def moves_jobs(self) -> bool:
        """Whether running or paused jobs are moved to other nodes: on a live site they must be able to."""
        algorithm = algorithm_named(self.algorithm)
        return algorithm.uses_mcb8 or algorithm.on_submit != "Greedy"

    def codes(self) -> FractionalCodes:
        """Return the policy as compiled code reads it."""
        how = algorithm_named(self.algorithm)
        return FractionalCodes(
            on_submit=np.int64(SUBMIT_PARTS[how.on_submit]),
            periodic=np.int64(PERIODIC_PARTS[how.periodic]),
            yields=np.int64({"AVG": LEVEL, "MIN": OPT_MIN, "MAX": OPT_MAX}[how.optimise]),
            on_end=np.int64(how.on_end),
            min_flow_ms=np.int64(how.min_flow_s * MS_PER_S),
            min_virtual=np.int64(how.min_virtual_s * MS_PER_S * RATE_ONE),
            period_ms=np.int64(self.period_ms),
            penalty_ms=np.int64(self.penalty_ms),
            long_ms=np.int64(self.long_ms),
        )
