"""Parts of a node as whole numbers, so that nothing is rounded when they are summed: a node is full or it is not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UNIT = 1_000_000
"""All of a node's CPU, or all of its memory."""


def parts_of_node(fractions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return fractions of a node as whole millionths; what is between two is rounded up, so that no node is overfull.

    Examples
    --------
    >>> parts_of_node([0.1, 1 / 3, 1]).tolist()
    [100000, 333334, 1000000]
    """
    exact = np.asarray(fractions, np.float64) * UNIT
    near = np.rint(exact)
    return np.where(np.abs(exact - near) < 1e-6, near, np.ceil(exact)).astype(np.int64)
