"""The policy of a fractional site: the names of the 116 algorithms, and all other options.

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
"""The name of the discipline."""

MS_PER_S = 1000

MAX_LONG_MS = 10**12
"""Maximum value of ``long_ms``; multiplied by the maximum weight, it must fit into 64 bits."""

SUBMIT_PARTS = {"": NOTHING, "Greedy": GREEDY, "GreedyP": GREEDY_P, "GreedyPM": GREEDY_PM, "MCB8": MCB8}
PERIODIC_PARTS = {"": NOTHING, "per": PER, "stretch-per": STRETCH_PER}

BEST = "GreedyPM*/per/OPT=MIN/MINVT=600"
"""The algorithm recommended by Stillwell (section 5.3.2), together with a period of ten times the penalty."""

_LIMIT = re.compile(r"(MINFT|MINVT)=([1-9][0-9]{0,8})")


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an algorithm's name.

    Attributes
    ----------
    on_submit : str
        How a new job is placed: a key of `SUBMIT_PARTS`.
    on_end : bool
        Whether jobs are also placed when a job ends (``*``).
    periodic : str
        How all jobs are placed at the end of each period: a key of `PERIODIC_PARTS`.
    optimise : str
        The optimisation goal for yields: ``AVG``, ``MIN``, or, for stretch-per, ``MAX``.
    min_flow_s, min_virtual_s : int
        MINFT and MINVT, in seconds; 0 if not set.
    """

    on_submit: str = ""
    on_end: bool = False
    periodic: str = ""
    optimise: str = "MIN"
    min_flow_s: int = 0
    min_virtual_s: int = 0

    @property
    def uses_mcb8(self) -> bool:
        """Whether the algorithm uses MCB8, so that MINFT and MINVT have an effect."""
        return self.periodic != "" or self.on_submit == "MCB8"

    @property
    def name(self) -> str:
        """The algorithm's name in the paper."""
        parts = [self.on_submit + "*" * self.on_end, *([self.periodic] if self.periodic else [])]
        parts.append(f"OPT={self.optimise}")
        parts += [f"MINFT={self.min_flow_s}"] * (self.min_flow_s > 0)
        parts += [f"MINVT={self.min_virtual_s}"] * (self.min_virtual_s > 0)
        return "/".join(parts)


def _mechanisms() -> list[tuple[str, bool, str]]:
    """Return the 14 methods of placing tasks (Stillwell, sections 4.5 and 4.7)."""
    when = ((True, ""), (False, "per"), (True, "per"))
    named = [(first, *rest) for first, rest in itertools.product(("Greedy", "GreedyP", "GreedyPM", "MCB8"), when)]
    return [*named, ("", False, "per"), ("", False, "stretch-per")]


def _all_algorithms() -> dict[str, Algorithm]:
    """Return the 116 algorithms of Stillwell, section 5.1, by name."""
    algorithms: dict[str, Algorithm] = {}
    for on_submit, on_end, periodic in _mechanisms():
        for optimise in ("AVG", "MAX" if periodic == "stretch-per" else "MIN"):
            plain = Algorithm(on_submit=on_submit, on_end=on_end, periodic=periodic, optimise=optimise)
            variants = [plain]
            if plain.uses_mcb8:
                variants += [msgspec.structs.replace(plain, min_flow_s=bound) for bound in (300, 600)]
                variants += [msgspec.structs.replace(plain, min_virtual_s=bound) for bound in (300, 600)]
            algorithms.update((variant.name, variant) for variant in variants)
    return algorithms


ALGORITHMS = _all_algorithms()
"""The algorithms of the paper, by name."""


def algorithm_named(name: str) -> Algorithm:
    """Look up an algorithm by name; the values of MINFT and MINVT may differ from those in `ALGORITHMS`.

    Raises
    ------
    OptionError
        If the name is unknown; the message suggests similar names.

    Examples
    --------
    >>> algorithm_named("GreedyPM*/per/OPT=MIN/MINVT=600").min_virtual_s
    600
    >>> algorithm_named("/stretch-per/OPT=MAX").periodic
    'stretch-per'
    """
    algorithm = ALGORITHMS.get(name) or _parsed(name)
    if algorithm is None:
        near = difflib.get_close_matches(name, ALGORITHMS, n=3, cutoff=0.5)
        more = f"similar names: {', '.join(near)}" if near else f"for example {BEST}"
        raise OptionError("algorithm", f"{name!r} is not known; {more}")
    return algorithm


def _parsed(name: str) -> Algorithm | None:
    """Parse an algorithm's name with any values of MINFT and MINVT; return None if the name is malformed."""
    limits = {match[1]: int(match[2]) for match in _LIMIT.finditer(name)}
    plain = ALGORITHMS.get(_LIMIT.sub("", name).rstrip("/"))
    if plain is None or not limits or not plain.uses_mcb8:
        return None
    algorithm = msgspec.structs.replace(plain, min_flow_s=limits.get("MINFT", 0), min_virtual_s=limits.get("MINVT", 0))
    return algorithm if algorithm.name == name else None


class FractionalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a fractional site.

    Attributes
    ----------
    algorithm : str
        A name as in Stillwell, section 4.5.
    period_ms : int
        Time between two placements of all jobs, if the name of the algorithm contains ``per``.
    penalty_ms : int
        Time for which a job does not work after it resumes or one of its tasks moves.
    long_ms : int
        Above this virtual time, a job's share is inversely proportional to its virtual time; 0: never, as in the
        paper.

    Raises
    ------
    OptionError
        If a value is out of range or unknown; the message names the option and the allowed values.

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
            raise OptionError("discipline", f"is {self.discipline!r}; expected {NAME!r}")
        algorithm_named(self.algorithm)
        if not 1 <= self.period_ms <= MAX_TIME_MS:
            raise OptionError("period", f"is {self.period_ms} ms; expected 1 to {MAX_TIME_MS:,} ms")
        if not 0 <= self.penalty_ms <= MAX_TIME_MS:
            raise OptionError("penalty", f"is {self.penalty_ms} ms; expected 0 to {MAX_TIME_MS:,} ms")
        if not 0 <= self.long_ms <= MAX_LONG_MS:
            raise OptionError("long", f"is {self.long_ms} ms; expected 0 to {MAX_LONG_MS:,} ms")

    @property
    def label(self) -> str:
        """The label in tables and plots; policies that schedule differently have different labels."""
        words = [self.algorithm]
        if algorithm_named(self.algorithm).periodic and self.period_ms != 600 * MS_PER_S:
            words.append(f"period={self.period_ms / MS_PER_S:.15g}")
        if self.penalty_ms != 300 * MS_PER_S:
            words.append(f"penalty={self.penalty_ms / MS_PER_S:.15g}")
        if self.long_ms:
            words.append(f"long={self.long_ms / MS_PER_S:.15g}")
        return " ".join(words)

    @property
    def averages(self) -> bool:
        """Whether a linear program computes the yields (OPT=AVG)."""
        return algorithm_named(self.algorithm).optimise == "AVG"

    @property
    def moves_jobs(self) -> bool:
        """Whether running or paused jobs may move to other nodes; on a live site, jobs must then support moves."""
        algorithm = algorithm_named(self.algorithm)
        return algorithm.uses_mcb8 or algorithm.on_submit != "Greedy"

    def codes(self) -> FractionalCodes:
        """Return the policy, encoded for the kernels."""
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
