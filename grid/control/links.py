"""The network between the sites as the meta-scheduler sees it: the current links and each job's transfers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.kernels.links import (
    JOB_DATA,
    MAX_OVERHEAD,
    MAX_SPLIT_FACTOR,
    GridLinks,
    data_delay_ms,
    find_least_factors,
    new_memo,
)
from gridweave.grid.messages import LinksChanged, PathsMeasured
from gridweave.grid.sends import NOTHING, Sends
from gridweave.jit import prepared
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.correction import PairMeasured, correct
from gridweave.netmodel.kernels.state import COMMUNICATION, NetArrays, with_own_scratch
from gridweave.netmodel.model import NetworkModel, new_choice
from gridweave.site.disciplines.slots import copied
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.state import Arrays, arrays_state, restored_arrays


@dataclass(frozen=True, eq=False, slots=True)
class GridNetwork:
    """A grid's network, with the options that depend on it (docs/grid.md, "With a network").

    Parameters
    ----------
    model : NetworkModel
        The links at full speed; the model has the grid's sites in the grid's order.
    earliest_end : bool
        Whether a split uses the sites where the job ends earliest, instead of as few sites as possible.
    staging : int
        How jobs transfer their data: NO_DATA, BLOCKING or PREFETCH of `gridweave.grid.kernels.links`.
    exact_up_to : int
        As for `gridweave.netmodel.model.NetworkModel.choose_sites`.
    max_split_factor : float
        The largest factor by which a split may lengthen a job, from 1 to 10,001.

    Raises
    ------
    OptionError
        If `max_split_factor` is outside that range.
    """

    model: NetworkModel
    earliest_end: bool
    staging: int
    exact_up_to: int
    max_split_factor: float = MAX_SPLIT_FACTOR

    def __post_init__(self) -> None:
        check_max_split_factor(self.max_split_factor)


def check_max_split_factor(factor: float) -> None:
    """Raise OptionError if a limit on split factors is out of range."""
    if not 1 <= factor <= 1 + MAX_OVERHEAD:
        raise OptionError("max_split_factor", f"is {factor:g}; a number from 1 to {1 + MAX_OVERHEAD:,}, 2 for twice")


def new_links(network: GridNetwork, *, slots: int, widest: int) -> GridLinks:
    """Return a network's arrays for the grid queue, with `slots` empty job slots for jobs of up to `widest` nodes."""
    sites = len(network.model.topology.sites)
    return GridLinks(
        paths=network.model.arrays,
        communication=np.zeros(slots, COMMUNICATION),
        data=np.zeros(slots, JOB_DATA),
        staging=network.staging,
        exact_up_to=float(network.exact_up_to),
        max_factor=float(network.max_split_factor),
        choice=new_choice(sites, widest) if network.earliest_end else None,
        memo=new_memo(sites),
        changed=np.ones(1, np.int64),
        delay_ms=np.zeros(sites),
        room=np.zeros(sites, np.int64),
        taken_factor=np.ones(1),
        taken_data_ms=np.zeros(1, np.int64),
        least_factor=np.ones(slots),
        crossing_factor=np.zeros(slots),
        factor=np.ones(slots),
        data_ms=np.zeros(slots, np.int64),
    )


def unbounded(links: GridLinks) -> GridLinks:
    """Return the same links without a limit on split factors; the result shares all arrays."""
    return links._replace(max_factor=1.0 + MAX_OVERHEAD)


def more_slots(links: GridLinks, slots: int) -> GridLinks:
    """Return the links with this number of slots for jobs."""
    larger: dict[str, Any] = {}
    for name in ("communication", "data", "least_factor", "crossing_factor", "factor", "data_ms"):
        old = getattr(links, name)
        larger[name] = np.zeros(slots, old.dtype)
        larger[name][: len(old)] = old
    return links._replace(**larger)


class LinksState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of the links, and the jobs' transfers."""

    factors: tuple[float, ...] | None
    measured: tuple[PairMeasured, ...]
    arrays: Arrays
    sends: dict[int, Sends] = {}  # by slot


