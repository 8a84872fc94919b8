"""What a simulation returns: when each job ran, its metrics, and its files: jobs.csv, summary.json and plots."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.kernels.state import FRAGMENT
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.metrics import (
    Metrics,
    SharedMetrics,
    compute_by_class,
    compute_metrics,
    compute_shared,
)
from gridweave.scenarios.workload.columns import NARROW_UP_TO, classes_by_length, classes_by_month, classes_by_width
from gridweave.scenarios.workload.reservations import ReservationAnswer
from gridweave.scenarios.workload.table import BoolArray, IntArray, MadeAnew, Workload, data_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


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

PLOT_KINDS = ("utilisation", "waits", "schedule")

ROWS_AT_ONCE = 65_536
"""Of ``jobs.csv``: made and written in blocks, so that memory does not grow with their number."""

_DPI = 150

_Writer = Callable[[Path], None]


class _Run(Protocol):
    """What has a summary and plots."""

    @property
    def shared(self) -> bool: ...

    def summary(self) -> dict[str, Any]: ...

    def plot(self, kind: str) -> Figure: ...


def write_result(result: SimulationResult, folder: Path, *, plots: bool = True) -> tuple[Path, ...]:
    """Write the files of one result; see `SimulationResult.write`.

    Parameters
    ----------
    result : SimulationResult
        What to write.
    folder : pathlib.Path
        Where to.
    plots : bool, optional
        Whether to draw the plots.

    Raises
    ------
    InputError
        If the folder cannot be made or written to, or an option is not a plain value.
    """
    return write_all(folder, _files_of(result, plots=plots))


def write_comparison(
    results: Sequence[SimulationResult], folder: str | Path, *, plots: bool = True
) -> tuple[Path, ...]:
    """Write several results: each into a folder of its own, named by its label, and what sets them side by side.

    Parameters
    ----------
    results : sequence of SimulationResult
        At least one, with labels of their own.
    folder : str or pathlib.Path
        Where to; it is made if need be.
    plots : bool, optional
        Whether to draw the plots of each result and ``comparison.png``.

    Returns
    -------
    tuple of pathlib.Path
        The files: those of each result, ``comparison.json`` (label, folder, options and metrics of each, in the given
        order) and ``comparison.png``. All are complete before the first gets its name.

    Raises
    ------
    InputError
        If there is no result, if two labels make the same folder, or as for `write_result`.
    """
    if not results:
        raise InputError("there is no result to compare; give at least one")
    names = [folder_name(result.label) for result in results]
    for row, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:row]):
            raise InputError(f"two results would be written to the folder {name!r}; give them labels of their own")
    files: dict[str, _Writer] = {}
    for name, result in zip(names, results, strict=True):
        files |= {f"{name}/{file}": writer for file, writer in _files_of(result, plots=plots).items()}
    entries = [
        {
            "label": result.label,
            "folder": name,
            "site": result.site,
            "nodes": result.nodes,
            "workload": result.workload.name,
            "options": dict(result.options),
            "metrics": result.metrics().to_dict(),
        }
        for name, result in zip(names, results, strict=True)
    ]
    files["comparison.json"] = lambda path: write_json(path, {"results": entries})
    if plots:
        files["comparison.png"] = lambda path: save_figure(path, _plots().plot_comparison(results))
    return write_all(Path(folder), files)


def folder_name(label: str) -> str:
    """Return a label as the name of a folder: what is no letter, digit, dot, plus or minus becomes a minus.

    Parameters
    ----------
    label : str
        For example "fcfs easy".

    Returns
    -------
    str
        For example "fcfs-easy".

    Examples
    --------
    >>> folder_name("fcfs easy"), folder_name("../SJF (no backfilling)")
    ('fcfs-easy', 'SJF-no-backfilling')
    """
    return re.sub(r"[^\w.+-]+", "-", label).strip("-.") or "result"


def write_jobs_csv(result: SimulationResult, path: Path) -> None:
    """Write one line per job of the workload, in its order, under the header `JOBS_HEADER`, with the result's columns.

    Parameters
    ----------
    result : SimulationResult
        What to write.
    path : pathlib.Path
        The file.

    Notes
    -----
    Numbers of the header are whole; ``killed`` is 0 or 1. The name of the site is quoted where it holds a comma, a
    quote or an end of line (RFC 4180). Lines end with a line feed. Rows are made in blocks, so memory does not grow
    with their number.
    """
    header = (*JOBS_HEADER, *result.columns)
    forms = {"site": _csv_field(result.site).replace("%", "%%")}
    forms |= {name: "%d" if np.asarray(values).dtype.kind in "biu" else "%r" for name, values in result.columns.items()}
    line = ",".join(forms.get(name, "%d") for name in header) + "\n"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(header) + "\n")
        for first in range(0, len(result.workload), ROWS_AT_ONCE):
            columns = result.job_columns(slice(first, first + ROWS_AT_ONCE))
            numbers = [columns[name].tolist() for name in header if name != "site"]
            file.write("".join(map(line.__mod__, zip(*numbers, strict=True))))


def _csv_field(text: str) -> str:
    """Return a text as a field of a CSV file, quoted if need be."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow([text])  # so that both kinds of line ends are quoted
    return written.getvalue().removesuffix("\r\n")


