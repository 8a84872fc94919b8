"""The result of simulating a site or a grid: when and where each job ran, with metrics, plots and files."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.kernels.state import FRAGMENT
from gridweave.scenarios.results.files import Writer, plain_numbers, save_figure, write_all, write_jobs_csv, write_json
from gridweave.scenarios.results.metrics import MeasuredSchedule, Metrics, SharedMetrics, compute_shared
from gridweave.scenarios.results.resources import (
    ResourceUse,
    SiteKinds,
    UsedResources,
    classes_by_gpus,
    resource_uses,
)
from gridweave.scenarios.results.uses import HasTexts, NetworkUse, SharesNodes, SiteUse, Switches, WorldUse
from gridweave.scenarios.workload.columns import NARROW_UP_TO, classes_by_length, classes_by_month, classes_by_width
from gridweave.scenarios.workload.site_events import ReservationAnswer
from gridweave.scenarios.workload.table import BoolArray, IntArray, MadeAnew, Workload, data_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from gridweave.grid.policy import GridPolicy


JOBS_HEADER = (
    "job_id",
    "submit_ms",
    "start_ms",
    "end_ms",
    "width",
    "estimate_ms",
    "run_ms",
    "site",
    "fragments",
    "killed",
)
"""First columns of ``jobs.csv``; the columns of disciplines and networks come after these."""

PLOT_KINDS = ("utilisation", "waits", "schedule")

CLASS_KINDS = ("width", "length", "month", "gpus")
NEVER = -1
"""Start and end of a job that never started."""


class Placement(NamedTuple):
    """The sites and widths of all fragments of a grid's jobs.

    Attributes
    ----------
    fragments : numpy.ndarray of FRAGMENT, shape (all fragments,)
        Site and width of every fragment. A job's fragments are consecutive, in the order of placement.
    first, parts : numpy.ndarray of int64, shape (n,)
        Index of each job's first fragment, and the job's number of fragments; 0 for jobs that never started.
    """

    fragments: npt.NDArray[np.void]
    first: IntArray
    parts: IntArray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SimulationResult(MadeAnew):
    """A workload and its schedule on a site or a grid of sites.

    Parameters
    ----------
    workload : Workload
        The jobs.
    nodes : int
        Total number of nodes over all sites.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        Start and end time of each job of the workload; -1 for jobs that never started, such as refused jobs. Jobs that
        never started are written to files, but left out of all metrics and plots.
    killed : numpy.ndarray of bool, shape (n,), optional
        Jobs that were killed at their estimate; none by default.
    refused : sequence of (int, str), optional
        Ids of refused jobs, and the reasons for the refusals.
    cancelled : numpy.ndarray of bool, shape (n,), optional
        Jobs that were cancelled before they started; none by default.
    reservations : sequence of ReservationAnswer, optional
        The site's answers to requests for advance reservations.
    label : str
        Name of this result in tables and plots, for example "fcfs easy".
    options : mapping from str, optional
        Options such as discipline, order and backfilling as plain values, for ``summary.json``.
    name : str
        Name of the site, or of the grid's scenario.
    shared : bool
        Whether jobs may share nodes.
    shares_time : bool
        Whether running jobs may be paused or slowed. If so, metrics use a job's run time alone as its length,
        and the rest of its turn-around time as its wait.
    site_nodes : numpy.ndarray of int64, shape (sites,), optional
        Nodes of each site; one site by default.
    site_kinds : sequence of sequence of NodeKind, optional
        Kinds of nodes of each site, if a site counts cores, memory and GPUs. Metrics then count cores instead of nodes.
    placement : Placement, optional
        The sites on which jobs ran; by default, all jobs ran on the only site.
    policy : GridPolicy, optional
        The grid's policy.
    columns : mapping from str to numpy.ndarray, shape (n,), optional
        A discipline's own columns (docs/write-a-discipline.md); 0 for jobs that never started. With a network between
        sites: ``factor``, by which idle links lengthen each job; ``slowdown``, the mean additional factor due to other
        traffic (both factors are 1 on one site and for jobs that never started); and ``transfer_ms``, how long the job
        held nodes while its data was in transfer.
    labels : mapping from str to sequence of str, optional
        For columns of codes: the names that ``jobs.csv`` shows for the codes 0, 1, ....
    own_metrics : mapping from str to float, optional
        Metrics of disciplines; on a grid, prefixed with the site's name, as in ``north.NAME``.
    world : WorldUse, optional
        Messages and faults of a run in the simulated world.
    own : object, optional
        Other results of a discipline, described on its docs page. Results that match `SharesNodes` add metrics; results
        that match `Switches` add a file and a plot.
    site_names : tuple of str, optional
        Names of a grid's sites, if tables, files and plots should show each site. Without names, the grid is shown as
        one site.
    home : numpy.ndarray of int64, shape (n,), optional
        The site at which each job was submitted; required with ``site_names``.
    network : NetworkUse, optional
        The network between the sites and its effect on jobs.
    shown : tuple of str, optional
        Metrics that a grid's tables show.
    remarks : tuple of str, optional
        Remarks for the user on how the workload was prepared.

    Raises
    ------
    InputError
        If an array does not have one value per job, or a job starts before its submission or ends before its start.
    """

    workload: Workload
    nodes: int
    start_ms: IntArray
    end_ms: IntArray
    killed: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    refused: Sequence[tuple[int, str]] = ()
    reservations: Sequence[ReservationAnswer] = ()
    label: str = "result"
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "site"
    shared: bool = False
    shares_time: bool = False
    cancelled: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    site_nodes: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    site_kinds: Sequence[SiteKinds] = ()
    placement: Placement | None = None
    policy: GridPolicy | None = None
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    own_metrics: Mapping[str, float] = field(default_factory=dict)
    world: WorldUse | None = None
    own: Any = None
    site_names: tuple[str, ...] = ()
    home: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    network: NetworkUse | None = None
    shown: tuple[str, ...] = ("awrt_area_ms", "awwt_area_ms", "awrt_width_ms", "awwt_width_ms", "util")
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.workload)
        if not len(self.site_nodes):
            object.__setattr__(self, "site_nodes", np.array([self.nodes], np.int64))
        for name, kind in (("start_ms", np.int64), ("end_ms", np.int64), ("killed", np.bool_), ("cancelled", np.bool_)):
            values = getattr(self, name)
            if kind is np.bool_ and not len(values):
                values = np.zeros(n, np.bool_)
            array = np.array(values, kind)
            if array.shape != (n,):
                raise InputError(f"{self.label}: {name} has shape {array.shape}; the workload has {n} jobs")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "refused", tuple((int(job_id), str(reason)) for job_id, reason in self.refused))
        object.__setattr__(self, "reservations", tuple(self.reservations))
        for name in ("options", "columns", "labels", "own_metrics"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        # A schedule with a placement may come from a live grid, whose clock may differ from the workload's.
        if self.placement is None:
            self._check_times()
        if self.site_names and len(self.site_names) != len(self.site_nodes):
            raise InputError(f"{self.name}: {len(self.site_names)} names for {len(self.site_nodes)} sites")
        if self.site_names and self.home.shape != (n,):
            raise InputError(f"{self.name}: home has shape {self.home.shape}; give one site per job")

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.label!r}: {len(self.workload)} jobs of {self.workload.name} on {self.nodes} nodes)"
        )

    def _check_times(self) -> None:
        ran = (self.start_ms >= self.workload.submit_ms) & (self.end_ms > self.start_ms)
        wrong = ~ran & ~((self.start_ms == NEVER) & (self.end_ms == NEVER))
        if wrong.any():
            row = int(np.argmax(wrong))
            times = f"submitted {self.workload.submit_ms[row]}, start {self.start_ms[row]}, end {self.end_ms[row]} ms"
            raise InputError(f"{self.label}: job {self.workload.job_id[row]}: {times} are not in this order")

    @property
    def ran(self) -> BoolArray:
        """Mask of the jobs that started: bool, shape (n,)."""
        ran: BoolArray = self.start_ms != NEVER
        return ran

    @property
    def capacity(self) -> int:
        """Number of cores of all sites if a site counts resources; otherwise the number of nodes."""
        return int(UsedResources.of(self).total[:, 0].sum()) if self.site_kinds else self.nodes

    @property
    def unit(self) -> str:
        """What `capacity` and the widths of `schedule` count: ``cores`` or ``nodes``."""
        return "cores" if self.site_kinds else "nodes"

    @property
    def shares_nodes(self) -> bool:
        """Whether several jobs may have run on a node at the same time."""
        return self.shared or bool(self.site_kinds)

    @property
    def n_fragments(self) -> IntArray:
        """Number of fragments of each job, int64, shape (n,); 0 for jobs that never started."""
        return self.ran.astype(np.int64) if self.placement is None else self.placement.parts

    @property
    def first_fragment(self) -> IntArray:
        """Index of each job's first fragment, int64, shape (n,)."""
        if self.placement is not None:
            return self.placement.first
        return np.where(self.ran, np.cumsum(self.ran) - 1, 0)

    @property
    def fragments(self) -> npt.NDArray[np.void]:
        """Site and width of every fragment, FRAGMENT, shape (all fragments,), job by job."""
        if self.placement is not None:
            return self.placement.fragments
        fragments = np.zeros(int(self.ran.sum()), FRAGMENT)
        fragments["width"] = self.workload.width[self.ran]
        return fragments

    @property
    def multi_site(self) -> BoolArray:
        """Mask of the jobs that ran on several sites: bool, shape (n,)."""
        several: BoolArray = self.n_fragments > 1
        return several

    @property
    def title(self) -> str:
        """The title for plots: the label, preceded by the result's name if sites have names."""
        return f"{self.name}, {self.label}" if self.site_names else self.label

    def multi_site_area(self) -> float:
        """Return the multi-site jobs' share of the squashed area, width x run time (Streit, Table 7.4).

        Returns
        -------
        float
            NaN if no job ran.
        """
        area = self.workload.width * (self.end_ms - self.start_ms).astype(np.float64)
        whole = float(area.sum())
        return float(area[self.multi_site].sum()) / whole if whole else math.nan

    def multi_site_summary(self) -> dict[str, Any]:
        """Return the entry for multi-site jobs in ``summary.json``, as plain values.

        Returns
        -------
        dict
            ``jobs``, ``share_of_jobs``, ``share_of_squashed_area`` (None if no job ran), and ``jobs_by_fragments``.
        """
        fragments, jobs = np.unique(self.n_fragments[self.n_fragments > 0], return_counts=True)
        ran, several, area = int(jobs.sum()), int(self.multi_site.sum()), self.multi_site_area()
        return {
            "jobs": several,
            "share_of_jobs": several / ran if ran else None,
            "share_of_squashed_area": None if math.isnan(area) else area,
            "jobs_by_fragments": dict(zip(map(str, fragments.tolist()), jobs.tolist(), strict=True)),
        }

    def fragments_of(self, row: int) -> list[tuple[int, int]]:
        """Return (site, width) for each fragment of the job in this row, in the order of placement."""
        if self.placement is None:
            return [(0, int(self.workload.width[row]))] if self.ran[row] else []
        first = int(self.placement.first[row])
        taken = self.placement.fragments[first : first + int(self.placement.parts[row])]
        return [(int(fragment["site"]), int(fragment["width"])) for fragment in taken]

    def job_of_fragments(self) -> IntArray:
        """Return the job of each fragment, as a row of the workload.

        Returns
        -------
        numpy.ndarray of int64, shape (all fragments,)
        """
        job_of = np.zeros(len(self.fragments), np.int64)
        started = np.flatnonzero(self.n_fragments)
        for number in range(int(self.n_fragments.max(initial=0))):
            started = started[self.n_fragments[started] > number]
            job_of[self.first_fragment[started] + number] = started
        return job_of

    def sites_of_jobs(self, rows: slice = slice(None)) -> list[str]:
        """Return each job's sites: ``alpha``, or ``alpha:64+beta:32`` with the number of nodes on each site.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; by default, all rows.

        Returns
        -------
        list of str
            One text per job; empty for jobs that never started.
        """
        texts = []
        for row in range(*rows.indices(len(self.workload))):
            taken = self.fragments_of(row)
            if len(taken) == 1:
                texts.append(self.site_names[taken[0][0]])
            else:
                texts.append("+".join(f"{self.site_names[site]}:{width}" for site, width in taken))
        return texts

    def schedule(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return the submit times, start times, end times and widths of the jobs that started.

        Returns
        -------
        tuple of numpy.ndarray of int64, each of shape (m,)
            Values in workload order. If a site counts resources, the width of a job is its number of cores.
        """
        start_ms = np.where(self.ran, self.end_ms - self.workload.run_ms, NEVER) if self.shares_time else self.start_ms
        columns = self.workload.submit_ms, start_ms, self.end_ms, self._widths()
        ran = self.ran
        if ran.all():
            return columns
        submit_ms, start_ms, end_ms, width = (column[ran] for column in columns)
        return submit_ms, start_ms, end_ms, width

    def _widths(self) -> IntArray:
        if not self.site_kinds:
            return self.workload.width
        cores = UsedResources.of(self).of_jobs(len(self.workload))[:, 0]
        return np.maximum(np.rint(cores), 1).astype(np.int64)

    def resource_uses(self) -> list[ResourceUse]:
        """Return how the cores, memory and GPUs of each site were used; empty if no site counts resources."""
        return resource_uses(self) if self.site_kinds else []

    def metrics(self) -> Metrics:
        """Return the metrics of all jobs that started."""
        return _measured(self).metrics()

    def sharing_metrics(self) -> SharedMetrics:
        """Return the metrics of a site where jobs shared nodes.

        Raises
        ------
        InputError
            If jobs cannot share nodes.
        """
        if not isinstance(self.own, SharesNodes):
            raise InputError(f"{self.label}: jobs cannot share nodes, so there are no sharing metrics")
        ran, use = self.ran, self.own
        shared_starts = int((use.beside[ran] > 0).sum())
        run_ms = self.workload.run_ms[ran]
        return compute_shared(*self.schedule(), run_ms, self.nodes, shared_starts, use.busy_node_ms)

    def metrics_by(self, kind: str, *, border: float | None = None) -> dict[str, Metrics]:
        """Return the metrics for each class of jobs.

        Parameters
        ----------
        kind : {"width", "length", "month", "gpus"}
            Narrow and wide jobs, short and long jobs, jobs by month of submission in the workload's time zone, or jobs
            without and with GPUs.
        border : float, optional
            Maximum width of narrow jobs in nodes (default: 32) or maximum length of short jobs in ms (default: median).

        Raises
        ------
        OptionError
            If the kind is unknown.
        InputError
            If the kind is "month" and the workload has no start date.
        """
        submit_ms, start_ms, end_ms, width = self.schedule()
        if kind == "width":
            chunks = self.workload.width[self.ran] if self.site_kinds else width
            classes = classes_by_width(chunks, NARROW_UP_TO if border is None else border)
        elif kind == "length":
            classes = classes_by_length(end_ms - start_ms, border)
        elif kind == "month":
            classes = classes_by_month(submit_ms, self.workload.start_unix_s, self.workload.timezone)
        elif kind == "gpus":
            classes = classes_by_gpus(self.workload.take(self.ran))
        else:
            raise OptionError("kind", f"{kind!r} is not a way to class jobs; give one of {', '.join(CLASS_KINDS)}")
        return _measured(self).by_class(classes)

    def site_result(self, site: int) -> SimulationResult:
        """Return the result of one site: the jobs and fragments that ran there, with their widths at that site.

        Parameters
        ----------
        site : int
            The site's number, from 0.

        Returns
        -------
        SimulationResult
            A fragment has the id of its job. All jobs that ran at the site count as submitted at the site.
        """
        fragments = np.flatnonzero(self.fragments["site"] == site)
        rows = self.job_of_fragments()[fragments]
        order = np.argsort(rows, kind="stable")
        rows, fragments = rows[order], fragments[order]
        workload = self.workload.take(rows).replace(width=self.fragments["width"][fragments])
        return SimulationResult(
            workload=workload,
            nodes=int(self.site_nodes[site]),
            site_kinds=(self.site_kinds[site],) if self.site_kinds and self.site_kinds[site] else (),
            start_ms=self.start_ms[rows],
            end_ms=self.end_ms[rows],
            killed=workload.overran,
            label=self.label,
            name=self.site_names[site] if self.site_names else self.name,
            shared=self.shared,
        )

    def site_uses(self) -> list[SiteUse]:
        """Return how each site was used; the sites must have names."""
        ran = self.ran
        span_ms = float(self.end_ms[ran].max() - self.workload.submit_ms[ran].min()) if ran.any() else math.nan
        length_ms = (self.end_ms - self.start_ms).astype(np.float64)
        job_of, site_of, sites = self.job_of_fragments(), self.fragments["site"], len(self.site_names)
        submitted = np.bincount(self.home, minlength=sites).tolist()
        jobs = np.bincount(site_of, minlength=sites).tolist()
        several = np.bincount(site_of[self.multi_site[job_of]], minlength=sites).tolist()
        elsewhere = np.bincount(site_of[self.home[job_of] != site_of], minlength=sites).tolist()
        used, capacity = self._used_by_fragments()
        util = (np.bincount(site_of, length_ms[job_of] * used, sites) / (capacity * span_ms)).tolist()
        return [
            SiteUse(
                name=name,
                nodes=int(self.site_nodes[site]),
                submitted=submitted[site],
                jobs=jobs[site],
                multi_site_jobs=several[site],
                from_elsewhere=elsewhere[site],
                util=util[site],
            )
            for site, name in enumerate(self.site_names)
        ]

    def _used_by_fragments(self) -> tuple[npt.NDArray[np.float64], IntArray]:
        """Return the cores of each fragment and of each site if a site counts resources; otherwise, the nodes."""
        if not self.site_kinds:
            return self.fragments["width"].astype(np.float64), self.site_nodes
        used = UsedResources.of(self)
        return used.amount[:, 0], used.total[:, 0]

    def job_columns(self, rows: slice = slice(None)) -> dict[str, Any]:
        """Return the columns of ``jobs.csv``.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; by default, all rows.

        Returns
        -------
        dict from str to numpy.ndarray of shape (k,), and for "site" to str or list of str
            ``run_ms`` is how long the job ran, including the overhead of a split; ``width`` is the width of the whole
            job; ``fragments`` is its number of fragments, 0 if the job never started. ``site`` has one text per job if
            sites have names. The result's own columns come last.
        """
        jobs, start_ms, end_ms = self.workload, self.start_ms[rows], self.end_ms[rows]
        values = (
            *(jobs.job_id[rows], jobs.submit_ms[rows], start_ms, end_ms, jobs.width[rows], jobs.estimate_ms[rows]),
            *(end_ms - start_ms, self.sites_of_jobs(rows) if self.site_names else self.name),
            *(self.n_fragments[rows], self.killed[rows]),
        )
        own = self._amounts(rows)
        own |= {name: self._column(name, start_ms != NEVER, values[rows]) for name, values in self.columns.items()}
        return dict(zip(JOBS_HEADER, values, strict=True)) | own

    def _amounts(self, rows: slice) -> dict[str, Any]:
        """Return how much of each resource jobs used; empty if no site counts resources."""
        if not self.site_kinds:
            return {}
        used = UsedResources.of(self)
        amounts = np.rint(used.of_jobs(len(self.workload))).astype(np.int64)[rows]
        return {name: amounts[:, index] for index, name in enumerate(used.columns)}

    def _column(self, name: str, ran: BoolArray, values: npt.NDArray[Any]) -> npt.NDArray[Any] | list[str]:
        """Return a discipline's column, with codes replaced by labels; the labels of jobs that never ran are empty."""
        labels = self.labels.get(name)
        if labels is None:
            return values
        numbers = zip(values.astype(np.int64).tolist(), ran.tolist(), strict=True)
        return [labels[number] if started else "" for number, started in numbers]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the jobs as a table with one row per job, in workload order.

        Returns
        -------
        pandas.DataFrame
            The columns of ``jobs.csv`` (times in ms; ``killed`` as bool), then the optional columns of the workload. If
            sites have names, ``home`` is the site at which each job was submitted.

        Raises
        ------
        UnavailableError
            If pandas is not installed.
        """
        home = {"home": np.array(self.site_names)[self.home]} if self.site_names else {}
        return data_frame(self.job_columns() | dict(self.workload.columns) | home)

    def plot(self, kind: str = "utilisation", *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
        """Draw this result.

        Parameters
        ----------
        kind : {"utilisation", "waits", "schedule", "slices", "policies", "resources"}
            Utilisation and queue length over time; the distributions of waits and slowdowns; jobs as rectangles over
            time and nodes; the same slice by slice, for gang scheduling; the policy in force over time, for disciplines
            that switch policies; the GPUs, cores and memory in use over time, for sites that count them. If sites have
            names, "utilisation" and "schedule" show each site, while "slices" and "policies" are unavailable.
        start_ms, end_ms : int, optional
            The time window to show in "utilisation" (default: the whole schedule) and "schedule" (default: the busiest
            window that is still readable). Plots of waits, and of sites with names, always show the whole schedule.

        Returns
        -------
        matplotlib.figure.Figure
            A figure without a window or pyplot state; save it with its ``savefig``.

        Raises
        ------
        OptionError
            If the kind is unknown, the window is empty, or the plot does not support a window.
        """
        windowed = start_ms is not None or end_ms is not None
        if kind == "schedule" and self.shares_nodes:
            raise OptionError("kind", "'schedule' cannot be drawn where jobs share nodes; give utilisation or waits")
        kinds = [*PLOT_KINDS, *([] if self.site_names else ["slices", "policies"])]
        kinds += ["resources"] if self.site_kinds else []
        if kind not in kinds:
            raise OptionError("kind", f"{kind!r} is not a plot; give one of {', '.join(kinds)}")
        if windowed and (kind in ("waits", "resources") or self.site_names):
            why = "plots of waits show all jobs" if kind == "waits" else "plots of sites show all time"
            raise OptionError("start_ms", f"{why}; leave out the window")
        return self._drawn(kind, start_ms, end_ms)

    def _drawn(self, kind: str, start_ms: int | None, end_ms: int | None) -> Figure:
        from gridweave.scenarios.plots import grid, resources, results, schedule

        if kind == "waits":
            return results.plot_waits(self)
        if kind == "resources":
            return resources.plot_resources(self)
        if kind == "policies":
            return results.plot_policies(self)
        if self.site_names:
            return grid.plot_utilisation(self) if kind == "utilisation" else grid.plot_schedule(self)
        draw = {
            "utilisation": results.plot_utilisation,
            "schedule": schedule.plot_schedule,
            "slices": schedule.plot_slices,
        }
        return draw[kind](self, start_ms=start_ms, end_ms=end_ms)

    def summary(self) -> dict[str, Any]:
        """Return the content of ``summary.json``, as plain values.

        Returns
        -------
        dict
            Options, counts, metrics, and metrics per class. Undefined metrics are None. Classes that are unavailable
            (months without a start date) are left out, and ``notes`` gives the reason. If sites have names, the options
            are the scenario's, and ``sites``, ``multi_site``, ``network``, ``world`` and ``remarks`` are included.
        """
        by_class: dict[str, dict[str, Metrics]] = {}
        notes = []
        for kind in CLASS_KINDS if self.site_kinds else CLASS_KINDS[:-1]:
            try:
                by_class[kind] = self.metrics_by(kind)
            except InputError as error:
                notes.append(f"no metrics by {kind}: {error}")
        run_ms = self.end_ms[self.ran] - self.start_ms[self.ran]
        return {
            "label": self.label,
            "nodes": self.nodes,
            "workload": {
                "name": self.workload.name,
                "jobs": len(self.workload),
                "start_unix_s": self.workload.start_unix_s,
                "timezone": self.workload.timezone,
            },
            "killed": int(np.count_nonzero(self.killed)),
            "never_started": int(np.count_nonzero(~self.ran)),
            **({"cancelled": int(self.cancelled.sum())} if "cancel_ms" in self.workload.columns else {}),
            "refused": [{"job_id": job_id, "reason": reason} for job_id, reason in self.refused],
            "reservations": [msgspec.to_builtins(answer) for answer in self.reservations],
            "metrics": self.metrics().to_dict(),
            **({"own_metrics": plain_numbers(self.own_metrics)} if self.own_metrics else {}),
            **({"resources": self.resources_summary()} if self.site_kinds else {}),
            "metrics_by": {
                kind: {name: metrics.to_dict() for name, metrics in classes.items()}
                for kind, classes in by_class.items()
            },
            "narrow_up_to_nodes": NARROW_UP_TO,
            "short_up_to_ms": float(np.median(run_ms)) if len(run_ms) else None,
            "notes": notes,
            **(self._grid_summary() if self.site_names else {"site": self.name, "options": dict(self.options)}),
        }

    def resources_summary(self) -> list[dict[str, Any]]:
        """Return the entry ``resources`` of ``summary.json``: the total and the use of each resource of each site."""
        names = self.site_names or (self.name,)
        return [
            {"site": names[use.site], "resource": use.resource, "total": use.total, **plain_numbers({"util": use.util})}
            for use in self.resource_uses()
        ]

    def _grid_summary(self) -> dict[str, Any]:
        """Return the entries of a summary that exist only if sites have names."""
        world = self.world
        return {
            "scenario": dict(self.options),
            "remarks": list(self.remarks),
            "world": None if world is None else {"messages": world.messages, "restarts": world.restarts},
            "network": msgspec.to_builtins(self.network),
            "sites": [asdict(use) | plain_numbers({"util": use.util}) for use in self.site_uses()],
            "multi_site": self.multi_site_summary(),
        }

    def write(self, folder: str | Path, *, plots: bool = True) -> tuple[Path, ...]:
        """Write ``jobs.csv``, ``summary.json`` and the plots to a folder.

        Parameters
        ----------
        folder : str or pathlib.Path
            Target folder, created if necessary. Files with the same names are replaced; other files are kept.
        plots : bool, optional
            Whether to draw ``utilisation.png``, ``waits.png`` and ``schedule.png``, or ``resources.png`` instead of
            ``schedule.png`` if a site counts resources.

        Returns
        -------
        tuple of pathlib.Path
            The files. No file gets its final name before all are complete, so an error leaves no partial file.

        Raises
        ------
        InputError
            If the folder cannot be created or written to, or an option is not a plain value.
        """
        return write_all(Path(folder), self.files(plots=plots))

    def files(self, *, plots: bool = True) -> dict[str, Writer]:
        """Return the functions that write this result's files, by file name."""
        files: dict[str, Writer] = {
            "jobs.csv": lambda path: write_jobs_csv(path, len(self.workload), self.job_columns),
            "summary.json": lambda path: write_json(path, self.summary()),
        }
        kinds = [kind for kind in PLOT_KINDS if not (self.shares_nodes and kind == "schedule")] if plots else []
        kinds += ["resources"] if plots and self.site_kinds else []
        files |= {f"{kind}.png": functools.partial(self._save_plot, kind) for kind in kinds}
        if isinstance(self.own, Switches):
            files["switches.csv"] = functools.partial(_write_switches, self.own)
            if plots and self.ran.any():
                files["policies.png"] = functools.partial(self._save_plot, "policies")
        if isinstance(self.own, HasTexts):
            files |= {name: functools.partial(_write_text, text) for name, text in self.own.texts().items()}
        return files

    def _save_plot(self, kind: str, path: Path) -> None:
        save_figure(path, self.plot(kind))


@functools.lru_cache(maxsize=1)
def _measured(result: SimulationResult) -> MeasuredSchedule:
    """Measure a result's schedule; the result's tables, files and plots share one measurement."""
    return MeasuredSchedule.of(*result.schedule(), result.capacity, shared=result.shares_nodes)


def _write_switches(switches: Switches, path: Path) -> None:
    """Write one line per switch, with the time and the new policy."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("when_ms", "policy"))
        names = (switches.policies[number] for number in switches.switched_to.tolist())
        writer.writerows(zip(switches.switched_ms.tolist(), names, strict=True))


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
