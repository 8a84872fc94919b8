"""Communication between the ranks of a job: how users specify it, and the records that kernels read."""

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
"""Pattern numbers used by the kernels, by pattern name."""

GRIDS_BY_NAME = {"ring": 1, "2d-neighbours": 2, "3d-neighbours": 3}
"""Number of dimensions of the rank grid for each neighbour pattern."""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """How a job communicates (docs/netmodel.md, "The model of a job").

    Attributes
    ----------
    fraction : float
        Share of the run time on a single site that ranks spend sending and waiting for messages, from 0 to 1.
    message_bytes : float
        Size of a message, at least 0.
    pattern : str
        ``none``, ``all-to-all``, ``ring``, ``2d-neighbours``, ``3d-neighbours`` or ``master-workers``.

    Raises
    ------
    OptionError
        If the pattern is unknown, or a number is out of range.

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
            raise OptionError("fraction", f"is {self.fraction:g}; expected a fraction of the run time, from 0 to 1")
        if not 0 <= self.message_bytes < math.inf:
            raise OptionError("message_bytes", f"is {self.message_bytes:g}; expected at least 0 bytes")

    def records(self, widths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """Return this communication as records for kernels, for jobs of the given widths.

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
        for column, name in enumerate(("messages", "planes", "rows", "columns")):
            records[name] = rows[:, column]
        return records

    def _shape(self, width: int) -> tuple[int, int, int, int]:
        """Return the number of messages that the busiest rank sends per exchange, and the shape of the rank grid."""
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
"""Named communication profiles; docs/netmodel.md, "Profiles", gives the source of each number."""

_EXACT: Kinds = {"fraction": float, "pattern": str, "message": partial(parse_bytes, "message")}


def parse_communication(option: str, text: str) -> Communication:
    """Parse a job's communication, given as a profile name or as fraction, pattern and message size.

    Raises
    ------
    OptionError
        If the profile is unknown, or a value is missing or invalid.

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
    expected = "write for example fraction=0.2,pattern=all-to-all,message=1MB, or the name of a profile"
    values = named_values(option, text, _EXACT, expected)
    missing = [name for name in _EXACT if name not in values]
    if missing:
        raise OptionError(option, f"{text!r}: {missing[0]} is missing; {expected}")
    try:
        return Communication(fraction=values["fraction"], message_bytes=values["message"], pattern=values["pattern"])
    except OptionError as error:
        raise OptionError(option, f"{error.option} {error.problem}") from None


def communication_text(communication: Communication) -> str:
    """Format a job's communication as text that `parse_communication` can read.

    Examples
    --------
    >>> communication_text(PROFILES["light"])
    'light'
    >>> communication_text(Communication(fraction=0.2, message_bytes=64e3, pattern="ring"))
    'fraction=0.2,pattern=ring,message=64000B'
    """
    profile_name = next((name for name, profile in PROFILES.items() if profile == communication), None)
    exact = f"fraction={communication.fraction:g},pattern={communication.pattern}"
    return profile_name or f"{exact},message={communication.message_bytes:.0f}B"


def rank_grid(width: int, dimensions: int) -> tuple[int, ...]:
    """Return the sides of a grid of ranks that is as close to a square or cube as its size allows.

    The sides ascend. Each is the largest divisor of the remaining size that does not exceed its square or cube root.

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