def files_of(run: _Run, write_jobs: _Writer, *, plots: bool) -> dict[str, _Writer]:
    """Return the files of one run by name, each with the function that writes it."""
    files: dict[str, _Writer] = {
        "jobs.csv": write_jobs,
        "summary.json": lambda path: write_json(path, run.summary()),
    }
    if plots:
        kinds = [kind for kind in PLOT_KINDS if not (run.shared and kind == "schedule")]
        files |= {f"{kind}.png": functools.partial(_save_plot, run, kind) for kind in kinds}
    return files


def _save_plot(run: _Run, kind: str, path: Path) -> None:
    save_figure(path, run.plot(kind))


def _files_of(result: SimulationResult, *, plots: bool) -> dict[str, _Writer]:
    files = files_of(result, lambda path: write_jobs_csv(result, path), plots=plots)
    if isinstance(result.own, Switches):
        files["switches.csv"] = functools.partial(_write_switches, result.own)
        if plots and result.ran.any():
            files["policies.png"] = lambda path: _save_plot(result, "policies", path)
    return files


def _write_switches(switches: Switches, path: Path) -> None:
    """Write one line per switch: when, and to which policy."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("when_ms", "policy"))
        names = (switches.policies[number] for number in switches.switched_to.tolist())
        writer.writerows(zip(switches.switched_ms.tolist(), names, strict=True))


def write_all(folder: Path, files: dict[str, _Writer]) -> tuple[Path, ...]:
    """Write all files beside their places, and give them their names when all are complete."""
    try:
        with _scratch_folder(folder) as scratch:
            for name, writer in files.items():
                (scratch / name).parent.mkdir(exist_ok=True)
                writer(scratch / name)
            for name in files:
                (folder / name).parent.mkdir(exist_ok=True)
                os.replace(scratch / name, folder / name)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise InputError(f"{where}: cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in files)


@contextlib.contextmanager
def _scratch_folder(folder: Path) -> Iterator[Path]:
    """Make a folder, with a hidden one in it that goes in any case; after an error, also the folder if it is new."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".gridweave-", dir=folder))
    try:
        yield scratch
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            for parent in new:
                parent.rmdir()
        raise
    shutil.rmtree(scratch)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys: the same result gives the same bytes."""
    try:
        text = msgspec.json.encode(value, enc_hook=_plain, order="sorted")
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name}: an option is not a plain value: {error}") from None
    path.write_bytes(msgspec.json.format(text, indent=2) + b"\n")


def _plain(value: Any) -> Any:
    """Return a number of numpy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def plain_numbers(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures as JSON takes them: None for what is not defined."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG: the same figure gives the same bytes."""
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _plots() -> Any:
    from gridweave.scenarios.plots import results as plots

    return plots


CLASS_KINDS = ("width", "length", "month")
NEVER = -1
"""Start and end of a job that was never started."""

FloatArray = npt.NDArray[np.float64]


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


@runtime_checkable
class SharesNodes(Protocol):
    """What a discipline tells of a run whose nodes jobs shared.

    Attributes
    ----------
    beside : numpy.ndarray of int64, shape (n,)
        With how many jobs each job shared nodes when it started.
    busy_node_ms : int
        Node time in which at least one job was on a node.
    """

    beside: IntArray
    busy_node_ms: int


@runtime_checkable
class Switches(Protocol):
    """What a discipline tells of a run in which it switched from one of its policies to another.

    Attributes
    ----------
    policies : tuple of str
        The first was in force at the beginning.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        When it was switched, and to which of them.
    """

    policies: tuple[str, ...]
    switched_ms: IntArray
    switched_to: IntArray


class WorldUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a run in the simulated world took.

    Attributes
    ----------
    messages : int
        Sent between the sites and the meta-scheduler.
    lost : int
        Of these, those that did not arrive.
    crashes, cuts : int
        Failures of sites, and of their connections.
    restarts : int
        How often a job that worked was lost with a site and begun anew.
    link_changes : int
        Instants at which links of the network slowed, failed or came back.
    """

    messages: int
    lost: int
    crashes: int
    cuts: int
    restarts: int
    link_changes: int = 0


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
    site : str
        Name of the site.
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
    factor : numpy.ndarray of float64, shape (n,), optional
        With a network: by which each job grew on idle links (1 on one site, and for jobs that never started).
    slowdown : numpy.ndarray of float64, shape (n,), optional
        With a network: by which it took longer than that because of what else was on the links, on average.
    transfer_ms : numpy.ndarray of int64, shape (n,), optional
        With a network: how long its data moved while it held its nodes.
    columns : mapping from str to numpy.ndarray, shape (n,), optional
        What a discipline tells of each job besides (docs/write-a-discipline.md); 0 for jobs that were never started.
    own_metrics : mapping from str to float, optional
        The metrics that a discipline has of its own; on a grid under the names of the sites, as ``north.NAME``.
    world : WorldUse, optional
        Of a run in the simulated world.
    own : object, optional
        What a discipline tells of the run besides: its docs page says what. One that `SharesNodes` has metrics of that;
        one with `Switches` has a file and a plot of them.

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
    site: str = "site"
    shared: bool = False
    shares_time: bool = False
    cancelled: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    site_nodes: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    placement: Placement | None = None
    policy: GridPolicy | None = None
    factor: FloatArray | None = None
    slowdown: FloatArray | None = None
    transfer_ms: IntArray | None = None
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    own_metrics: Mapping[str, float] = field(default_factory=dict)
    world: WorldUse | None = None
    own: Any = None

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
        for name in ("options", "columns", "own_metrics"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        ran = (self.start_ms >= self.workload.submit_ms) & (self.end_ms > self.start_ms)
        wrong = ~ran & ~((self.start_ms == NEVER) & (self.end_ms == NEVER))
        # A schedule with places may be of a live grid, whose clock need not be that of the workload.
        if self.placement is None and wrong.any():
            row = int(np.argmax(wrong))
            times = f"submitted {self.workload.submit_ms[row]}, start {self.start_ms[row]}, end {self.end_ms[row]} ms"
            raise InputError(f"{self.label}: job {self.workload.job_id[row]}: {times} are not in this order")

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.label!r}: {len(self.workload)} jobs of {self.workload.name} on {self.nodes} nodes)"
        )

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

    def multi_site_area(self) -> float:
        """Return the part of the squashed area (width x time run) that multi-site jobs have (Streit, Table 7.4)."""
        area = self.workload.width * (self.end_ms - self.start_ms).astype(np.float64)
        whole = float(area.sum())
        return float(area[self.multi_site].sum()) / whole if whole else 0.0

    def fragments_of(self, row: int) -> list[tuple[int, int]]:
        """Return (site, width) of each fragment of the job in a row, in the order in which they were taken."""
        if self.placement is None:
            return [(0, int(self.workload.width[row]))] if self.ran[row] else []
        first = int(self.placement.first[row])
        taken = self.placement.fragments[first : first + int(self.placement.parts[row])]
        return [(int(fragment["site"]), int(fragment["width"])) for fragment in taken]

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
        return compute_metrics(*self.schedule(), self.nodes, shared=self.shared)

    def sharing_metrics(self) -> SharedMetrics:
        """Return what sharing the nodes of one site came to.

        Raises
        ------
        InputError
            If no nodes were shared.
        """
        if not isinstance(self.own, SharesNodes):
            raise InputError(f"{self.label}: no nodes were shared; there are no metrics of that")
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
        return compute_by_class(submit_ms, start_ms, end_ms, width, self.nodes, classes, shared=self.shared)

    def job_columns(self, rows: slice = slice(None)) -> dict[str, Any]:
        """Return the columns of ``jobs.csv``.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; all if left out.

        Returns
        -------
        dict from str to numpy.ndarray of shape (k,), and for "site" to str
            ``run_ms`` is how long the job ran, and ``fragments`` in how many pieces: 1, or 0 if it was never started.
        """
        jobs, start_ms, end_ms = self.workload, self.start_ms[rows], self.end_ms[rows]
        return {
            "job_id": jobs.job_id[rows],
            "submit_ms": jobs.submit_ms[rows],
            "start_ms": start_ms,
            "end_ms": end_ms,
            "width": jobs.width[rows],
            "estimate_ms": jobs.estimate_ms[rows],
            "run_ms": end_ms - start_ms,
            "site": self.site,
            "fragments": self.n_fragments[rows],
            "killed": self.killed[rows],
        } | {name: values[rows] for name, values in self.columns.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the jobs as a table, one row per job of the workload, in its order.

        Returns
        -------
        pandas.DataFrame
            The columns of ``jobs.csv`` (times in ms; ``killed`` as bool), then the optional columns of the workload.

        Raises
        ------
        UnavailableError
            If pandas is not installed.
        """
        return data_frame(self.job_columns() | dict(self.workload.columns))

    def plot(self, kind: str = "utilisation", *, start_ms: int | None = None, end_ms: int | None = None) -> Figure:
        """Draw this result.

        Parameters
        ----------
        kind : {"utilisation", "waits", "schedule", "slices"}
            Utilisation and queue length over time; the distributions of waits and slowdowns; time by nodes, with the
            jobs as rectangles; the same slice by slice, where nodes are shared in time.
        start_ms, end_ms : int, optional
            The time to show, for "utilisation" (all if left out) and "schedule" (the busiest window that is still
            readable if left out). The distributions are of all jobs and take no window.

        Returns
        -------
        matplotlib.figure.Figure
            It belongs to no window and to no state of pyplot; save it with its ``savefig``.

        Raises
        ------
        OptionError
            If there is no such kind, if the window is empty, or if there is a window for the distributions.
        """
        from gridweave.scenarios.plots import results as plots
        from gridweave.scenarios.plots import schedule as schedule_view

        if kind == "schedule" and self.shared:
            raise OptionError("kind", "'schedule' cannot be drawn where jobs share nodes; give utilisation or waits")
        if kind == "utilisation":
            return plots.plot_utilisation(self, start_ms=start_ms, end_ms=end_ms)
        if kind == "slices":
            from gridweave.scenarios.plots.slices import plot_slices

            return plot_slices(self, start_ms=start_ms, end_ms=end_ms)
        if kind == "schedule":
            return schedule_view.plot_schedule(self, start_ms=start_ms, end_ms=end_ms)
        if kind == "policies":
            from gridweave.scenarios.plots.tuning import plot_policies

            return plot_policies(self)
        if kind != "waits":
            raise OptionError("kind", f"{kind!r} is not a plot; give one of {', '.join(PLOT_KINDS)}")
        if start_ms is not None or end_ms is not None:
            raise OptionError("start_ms", "the distributions of waits are of all jobs; leave the window out")
        return plots.plot_waits(self)

    def summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says, as plain values.

        Returns
        -------
        dict
            Options, counts, metrics, and metrics per class. A metric that is not defined is None; a class that cannot
            be made (months without a start date) is left out, and ``notes`` says why.
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
            "site": self.site,
            "nodes": self.nodes,
            "workload": {
                "name": self.workload.name,
                "jobs": len(self.workload),
                "start_unix_s": self.workload.start_unix_s,
                "timezone": self.workload.timezone,
            },
            "options": dict(self.options),
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
        return write_result(self, Path(folder), plots=plots)
