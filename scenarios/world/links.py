"""The links of a network in the simulated world: jobs send over them, and they change.

Who feels a change, who is told, and which jobs are without hope then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.kernels.links_placement import find_splittable
from gridweave.grid.kernels.state import empty_grid
from gridweave.grid.messages import GridEvent, GridJobHopeless, LinksChanged
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable
from gridweave.netmodel.model import NetworkModel
from gridweave.scenarios.batch.grid_network import WHY_HOPELESS, GridNet, hopeless_from, links_of, network_of
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Routes
from gridweave.scenarios.world.traffic import LinkTraffic
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.kernels.state import NEVER_MS


class WorldLinks:
    """The links between the sites, as far as the grid may have these, and their timetable, carried out.

    ``network`` is what the grid knows, ``traffic`` what jobs send.
    """

    def __init__(self, workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> None:
        net.check(np.array(nodes, np.int64), policy)
        if net.data != "none" and policy.control == "none":
            raise OptionError("data", "is not moved under control 'none', which knows no links")
        self.network = network_of(net)
        splittable = splittable_jobs(workload, nodes, policy)
        self.traffic = LinkTraffic(workload, self.network, net.contention, nodes, splittable)
        self._changes = list(_changes_of(net))
        self._hopeless_ms = hopeless_jobs(workload, nodes, policy, net)
        by_time = ((at_ms, job_id) for job_id, at_ms in self._hopeless_ms.items() if 0 < at_ms < NEVER_MS)
        self._by_time = sorted(by_time, reverse=True)
        self._period = -1

    @property
    def instants_ms(self) -> list[int]:
        """When links change."""
        return [at_ms for at_ms, *_ in self._changes]

    @property
    def is_failing(self) -> bool:
        """Whether some link is slow or down now, and links are still to change."""
        return 0 <= self._period < len(self._changes) - 1 and min(self._changes[self._period][1]) < 1

    def change(self, period: int, routes: Routes) -> tuple[list[GridEvent], int]:
        """Let the links be as from this change on; return what the grid is told, and how many sites were cut off."""
        self._period = period
        at_ms, factors, model = self._changes[period]
        self.traffic.links_changed(model)
        events: list[GridEvent] = [LinksChanged(factors)]
        while self._by_time and self._by_time[-1][0] <= at_ms:
            # The grid passes over those that it does not have.
            events.append(GridJobHopeless(self._by_time.pop()[1], WHY_HOPELESS))
        return events, routes.change(model)

    def handed_in(self, now_ms: int, job_id: int) -> list[GridEvent]:
        """Let the input of a job that has hope set out; return what the grid is told of one that has none."""
        if self._hopeless_ms.get(job_id, int(NEVER_MS)) <= now_ms:
            return [GridJobHopeless(job_id, WHY_HOPELESS)]
        self.traffic.handed_in(now_ms, job_id)
        return []

    def check_all_move(self, now_ms: int) -> None:
        """Refuse a run in which a job stands still for ever."""
        if self._period == len(self._changes) - 1:
            self.traffic.check_all_move(now_ms)


def _changes_of(net: GridNet) -> Iterator[tuple[int, tuple[float, ...], NetworkModel]]:
    """Yield each instant at which links change, each cable's part of its bandwidth from then on, and the network."""
    if net.timetable is not None:
        for period, (at_ms, model) in enumerate(net.periods()):
            if period:
                yield at_ms, tuple(net.timetable.factors[period].tolist()), model


def merged(one: Timetable, other: Timetable) -> Timetable:
    """Return the timetable of two causes of change in a topology: of each cable the worse of both counts."""
    instants_ms = np.union1d(one.instants_ms, other.instants_ms)
    starts_ms = [-1, *instants_ms.tolist()]
    factors = [np.minimum(*(each.factors[each.period_of(at_ms)] for each in (one, other))) for at_ms in starts_ms]
    return Timetable(one.topology, instants_ms, np.array(factors))


def splittable_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy) -> npt.NDArray[np.bool_]:
    """Return for each job whether it might be split, on the nodes that the grid may have."""
    found = np.zeros(len(workload), np.bool_)
    if len(workload):
        state = empty_grid(np.array(nodes, np.int64), slots=len(workload))
        fill_jobs(state.jobs, workload, np.arange(len(workload)), policy.order)
        find_splittable(state, policy.codes(), found)
    return found


def hopeless_jobs(workload: Workload, nodes: Sequence[int], policy: GridPolicy, net: GridNet) -> dict[int, int]:
    """Return for each job from when on it can be placed no more on the idle grid, whatever the links become.

    Jobs that are too wide for any links are not among them: the grid refuses these by itself.
    """
    if policy.control == "none":
        return {}
    sites = np.array(nodes, np.int64)
    fits = {int(width): policy.why_never(sites, int(width)) is None for width in np.unique(workload.width)}
    rows = np.flatnonzero([fits[width] for width in workload.width.tolist()])
    if not len(rows):
        return {}
    state = empty_grid(sites, slots=len(rows))
    fill_jobs(state.jobs, workload, rows, policy.order)
    found_ms = hopeless_from(state, policy.codes()._replace(net=links_of(net, workload, rows)), net)
    return dict(zip(workload.job_id[rows].tolist(), found_ms.tolist(), strict=True))
