"""What a job sends between its ranks, as its user writes it down and as kernels read it."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
