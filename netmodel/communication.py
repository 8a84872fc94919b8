"""What a job sends between its ranks, as its user writes it down and as kernels read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, check_known
from gridweave.netmodel.kernels.state import (
    ALL_TO_ALL,
    COMMUNICATION,
    MASTER_WORKERS,
    NEIGHBOURS,
    NO_COMMUNICATION,
)
from gridweave.values import Kinds, named_values, parse_bytes

PATTERNS = {
    "none": NO_COMMUNICATION,
    "all-to-all": ALL_TO_ALL,
    "ring": NEIGHBOURS,
    "2d-neighbours": NEIGHBOURS,
    "3d-neighbours": NEIGHBOURS,
    "master-workers": MASTER_WORKERS,
}
"""Who sends to whom."""

GRIDS_BY_NAME = {"ring": 1, "2d-neighbours": 2, "3d-neighbours": 3}
"""Patterns of neighbours, and the dimensions of the grid that their ranks stand in."""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """How a job communicates (docs/netmodel.md, "What a job is taken to be").

    Attributes
    ----------
    fraction : float
        Part of its run time on the network of one site that it spends sending and waiting for messages, 0 to 1.
    message_bytes : float
        Size of a message, >= 0.
    pattern : str
        ``none``, ``all-to-all``, ``ring``, ``2d-neighbours``, ``3d-neighbours`` or ``master-workers``.

    Raises
    ------
    OptionError
        If the pattern is unknown, or a number makes no sense.

    Examples
    --------
    >>> Communication(fraction=0.2, message_bytes=65536, pattern="ring")
    Communication(fraction=0.2, message_bytes=65536, pattern='ring')
    """

    fraction: float = 0.0
    message_bytes: float = 0.0
    pattern: str = "none"

    def __post_init__(self) -> None:
        check_known("pattern", self.pattern, PATTERNS)
        if not 0 <= self.fraction <= 1:
            raise OptionError("fraction", f"is {self.fraction:g}; a part of the run time, from 0 to 1")
        if not 0 <= self.message_bytes < math.inf:
            raise OptionError("message_bytes", f"is {self.message_bytes:g}; bytes, from 0 up")

    def records(self, widths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """Return this communication as kernels read it, for jobs of these widths.

        Returns
        -------
        numpy.ndarray of COMMUNICATION, shape (jobs,)
        """
        records = np.zeros(len(widths), COMMUNICATION)
        records["fraction"] = self.fraction
        records["bits"] = 8.0 * self.message_bytes
        records["pattern"] = PATTERNS[self.pattern]
        records["width"] = widths
        shapes = {width: self._shape(width) for width in sorted({int(width) for width in widths})}
        rows = np.array([shapes[int(width)] for width in widths], np.int64).reshape(-1, 4)
        for place, name in enumerate(("messages", "planes", "rows", "columns")):
            records[name] = rows[:, place]
        return records

    def _shape(self, width: int) -> tuple[int, int, int, int]:
        """Return the messages of the busiest rank in one exchange, and the grid that the ranks stand in."""
        dimensions = GRIDS_BY_NAME.get(self.pattern, 0)
        planes, rows, columns = (1, 1, *rank_grid(width, dimensions))[-3:] if dimensions else (1, 1, width)
        if dimensions:
            return 2 * ((planes > 1) + (rows > 1) + (columns > 1)), planes, rows, columns
        return (0 if self.pattern == "none" else width - 1), planes, rows, columns


PROFILES = {
    "none": Communication(),
    "light": Communication(fraction=0.05, message_bytes=1e6, pattern="3d-neighbours"),
    "nearest-neighbour": Communication(fraction=0.2, message_bytes=4e5, pattern="3d-neighbours"),
    "all-to-all": Communication(fraction=0.4, message_bytes=524_288, pattern="all-to-all"),
    "ring": Communication(fraction=0.1, message_bytes=6.4e6, pattern="ring"),
    "master-workers": Communication(fraction=0.1, message_bytes=1e6, pattern="master-workers"),
}
"""Communication by name; docs/netmodel.md, "Profiles", has the source of each number."""

_EXACT: Kinds = {"fraction": float, "pattern": str, "message": partial(parse_bytes, "message")}


def parse_communication(option: str, text: str) -> Communication:
    """Read a communication as people write it: the name of a profile, or its fraction, pattern and message size.

    Raises
    ------
    OptionError
        If the option names no profile, or says something that is not possible.

    Examples
    --------
    >>> parse_communication("--communication", "fraction=0.2,pattern=ring,message=64kB")
    Communication(fraction=0.2, message_bytes=64000.0, pattern='ring')
    >>> parse_communication("--communication", "light") is PROFILES["light"]
    True
    """
    if "=" not in text:
        check_known(option, text.strip(), PROFILES)
        return PROFILES[text.strip()]
    right = "write for example fraction=0.2,pattern=all-to-all,message=1MB, or the name of a profile"
    found = named_values(option, text, _EXACT, right)
    missing = [name for name in _EXACT if name not in found]
    if missing:
        raise OptionError(option, f"{text!r}: {missing[0]} is missing; {right}")
    try:
        return Communication(fraction=found["fraction"], message_bytes=found["message"], pattern=found["pattern"])
    except OptionError as error:
        raise OptionError(option, f"{error.option} {error.problem}") from None


def communication_text(communication: Communication) -> str:
    """Return how people write a communication.

    Examples
    --------
    >>> communication_text(PROFILES["light"])
    'light'
    >>> communication_text(Communication(fraction=0.2, message_bytes=64e3, pattern="ring"))
    'fraction=0.2,pattern=ring,message=64000B'
    """
    named = next((name for name, profile in PROFILES.items() if profile == communication), None)
    exact = f"fraction={communication.fraction:g},pattern={communication.pattern}"
    return named or f"{exact},message={communication.message_bytes:.0f}B"


def rank_grid(width: int, dimensions: int) -> tuple[int, ...]:
    """Return the grid that so many ranks stand in: as near to a square or a cube as their number allows.

    The sides ascend. One is the largest divisor of the width that is not above its root, the next the same of what is
    left.

    Examples
    --------
    >>> rank_grid(336, 2), rank_grid(336, 3), rank_grid(7, 2)
    ((16, 21), (6, 7, 8), (1, 7))
    """
    sides = []
    for left in range(dimensions, 1, -1):
        root = round(width ** (1 / left)) + 1
        side = max((side for side in range(1, root + 1) if side**left <= width and width % side == 0), default=1)
        sides.append(side)
        width //= side
    return tuple(sorted((*sides, width)))