class KnownLinks:
    """The current links as the meta-scheduler sees them, and each job's transfers.

    `model` is the network as corrected by measurements. `arrays` holds the arrays for the kernels, which are replaced
    when the links or the number of slots change.
    """

    def __init__(self, network: GridNetwork, *, slots: int, widest: int) -> None:
        self._network = network
        self._factors: tuple[float, ...] | None = None
        self._measured: tuple[PairMeasured, ...] = ()
        # The transfers of jobs that send anything, by slot; a free slot keeps the transfers of its last job.
        self._sends: dict[int, Sends] = {}
        self.model = network.model
        self.arrays = new_links(network, slots=slots, widest=widest)
        self._find = prepared(find_least_factors, self.arrays, 0.0, 0.0)
        self._least = least_crossing(self.arrays.paths)

    def copy(self) -> KnownLinks:
        """Return a copy with its own arrays for the kernels' results."""
        new = copy.copy(self)
        new._sends = self._sends.copy()
        apart = copied(self.arrays._replace(paths=None))  # type: ignore[arg-type]
        new.arrays = apart._replace(paths=with_own_scratch(self.arrays.paths))
        return new

    def change(self, news: LinksChanged | PathsMeasured) -> None:
        """Apply a change or a measurement of the links.

        A measurement corrects the current model of the links; a path that is down stays down.
        """
        if isinstance(news, LinksChanged):
            self._factors = news.factors
        else:
            self._measured = news.pairs
        paths = self._paths()
        self._least = least_crossing(paths)
        self.arrays = with_paths(self.arrays, paths)

    def _paths(self) -> NetArrays:
        model = self._network.model if self._factors is None else self._network.model.with_cables(self._factors)
        self.model = correct(model, self._measured).model
        return self.model.arrays

    @property
    def news(self) -> list[LinksChanged | PathsMeasured]:
        """The messages that bring a new `KnownLinks` of the same network to the state of this one."""
        news: list[LinksChanged | PathsMeasured] = [] if self._factors is None else [LinksChanged(self._factors)]
        return [*news, PathsMeasured(self._measured)] if self._measured else news

    def state(self) -> LinksState:
        """Return the state, without arrays that can be recomputed from the network."""
        arrays = arrays_state(self._own_arrays())
        return LinksState(factors=self._factors, measured=self._measured, arrays=arrays, sends=self._sends)

    def restore(self, state: LinksState) -> None:
        """Restore the state of links of the same network."""
        self._factors, self._measured, self._sends = state.factors, state.measured, state.sends
        paths = self._paths()
        self._least = least_crossing(paths)
        arrays = restored_arrays(self._own_arrays(), state.arrays)
        self.arrays = arrays._replace(paths=paths, choice=self.arrays.choice, memo=self.arrays.memo)

    def _own_arrays(self) -> GridLinks:
        return self.arrays._replace(paths=None, choice=None, memo=None)  # type: ignore[arg-type]

    def grow(self, slots: int) -> None:
        """Enlarge the arrays to this number of slots."""
        self.arrays = more_slots(self.arrays, slots)

    def enter(self, slot: int, width: int, sends: Sends) -> None:
        """Record the transfers of a new job, with this width, in a slot."""
        self._sends.pop(slot, None)
        if sends != NOTHING:
            self._sends[slot] = sends
        links, talk = self.arrays, sends.communication
        links.communication[slot] = _shape_of(talk.pattern, width)
        row = links.communication[slot]
        row["fraction"], row["bits"] = talk.fraction, 8.0 * talk.message_bytes
        links.data[slot] = msgspec.structs.astuple(sends.data)
        rows = slice(slot, slot + 1)
        view = links._replace(
            communication=links.communication[rows],
            least_factor=links.least_factor[rows],
            crossing_factor=links.crossing_factor[rows],
        )
        self._find(view, *self._least)

    def sends(self, slot: int) -> Sends:
        """Return the transfers of the job in a slot."""
        return self._sends.get(slot, NOTHING)

    def data_delay_ms(self, slot: int, submit_ms: int, site: int, when_ms: int) -> int | None:
        """Return how long a job that starts at `when_ms` waits at a site for its data; None if the data has no path."""
        times = np.int64(submit_ms), np.int64(site), np.int64(when_ms)
        delay_ms = int(data_delay_ms(self.arrays, np.int64(slot), *times))
        return None if delay_ms == NEVER_MS else delay_ms


@lru_cache(maxsize=4096)
def _shape_of(pattern: str, width: int) -> np.void:
    """Return the communication record for a pattern and a job width, without the amount of traffic."""
    record: np.void = Communication(pattern=pattern).records([width])[0]
    return record


def with_paths(links: GridLinks, paths: NetArrays) -> GridLinks:
    """Return the links with new paths; the result shares all other arrays, except that cached results are dropped."""
    changed = links._replace(paths=paths)
    changed.memo.forget()
    changed.changed[0] = 1
    find_least_factors(changed, *least_crossing(paths))
    return changed


def least_crossing(paths: NetArrays) -> tuple[float, float]:
    """Return the smallest cost of a message between any two sites: the lag [ms] and the time per bit [ms]."""
    between = ~np.eye(len(paths.lag_ms), dtype=np.bool_)
    return float(paths.lag_ms[between].min(initial=np.inf)), _least_ms_per_bit(paths, between)


def _least_ms_per_bit(paths: NetArrays, between: npt.NDArray[np.bool_]) -> float:
    """Return the smallest time per bit [ms] on the path between any two sites."""
    first = paths.first
    widest = np.zeros(len(first) - 1)
    if len(paths.links):
        crossed = first[1:] > first[:-1]
        widest[crossed] = np.maximum.reduceat(paths.ms_per_bit[paths.links], first[:-1][crossed])
    return float(np.maximum(widest.reshape(between.shape), paths.stream_ms_per_bit)[between].min(initial=np.inf))
