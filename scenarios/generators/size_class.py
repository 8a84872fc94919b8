"""One class of widths of the hyper-Erlang workload model, and the jobs that are drawn from it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import InputError
from gridweave.scenarios.generators.hyper_erlang_law import FloatArray, HyperErlang
from gridweave.scenarios.workload import MAX_WIDTH

Width = Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]

# Jobs of a class are drawn so many at a time. Fixed, so that a longer workload begins with the shorter one.
_CHUNK = 1024


class SizeClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The jobs of one class of widths.

    Parameters
    ----------
    max_width : int
        Upper bound of the widths.
    widths : list of int
        The widths that occur, ascending.
    counts : list of int
        Jobs of each width.
    interarrival : HyperErlang
        Time between the submissions of two jobs of this class.
    run : HyperErlang
        Run time.

    Raises
    ------
    InputError
        If the columns do not agree with each other.
    """

    max_width: Width
    widths: list[Width]
    counts: list[Count]
    interarrival: HyperErlang
    run: HyperErlang

    def __post_init__(self) -> None:
        if not self.counts or len(self.widths) != len(self.counts):
            raise InputError("the widths and counts of a class must have one common length, at least 1")
        if max(self.widths) > self.max_width:
            raise InputError(f"a width of {max(self.widths)} stands in the class up to {self.max_width}")

    @property
    def jobs(self) -> int:
        """Jobs that the class was learnt from."""
        return sum(self.counts)

    def jobs_per_ms(self, nodes: int) -> float:
        """Return the rate at which jobs of at most this width arrive.

        Parameters
        ----------
        nodes : int

        Returns
        -------
        float
        """
        narrow = sum(count for width, count in zip(self.widths, self.counts, strict=True) if width <= nodes)
        return narrow / self.jobs / self.interarrival.moment(1)

    def nodes_in_use(self, nodes: int) -> float:
        """Return the nodes that jobs of at most this width keep busy on the average: rate x run time x width.

        Parameters
        ----------
        nodes : int

        Returns
        -------
        float
        """
        pairs = zip(self.widths, self.counts, strict=True)
        mean_width = sum(width * count for width, count in pairs if width <= nodes) / self.jobs
        return mean_width * self.run.moment(1) / self.interarrival.moment(1)


class Stream:
    """The jobs of one class, drawn as far as they are asked for.

    The process starts as one that has been running for ever: the first gap is the rest of an interval under way.

    Parameters
    ----------
    group : SizeClass
    nodes : int
        Jobs that are wider are left out.
    rng : numpy.random.Generator
        Arrivals, widths and run times are drawn from three streams spawned from it.
    """

    def __init__(self, group: SizeClass, nodes: int, rng: np.random.Generator) -> None:
        self._group, self._nodes = group, nodes
        self._arrivals, self._widths, self._runs = rng.spawn(3)
        self._cumulated = np.cumsum(np.asarray(group.counts, np.int64))
        self._last_ms = 0.0
        self._chunks: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def jobs_until(self, horizon_ms: float) -> int:
        """Draw jobs up to a time and return how many there are by then.

        Parameters
        ----------
        horizon_ms : float

        Returns
        -------
        int
        """
        while self._last_ms <= horizon_ms:
            self._draw()
        return sum(int(np.searchsorted(submit_ms, horizon_ms, side="right")) for submit_ms, _, _ in self._chunks)

    def columns_until(self, horizon_ms: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the jobs up to a time, up to which they have been drawn.

        Parameters
        ----------
        horizon_ms : float

        Returns
        -------
        submit_ms, width, run_ms : numpy.ndarray of float64, shape (n,)
            Submit times ascending.
        """
        submit_ms, width, run_ms = (np.concatenate(parts) for parts in zip(*self._chunks, strict=True))
        count = int(np.searchsorted(submit_ms, horizon_ms, side="right"))
        return submit_ms[:count], width[:count], run_ms[:count]

    def _draw(self) -> None:
        gaps_ms = self._group.interarrival.sample_ms(self._arrivals, _CHUNK)
        if not self._chunks:
            gaps_ms[0] = self._group.interarrival.sample_residual_ms(self._arrivals)
        submit_ms = self._last_ms + np.cumsum(gaps_ms)
        pick = self._widths.integers(self._cumulated[-1], size=_CHUNK)
        width = np.asarray(self._group.widths, np.float64)[np.searchsorted(self._cumulated, pick, side="right")]
        run_ms = self._group.run.sample_ms(self._runs, _CHUNK)
        fits = width <= self._nodes
        self._last_ms = float(submit_ms[-1])
        self._chunks.append((submit_ms[fits], width[fits], run_ms[fits]))
