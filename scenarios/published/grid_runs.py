"""The runs behind chapter 7 of Streit's thesis: the machine configurations, the CTC extracts, and their schedules."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid import GridResult, simulate_grid
from gridweave.scenarios.published.thesis_runs import THESIS_TRACES
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.workload.transform import cut, split

CONFIGURATIONS: dict[str, tuple[int, ...]] = {
    "m64": (*[64] * 4, *[32] * 6, *[8] * 8),
    "m64-8": (64,) * 8,
    "m128": (128,) * 4,
    "m256": (256,) * 2,
    "m256-5": (256, *[64] * 4),
    "m384": (384, 64, *[16] * 4),
    "m512": (512,),
}
"""Table 7.1: name to the nodes of each site, the largest first; all have 512."""

EXTRACTS: dict[str, int] = {"10_20k_org": 10_000, "30_40k_org": 30_000, "60_70k_org": 60_000}
"""Table 7.2: name to the number of jobs before the first one; each has 10,000 jobs."""

EXTRACT_JOBS = 10_000


class GridRuns:
    """The schedules of chapter 7, each made once.

    Parameters
    ----------
    path : pathlib.Path
        The CTC trace.
    """

    def __init__(self, path: Path) -> None:
        self._trace, _ = load_workload(path, nodes=THESIS_TRACES["CTC"].nodes)
        self._extracts: dict[tuple[str, int | None], Workload] = {}
        self._results: dict[tuple[str, str, int | None, GridPolicy], GridResult] = {}

    def extract(self, name: str, max_width: int | None = None) -> Workload:
        """Return an extract, with wide jobs in parts of at most ``max_width`` nodes if that is given.

        Parameters
        ----------
        name : str
            A name in `EXTRACTS`.
        """
        key = name, max_width
        if key not in self._extracts:
            first = EXTRACTS[name]
            jobs = cut(self._trace, first=first + 1, last=first + EXTRACT_JOBS)
            self._extracts[key] = jobs if max_width is None else split(jobs, max_width)
        return self._extracts[key]

    def result(self, name: str, machines: str, policy: GridPolicy, *, max_width: int | None = None) -> GridResult:
        """Return the schedule of an extract on a configuration; homes are dealt out round robin.

        Parameters
        ----------
        name, machines : str
            Names in `EXTRACTS` and `CONFIGURATIONS`.
        """
        key = name, machines, max_width, policy
        if key not in self._results:
            self._results[key] = simulate_grid(self.extract(name, max_width), CONFIGURATIONS[machines], policy)
        return self._results[key]

    def awrt_s(self, name: str, machines: str, policy: GridPolicy, *, max_width: int | None = None) -> float:
        """Return the average response time weighted by resource consumption (section 7.3.3), in seconds."""
        return self.result(name, machines, policy, max_width=max_width).metrics().awrt_area_ms / 1000

    def awrt_by_width_s(self, name: str, machines: str, policy: GridPolicy, *, max_width: int | None = None) -> float:
        """Return the average response time weighted by width (section 7.3.1, equation 7.1), in seconds."""
        return self.result(name, machines, policy, max_width=max_width).metrics().awrt_width_ms / 1000

    def consumption_node_ms(self, name: str, machines: str, policy: GridPolicy) -> float:
        """Return the resource consumption of the jobs that ran on several sites (Table 7.6)."""
        result = self.result(name, machines, policy)
        area = result.workload.width * (result.end_ms - result.start_ms).astype(np.float64)
        return float(area[result.multi_site].sum())
