"""The runs behind what the links between sites cost: an extract of CTC on four sites, with several kinds of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Change, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.problems import Problems
from gridweave.netmodel.reading import build_topology
from gridweave.netmodel.tables import NetTable
from gridweave.netmodel.topology import Topology
from gridweave.scenarios.communication_columns import with_communication
from gridweave.scenarios.grid_net import GridNet
from gridweave.scenarios.grid_simulator import GridResult, simulate_grid
from gridweave.scenarios.published.grid_runs import CONFIGURATIONS, GridRuns
from gridweave.scenarios.scenario.topology_files import TOML, find_topology, text_of, with_source_of
from gridweave.scenarios.workload import Workload

EXTRACT, MACHINES = "10_20k_org", "m128"
FRACTION, MESSAGE_BYTES = 0.1, 1e6
"""Where nothing else is said: a tenth of the time on one site, and messages of a megabyte."""

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
SIZES = (1e4, 1e5, 1e6, 1e7, 1e8)
SENDING = tuple(pattern for pattern in PATTERNS if pattern != "none")
OVERHEADS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Streit's constant p, in the runs that the model is compared with."""

PLACES: dict[str, tuple[str, ...]] = {
    "Geant2012.gml": ("UK", "CH", "IT", "GR"),
    "europe.toml": ("London", "Geneva", "Milan", "Athens"),
}
"""Networks in the order in which they are looked for, and the nodes at which the four sites are."""

CUT_FROM, CUT_TO = 0.4, 0.6
"""When the link is cut and mended, as parts of the time from the first submission to the last."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes
    ----------
    mode : str
    pattern : str
        Of all jobs.
    fraction, message_bytes : float
        Of all jobs.
    split, contention, exchange : str
        As in a scenario.
    cut : str
        What becomes of the busiest link in the middle of the run: a key of `CUTS`.
    """

    mode: str
    pattern: str = "none"
    fraction: float = FRACTION
    message_bytes: float = MESSAGE_BYTES
    split: str = "fewest"
    contention: str = "none"
    exchange: str = "synchronous"
    cut: str = "none"


CUTS = {"none": 1.0, "slow": 0.01, "cut": 0.0}
"""Which part of its bandwidth the link has left."""


class NetworkRuns:
    """The schedules of the study, each made once.

    Parameters
    ----------
    runs : GridRuns
        Has the extract.
    """

    def __init__(self, runs: GridRuns) -> None:
        self._nodes = CONFIGURATIONS[MACHINES]
        # No job is wider than a site: every mode runs the same jobs.
        self._jobs = runs.extract(EXTRACT, max_width=max(self._nodes))
        self._results: dict[Case | float, GridResult] = {}
        self._models: dict[str, NetworkModel] = {}

    @cached_property
    def source(self) -> str:
        """The file of the network: GEANT if it is at hand, or else the one that ships."""
        for name in PLACES:
            try:
                find_topology(name)
            except InputError:
                continue
            return name
        raise InputError(f"none of {', '.join(PLACES)} is at hand")

    @cached_property
    def topology(self) -> Topology:
        """The network, with the four sites."""
        name = self.source
        sites = PLACES[name]
        table = NetTable(file=name)
        if name.endswith(TOML):
            table = with_source_of(table, text_of(find_topology(name)))
        problems = Problems(name)
        topology = build_topology(table, name, lambda file: text_of(find_topology(file)), problems, sites)
        problems.raise_if_any()
        assert topology is not None
        return topology

    def model(self, exchange: str = "synchronous") -> NetworkModel:
        """Return the model of the network."""
        if exchange not in self._models:
            self._models[exchange] = NetworkModel.of_table(NetTable(exchange=exchange), self.topology)
        return self._models[exchange]

    def workload(self, case: Case) -> Workload:
        """Return the jobs of a run."""
        return with_communication(
            self._jobs,
            pattern=case.pattern,
            fraction=case.fraction,
            message_bytes=case.message_bytes,
            rng=np.random.default_rng(0),  # nothing is drawn
        )

    def result(self, case: Case) -> GridResult:
        """Return a schedule with the network.

        Parameters
        ----------
        case : Case

        Returns
        -------
        GridResult
        """
        if case.mode == "sharing":
            case = Case("sharing")
        if case not in self._results:
            net = GridNet(
                model=self.model(case.exchange),
                timetable=None if case.cut == "none" else self.timetable(case.cut),
                contention=case.contention,
                split=case.split,
            )
            used = None if case.mode == "sharing" else net
            self._results[case] = simulate_grid(
                self.workload(case),
                self._nodes,
                GridPolicy(mode=case.mode),
                net=used,
            )
        return self._results[case]

    def constant(self, overhead: float, mode: str = "multi-site") -> GridResult:
        """Return a schedule under Streit's constant p."""
        if overhead not in self._results:
            self._results[overhead] = simulate_grid(self._jobs, self._nodes, GridPolicy(mode=mode, overhead=overhead))
        return self._results[overhead]

    @cached_property
    def busiest_cable(self) -> int:
        """The cable that most of the paths between sites cross; of several the first."""
        paths, sites = self.model().paths, len(self.topology.sites)
        crossed = [
            int(self.topology.cable[link])
            for one in range(sites)
            for other in range(sites)
            for link in paths.between(one, other)
        ]
        return int(np.argmax(np.bincount(crossed)))

    @property
    def busiest_link(self) -> str:
        """What people call it."""
        return self.topology.link_label(int(np.argmax(self.topology.cable == self.busiest_cable)))

    @property
    def cut_ms(self) -> tuple[int, int]:
        """When the link is cut, and when it is mended."""
        first, last = int(self._jobs.submit_ms[0]), int(self._jobs.submit_ms[-1])
        return tuple(first + round(part * (last - first)) for part in (CUT_FROM, CUT_TO))  # type: ignore[return-value]

    def timetable(self, cut: str) -> Timetable:
        """Return when the busiest link has which part of its bandwidth."""
        begin_ms, end_ms = self.cut_ms
        cables = (self.busiest_cable,)
        return Timetable.of(
            self.topology, [Change(begin_ms, "cut", cables, CUTS[cut]), Change(end_ms, "cut", cables, 1.0)]
        )

    def awrt_s(self, result: GridResult) -> float:
        """Return the average response time weighted by width, in seconds: no weight depends on the schedule."""
        return result.metrics().awrt_width_ms / 1000

    def change_pct(self, case: Case) -> float:
        """Return by how much AWRT differs from that of sharing, in per cent."""
        return 100 * (self.awrt_s(self.result(case)) / self.awrt_s(self.result(Case("sharing"))) - 1)


def overheads_of(result: GridResult) -> npt.NDArray[np.float64]:
    """Return by which part of itself each multi-site job took longer: what p was for it.

    Parameters
    ----------
    result : GridResult

    Returns
    -------
    numpy.ndarray of float64, shape (multi-site jobs,)
        In the order of the workload.
    """
    rows = np.flatnonzero(result.multi_site)
    return (result.end_ms[rows] - result.start_ms[rows]) / result.workload.run_ms[rows] - 1.0


def weighted_overhead(result: GridResult) -> float:
    """Return the mean p of the multi-site jobs, each weighted by what it would take of one site's node time.

    Parameters
    ----------
    result : GridResult

    Returns
    -------
    float
        NaN if there are none.
    """
    rows = np.flatnonzero(result.multi_site)
    if not len(rows):
        return float("nan")
    area = result.workload.width[rows] * result.workload.run_ms[rows].astype(np.float64)
    return float(np.average(overheads_of(result), weights=area))
