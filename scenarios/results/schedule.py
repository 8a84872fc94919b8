"""What a simulation returns, of one site or of a grid: when and where each job ran, its metrics, plots and files."""

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
"""Of ``jobs.csv``; columns of disciplines and of a network follow."""

PLOT_KINDS = ("utilisation", "waits", "schedule")

CLASS_KINDS = ("width", "length", "month")
NEVER = -1
"""Start and end of a job that was never started."""


class Placement(NamedTuple):
    """Where the jobs of a grid ran.

    Attributes
    ----------
    fragments : numpy.ndarray of FRAGMENT, shape (all fragments,)
        Site and width of every fragment, those of a job one after the other, in the order in which they were taken.
    first, parts : numpy.ndarray of int64, shape (n,)
        Where the fragments of each job stand, and how many they are; 0 for jobs that were never started.
    """

    fragments: npt.NDArray[np.void]
    first: IntArray
    parts: IntArray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SimulationResult(MadeAnew):
    """A workload and the schedule that a site, or a grid of sites, made of it.

    Parameters
    ----------
    workload : Workload
        The jobs.
    nodes : int
        Nodes of all sites together.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        When each job of the workload started and ended. A job that was never started (it was refused) has -1 in both;
        it stands in the files, and is left out of all metrics and plots.
    killed : numpy.ndarray of bool, shape (n,), optional
        Jobs that were ended at their estimate; nobody if left out.
    refused : sequence of (int, str), optional
        Ids of jobs that were refused, each with the reason.
    cancelled : numpy.ndarray of bool, shape (n,), optional
        Jobs that were cancelled before they started; nobody if left out.
    reservations : sequence of ReservationAnswer, optional
        What the site said to each request for an advance reservation.
    label : str
        What tables and plots call this result, for example "fcfs easy".
    options : mapping from str, optional
        Discipline, order, backfilling and so on, as plain values; they go into ``summary.json``.
    name : str
        Of the site, or of the scenario that a grid is of.
    shared : bool
        Whether jobs may share nodes.
    shares_time : bool
        Whether jobs that have started also pause or run at a fraction of their speed: metrics then take as the length
        of a job its run time alone, and all else of its turn-around as its wait.
    site_nodes : numpy.ndarray of int64, shape (sites,), optional
        Nodes of each site; one site if left out.
    placement : Placement, optional
        On which of them jobs ran; on the one site if left out.
    policy : GridPolicy, optional
        Of a grid.
    columns : mapping from str to numpy.ndarray, shape (n,), optional
        What a discipline tells of each job besides (docs/write-a-discipline.md); 0 for jobs that were never started.
        With a network between sites: by which ``factor`` each job grew on idle links, its ``slowdown``, by which it
        took longer than that because of what else was on the links, on average (both 1 on one site, and for jobs that
        never started), and ``transfer_ms``, how long its data moved while it held its nodes.
    labels : mapping from str to sequence of str, optional
        Of columns whose numbers stand for names: the name of 0, 1, ..., by which ``jobs.csv`` writes them.
    own_metrics : mapping from str to float, optional
        The metrics that a discipline has of its own; on a grid under the names of the sites, as ``north.NAME``.
    world : WorldUse, optional
        Of a run in the simulated world.
    own : object, optional
        What a discipline tells of the run besides: its docs page says what. One that `SharesNodes` has metrics of that;
        one with `Switches` has a file and a plot of them.
    site_names : tuple of str, optional
        Of a grid whose sites tables, files and plots are to tell apart, as a scenario's; else it is shown as one.
    home : numpy.ndarray of int64, shape (n,), optional
        The site at which each job was submitted; where sites have names.
    network : NetworkUse, optional
        What the network between the sites did.
    shown : tuple of str, optional
        Metrics that tables of a grid show.
    remarks : tuple of str, optional
        What was done to the workload before, for people.

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
                raise InputError(f"{self.label}: {name} has shape {array.shape}, the workload has {n} jobs")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "refused", tuple((int(job_id), str(reason)) for job_id, reason in self.refused))
        object.__setattr__(self, "reservations", tuple(self.reservations))
        for name in ("options", "columns", "labels", "own_metrics"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        # A schedule with places may be of a live grid, whose clock need not be that of the workload.
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
        """Which jobs were started, bool, shape (n,)."""
        ran: BoolArray = self.start_ms != NEVER
        return ran

    @property
    def n_fragments(self) -> IntArray:
        """In how many fragments each job ran, int64, shape (n,); 0 if it was never started."""
        return self.ran.astype(np.int64) if self.placement is None else self.placement.parts

    @property
    def first_fragment(self) -> IntArray:
        """Where the fragments of each job stand, int64, shape (n,)."""
        if self.placement is not None:
            return self.placement.first
        return np.where(self.ran, np.cumsum(self.ran) - 1, 0)

    @property
    def fragments(self) -> npt.NDArray[np.void]:
        """Site and width of every fragment, FRAGMENT, shape (all fragments,), job after job."""
        if self.placement is not None:
            return self.placement.fragments
        fragments = np.zeros(int(self.ran.sum()), FRAGMENT)
        fragments["width"] = self.workload.width[self.ran]
        return fragments

    @property
    def multi_site(self) -> BoolArray:
        """Which jobs ran on several sites, bool, shape (n,)."""
        several: BoolArray = self.n_fragments > 1
        return several

    @property
    def title(self) -> str:
        """What plots call it: the label, for a scenario after its name."""
        return f"{self.name}, {self.label}" if self.site_names else self.label

    def multi_site_area(self) -> float:
        """Return the part of the squashed area (width x time run) that multi-site jobs have (Streit, Table 7.4).

        Returns
        -------
        float
            NaN if no job ran.
        """
        area = self.workload.width * (self.end_ms - self.start_ms).astype(np.float64)
        whole = float(area.sum())
        return float(area[self.multi_site].sum()) / whole if whole else math.nan

    def multi_site_summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of multi-site jobs, as plain values.

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
        """Return (site, width) of each fragment of the job in a row, in the order in which they were taken."""
        if self.placement is None:
            return [(0, int(self.workload.width[row]))] if self.ran[row] else []
        first = int(self.placement.first[row])
        taken = self.placement.fragments[first : first + int(self.placement.parts[row])]
        return [(int(fragment["site"]), int(fragment["width"])) for fragment in taken]

    def job_of_fragments(self) -> IntArray:
        """Return the row of the job that each fragment belongs to.

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
        """Return where jobs ran: ``alpha``, or ``alpha:64+beta:32`` with the nodes of each of several sites.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; all if left out.

        Returns
        -------
        list of str
            Empty texts for jobs that never started.
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
        """Return submit, start and end times and widths of the jobs that were started.

        Returns
        -------
        tuple of numpy.ndarray of int64, each of shape (m,)
            In the order of the workload.
        """
        start_ms = np.where(self.ran, self.end_ms - self.workload.run_ms, NEVER) if self.shares_time else self.start_ms
        columns = self.workload.submit_ms, start_ms, self.end_ms, self.workload.width
        ran = self.ran
        if ran.all():
            return columns
        submit_ms, start_ms, end_ms, width = (column[ran] for column in columns)
        return submit_ms, start_ms, end_ms, width

    def metrics(self) -> Metrics:
        """Return the metrics of all jobs that were started."""
        return _measured(self).metrics()

    def sharing_metrics(self) -> SharedMetrics:
        """Return what sharing the nodes of one site came to.

        Raises
        ------
        InputError
            If no nodes were shared.
        """
        if not isinstance(self.own, SharesNodes):
            raise InputError(f"{self.label}: no nodes were shared, so there are no sharing metrics")
        ran, use = self.ran, self.own
        shared_starts = int((use.beside[ran] > 0).sum())
        run_ms = self.workload.run_ms[ran]
        return compute_shared(*self.schedule(), run_ms, self.nodes, shared_starts, use.busy_node_ms)

    def metrics_by(self, kind: str, *, border: float | None = None) -> dict[str, Metrics]:
        """Return the metrics per class of jobs.

        Parameters
        ----------
        kind : {"width", "length", "month"}
            Narrow and wide jobs; short and long jobs; months of submission on the calendar of the workload's zone.
        border : float, optional
            The widest narrow job in nodes (32 if left out), or the longest short job in ms (the median if left out).

        Raises
        ------
        OptionError
            If there is no such kind.
        InputError
            If months are asked for and the workload has no start date.
        """
        submit_ms, start_ms, end_ms, width = self.schedule()
        if kind == "width":
            classes = classes_by_width(width, NARROW_UP_TO if border is None else border)
        elif kind == "length":
            classes = classes_by_length(end_ms - start_ms, border)
        elif kind == "month":
            classes = classes_by_month(submit_ms, self.workload.start_unix_s, self.workload.timezone)
        else:
            raise OptionError("kind", f"{kind!r} is not a way to class jobs; give one of {', '.join(CLASS_KINDS)}")
        return _measured(self).by_class(classes)

    def site_result(self, site: int) -> SimulationResult:
        """Return what ran at one site: jobs and fragments, with their widths there.

        Parameters
        ----------
        site : int
            Its number, from 0.

        Returns
        -------
        SimulationResult
            A fragment has the id of its job. Submitted to it is what ran there, wherever it came from.
        """
        fragments = np.flatnonzero(self.fragments["site"] == site)
        rows = self.job_of_fragments()[fragments]
        order = np.argsort(rows, kind="stable")
        rows, fragments = rows[order], fragments[order]
        workload = self.workload.take(rows).replace(width=self.fragments["width"][fragments])
        return SimulationResult(
            workload=workload,
            nodes=int(self.site_nodes[site]),
            start_ms=self.start_ms[rows],
            end_ms=self.end_ms[rows],
            killed=workload.overran,
            label=self.label,
            name=self.site_names[site] if self.site_names else self.name,
            shared=self.shared,
        )

    def site_uses(self) -> list[SiteUse]:
        """Return what became of each site, in their order; the sites have names."""
        ran = self.ran
        span_ms = float(self.end_ms[ran].max() - self.workload.submit_ms[ran].min()) if ran.any() else math.nan
        length_ms = (self.end_ms - self.start_ms).astype(np.float64)
        job_of, site_of, sites = self.job_of_fragments(), self.fragments["site"], len(self.site_names)
        submitted = np.bincount(self.home, minlength=sites).tolist()
        jobs = np.bincount(site_of, minlength=sites).tolist()
        several = np.bincount(site_of[self.multi_site[job_of]], minlength=sites).tolist()
        elsewhere = np.bincount(site_of[self.home[job_of] != site_of], minlength=sites).tolist()
        area = np.bincount(site_of, length_ms[job_of] * self.fragments["width"], sites)
        util = (area / (self.site_nodes * span_ms)).tolist()
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

    def job_columns(self, rows: slice = slice(None)) -> dict[str, Any]:
        """Return the columns of ``jobs.csv``.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; all if left out.

        Returns
        -------
        dict from str to numpy.ndarray of shape (k,), and for "site" to str or list of str
            ``run_ms`` is how long the job ran, the overhead of a split included; ``width`` is that of the whole job,
            and ``fragments`` in how many it ran, 0 if it was never started. ``site`` is of each job where sites have
            names. The result's columns follow.
        """
        jobs, start_ms, end_ms = self.workload, self.start_ms[rows], self.end_ms[rows]
        values = (
            *(jobs.job_id[rows], jobs.submit_ms[rows], start_ms, end_ms, jobs.width[rows], jobs.estimate_ms[rows]),
            *(end_ms - start_ms, self.sites_of_jobs(rows) if self.site_names else self.name),
            *(self.n_fragments[rows], self.killed[rows]),
        )
        own = {name: self._column(name, start_ms != NEVER, values[rows]) for name, values in self.columns.items()}
        return dict(zip(JOBS_HEADER, values, strict=True)) | own

    def _column(self, name: str, ran: BoolArray, values: npt.NDArray[Any]) -> npt.NDArray[Any] | list[str]:
        """Return some values of a column of a discipline: as names, empty for jobs that never ran, if it has any."""
        labels = self.labels.get(name)
        if labels is None:
            return values
        numbers = zip(values.astype(np.int64).tolist(), ran.tolist(), strict=True)
        return [labels[number] if started else "" for number, started in numbers]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the jobs as a table, one row per job of the workload, in its order.

        Returns
        -------
        pandas.DataFrame
            The columns of ``jobs.csv`` (times in ms; ``killed`` as bool), then the optional columns of the workload,
            and where sites have names ``home``, the one at which each job was submitted.

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
        kind : {"utilisation", "waits", "schedule", "slices"}
            Utilisation and queue length over time; the distributions of waits and slowdowns; time by nodes, with the
            jobs as rectangles; the same slice by slice, where nodes are shared in time. Where sites have names, the
            first and the third are drawn site by site, and there is no fourth.
        start_ms, end_ms : int, optional
            The time to show, for "utilisation" (all if left out) and "schedule" (the busiest window that is still
            readable if left out) of what is drawn as one. The distributions are of all jobs and take no window.

        Returns
        -------
        matplotlib.figure.Figure
            It belongs to no window and to no state of pyplot; save it with its ``savefig``.

        Raises
        ------
        OptionError
            If there is no such kind, if the window is empty, or if there is a window for the distributions.
        """
        windowed = start_ms is not None or end_ms is not None
        if kind == "schedule" and self.shared:
            raise OptionError("kind", "'schedule' cannot be drawn where jobs share nodes; give utilisation or waits")
        if kind not in PLOT_KINDS and (self.site_names or kind not in ("slices", "policies")):
            raise OptionError("kind", f"{kind!r} is not a plot; give one of {', '.join(PLOT_KINDS)}")
        if windowed and (kind == "waits" or self.site_names):
            why = "the distributions of waits are of all jobs" if kind == "waits" else "sites are drawn over all time"
            raise OptionError("start_ms", f"{why}; leave the window out")
        return self._drawn(kind, start_ms, end_ms)

    def _drawn(self, kind: str, start_ms: int | None, end_ms: int | None) -> Figure:
        from gridweave.scenarios.plots import grid, results, schedule

        if kind == "waits":
            return results.plot_waits(self)
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
        """Return what ``summary.json`` says, as plain values.

        Returns
        -------
        dict
            Options, counts, metrics, and metrics per class. A metric that is not defined is None; a class that cannot
            be made (months without a start date) is left out, and ``notes`` says why. Where sites have names, the
            options are those of the scenario, and ``sites``, ``multi_site``, ``network``, ``world`` and ``remarks``
            come to them.
        """
        by_class: dict[str, dict[str, Metrics]] = {}
        notes = []
        for kind in CLASS_KINDS:
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
            "metrics_by": {
                kind: {name: metrics.to_dict() for name, metrics in classes.items()}
                for kind, classes in by_class.items()
            },
            "narrow_up_to_nodes": NARROW_UP_TO,
            "short_up_to_ms": float(np.median(run_ms)) if len(run_ms) else None,
            "notes": notes,
            **(self._grid_summary() if self.site_names else {"site": self.name, "options": dict(self.options)}),
        }

    def _grid_summary(self) -> dict[str, Any]:
        """Return what a summary says where sites have names, and only there."""
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
        """Write ``jobs.csv``, ``summary.json`` and the plots into a folder.

        Parameters
        ----------
        folder : str or pathlib.Path
            Where to; it is made if need be. Files of these names are replaced, others stay.
        plots : bool, optional
            Whether to draw ``utilisation.png``, ``waits.png`` and ``schedule.png``.

        Returns
        -------
        tuple of pathlib.Path
            The files. All are complete before the first gets its name, so an error leaves no half-written one.

        Raises
        ------
        InputError
            If the folder cannot be made or written to, or an option is not a plain value.
        """
        return write_all(Path(folder), self.files(plots=plots))

    def files(self, *, plots: bool = True) -> dict[str, Writer]:
        """Return the files of this result by their names, each with the function that writes it."""
        files: dict[str, Writer] = {
            "jobs.csv": lambda path: write_jobs_csv(path, len(self.workload), self.job_columns),
            "summary.json": lambda path: write_json(path, self.summary()),
        }
        kinds = [kind for kind in PLOT_KINDS if not (self.shared and kind == "schedule")] if plots else []
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
    """Return the schedule of a result, measured: the table, the files and the plots of one ask for the same."""
    return MeasuredSchedule.of(*result.schedule(), result.nodes, shared=result.shared)


def _write_switches(switches: Switches, path: Path) -> None:
    """Write one line per switch: when, and to which policy."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("when_ms", "policy"))
        names = (switches.policies[number] for number in switches.switched_to.tolist())
        writer.writerows(zip(switches.switched_ms.tolist(), names, strict=True))


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
