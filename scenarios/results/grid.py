"""What a simulation of a grid returns: when and where each job ran, what that amounts to, and the files that say so.

What a network did to the jobs of a run: how splits stretched them, and how long their data was on the way.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.schedule import (
    JOBS_HEADER,
    NEVER,
    PLOT_KINDS,
    ROWS_AT_ONCE,
    SimulationResult,
    files_of,
    write_all,
)
from gridweave.scenarios.workload.table import IntArray, data_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from gridweave.scenarios.batch.grid_network import GridNet


COLUMNS = ("factor", "slowdown", "transfer_ms")
"""Of ``jobs.csv``, where there is a network."""


class NetworkUse(msgspec.Struct, frozen=True, kw_only=True):
    """A network, and what became of the jobs that used it.

    Attributes
    ----------
    name : str
        The file, or the scenario that it is written in.
    nodes, cables : int
    changes : int
        Instants at which links change.
    split, contention, data : str
        As in `gridweave.scenarios.batch.grid_network.GridNet`.
    mean_factor : float or None
        By which multi-site jobs grew on idle links; None if there are none.
    mean_factor_by_area : float or None
        The same, weighted by width x run time on one site.
    mean_slowdown : float or None
        By which multi-site jobs, and those with data, took longer than that, for what else was on the links.
    jobs_with_transfers : int
        Jobs that held nodes while their data was on the way.
    transfer_ms : int
        How long they did, all together.
    transfer_share : float or None
        Part of the node time of all jobs that went into this; None if no job ran.
    """

    name: str
    nodes: int
    cables: int
    changes: int
    split: str
    contention: str
    data: str
    mean_factor: float | None
    mean_factor_by_area: float | None
    mean_slowdown: float | None
    jobs_with_transfers: int
    transfer_ms: int
    transfer_share: float | None


def network_use(result: SimulationResult, net: GridNet) -> NetworkUse:
    """Return what a network did to the jobs of a run.

    Parameters
    ----------
    result : SimulationResult
        Of a simulation with this network.

    Raises
    ------
    InputError
        If the result is of a simulation without a network.
    """
    columns = network_columns(result)
    topology, several = net.model.topology, result.multi_site
    factor, slowdown, transfer_ms = (columns[name] for name in COLUMNS)
    width = result.workload.width.astype(np.float64)
    took = width * (result.end_ms - result.start_ms)
    return NetworkUse(
        name=Path(topology.name).name,
        nodes=len(topology.nodes),
        cables=len(np.unique(topology.cable)),
        changes=0 if net.timetable is None else len(net.timetable.instants_ms),
        split=net.split,
        contention=net.contention,
        data=net.data,
        mean_factor=_mean(factor[several]),
        mean_factor_by_area=_mean(factor[several], (width * result.workload.run_ms)[several]),
        mean_slowdown=_mean(slowdown[several | (transfer_ms > 0)]),
        jobs_with_transfers=int(np.count_nonzero(transfer_ms)),
        transfer_ms=int(transfer_ms.sum()),
        transfer_share=_mean(transfer_ms / np.maximum(result.end_ms - result.start_ms, 1), took),
    )


def network_columns(result: SimulationResult) -> dict[str, npt.NDArray[Any]]:
    """Return what a network did to each job, under the names `COLUMNS`.

    Returns
    -------
    dict from str to numpy.ndarray, shape (n,)

    Raises
    ------
    InputError
        If there was no network.
    """
    if not all(name in result.columns for name in COLUMNS):
        raise InputError("the grid was simulated without a network")
    return {name: result.columns[name] for name in COLUMNS}


def policy_label(policy: GridPolicy, net: GridNet | None) -> str:
    """Return what tables and plots call a policy: with a network there is no p."""
    if net is None:
        return policy.label
    parts = [msgspec.structs.replace(policy, overhead=0.0).label.replace(" p=0%", " over the network")]
    parts += ["to the earliest end"] * (net.split == "earliest-end" and policy.splits)
    parts += [f"{net.contention} contention"] * (net.contention != "none")
    parts += [f"{net.data} data"] * (net.data != "none")
    return " ".join(parts)


def _mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None) -> float | None:
    """Return a mean; None if there is nothing to take it of."""
    if not len(values) or (weights is not None and not weights.sum() > 0):
        return None
    mean = float(np.average(values, weights=weights))
    return mean if math.isfinite(mean) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteUse:
    """What became of one site.

    Attributes
    ----------
    name : str
    nodes : int
    submitted : int
        Jobs of its own users.
    jobs : int
        Jobs that ran there, alone or with a fragment.
    multi_site_jobs : int
        Those of them that ran on other sites too.
    from_elsewhere : int
        Those of them that users of other sites submitted.
    util : float
        Part of its node time in use, from the first submission in the grid to the last end; NaN if no job ran.
    """

    name: str
    nodes: int
    submitted: int
    jobs: int
    multi_site_jobs: int
    from_elsewhere: int
    util: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class GridRun:
    """The schedule of a grid, with the names that people know.

    Parameters
    ----------
    home : numpy.ndarray of int64, shape (n,)
        The site at which each job was submitted.
    name : str
        Of the scenario.
    options : mapping from str
        The scenario as plain values, for ``summary.json``.
    shown : tuple of str
        Metrics that tables show.
    remarks : tuple of str
        What was done to the workload before, for people.
    shared : bool
        Whether jobs may share the nodes of some site.
    net : GridNet, optional
        The network between the sites that the grid was simulated with.

    Raises
    ------
    InputError
        If there is not one name per site and one home per job.
    """

    result: SimulationResult
    site_names: tuple[str, ...]
    home: IntArray
    name: str = "grid"
    options: Mapping[str, Any] = field(default_factory=dict)
    shown: tuple[str, ...] = ("awrt_area_ms", "awwt_area_ms", "awrt_width_ms", "awwt_width_ms", "util")
    remarks: tuple[str, ...] = ()
    shared: bool = False
    net: GridNet | None = None

    def __post_init__(self) -> None:
        if len(self.site_names) != len(self.result.site_nodes):
            raise InputError(f"{self.name}: {len(self.site_names)} names for {len(self.result.site_nodes)} sites")
        if self.home.shape != self.result.start_ms.shape:
            raise InputError(f"{self.name}: home has shape {self.home.shape}; give one site per job")

    def __repr__(self) -> str:
        jobs, sites = len(self.result.workload), len(self.site_names)
        return f"GridRun({self.name!r}: {jobs} jobs on {sites} sites, {self.label})"

    @property
    def label(self) -> str:
        """What tables and plots call the policy, and what it knows of the network."""
        return self.result.label if self.result.policy is None else policy_label(self.result.policy, self.net)

    def network_use(self) -> NetworkUse | None:
        """Return what the network did to the jobs; None if there is none."""
        return None if self.net is None else network_use(self.result, self.net)

    def as_one(self) -> SimulationResult:
        """Return the schedule as if the grid were one machine, for what does not ask where a job ran."""
        return replace(self.result, label=f"{self.name}, {self.label}", options=dict(self.options), shared=self.shared)

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
        result = self.result
        fragments = np.flatnonzero(result.fragments["site"] == site)
        rows = job_of_fragments(result)[fragments]
        order = np.argsort(rows, kind="stable")
        rows, fragments = rows[order], fragments[order]
        workload = result.workload.take(rows).replace(width=result.fragments["width"][fragments])
        return SimulationResult(
            workload=workload,
            nodes=int(result.site_nodes[site]),
            start_ms=result.start_ms[rows],
            end_ms=result.end_ms[rows],
            killed=workload.overran,
            label=self.label,
            site=self.site_names[site],
            shared=self.shared,
        )

    def site_uses(self) -> list[SiteUse]:
        """Return what became of each site.

        Returns
        -------
        list of SiteUse
            In the order of the sites.
        """
        result = self.result
        ran = result.start_ms != NEVER
        span_ms = float(result.end_ms[ran].max() - result.workload.submit_ms[ran].min()) if ran.any() else math.nan
        length_ms = (result.end_ms - result.start_ms).astype(np.float64)
        job_of, site_of, sites = job_of_fragments(result), result.fragments["site"], len(self.site_names)
        submitted = np.bincount(self.home, minlength=sites).tolist()
        jobs = np.bincount(site_of, minlength=sites).tolist()
        several = np.bincount(site_of[result.multi_site[job_of]], minlength=sites).tolist()
        elsewhere = np.bincount(site_of[self.home[job_of] != site_of], minlength=sites).tolist()
        area = np.bincount(site_of, length_ms[job_of] * result.fragments["width"], sites)
        util = (area / (result.site_nodes * span_ms)).tolist()
        return [
            SiteUse(
                name=name,
                nodes=int(result.site_nodes[site]),
                submitted=submitted[site],
                jobs=jobs[site],
                multi_site_jobs=several[site],
                from_elsewhere=elsewhere[site],
                util=util[site],
            )
            for site, name in enumerate(self.site_names)
        ]

    def multi_site_area(self) -> float:
        """Return the part of the squashed area that multi-site jobs have; NaN if no job ran."""
        return self.result.multi_site_area() if self.result.n_fragments.any() else math.nan

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
        result = self.result
        texts = []
        for row in range(*rows.indices(len(result.workload))):
            taken = result.fragments_of(row)
            if len(taken) == 1:
                texts.append(self.site_names[taken[0][0]])
            else:
                texts.append("+".join(f"{self.site_names[site]}:{width}" for site, width in taken))
        return texts

    def job_columns(self, rows: slice = slice(None)) -> dict[str, Any]:
        """Return the columns of ``jobs.csv``.

        Parameters
        ----------
        rows : slice, optional
            Rows of the workload; all if left out.

        Returns
        -------
        dict from str to numpy.ndarray of shape (k,), and for "site" to list of str
            ``run_ms`` is how long the job ran, the overhead of a split included; ``width`` is that of the whole job.
            With a network also those of `gridweave.scenarios.results.grid.COLUMNS`.
        """
        result, jobs = self.result, self.result.workload
        start_ms, end_ms = result.start_ms[rows], result.end_ms[rows]
        return {
            "job_id": jobs.job_id[rows],
            "submit_ms": jobs.submit_ms[rows],
            "start_ms": start_ms,
            "end_ms": end_ms,
            "width": jobs.width[rows],
            "estimate_ms": jobs.estimate_ms[rows],
            "run_ms": end_ms - start_ms,
            "site": self.sites_of_jobs(rows),
            "fragments": result.n_fragments[rows],
            "killed": jobs.overran[rows] & (start_ms != NEVER),
        } | {name: values[rows] for name, values in result.columns.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the jobs as a table, with ``home``, the name of the site at which each was submitted.

        Raises
        ------
        UnavailableError
            If pandas is not installed.
        """
        return data_frame(self.job_columns() | {"home": np.array(self.site_names)[self.home]})

    def plot(self, kind: str = "utilisation") -> Figure:
        """Draw this run.

        Parameters
        ----------
        kind : {"utilisation", "waits", "schedule"}
            Use of each site and waiting jobs over time; distributions of waits and slowdowns; the busiest time with the
            jobs as rectangles, site by site.

        Raises
        ------
        OptionError
            If there is no such kind.
        """
        if kind not in PLOT_KINDS:
            raise OptionError("kind", f"{kind!r} is not a plot; give one of {', '.join(PLOT_KINDS)}")
        if kind == "schedule" and self.shared:
            raise OptionError("kind", "'schedule' cannot be drawn where jobs share nodes; give utilisation or waits")
        if kind == "waits":
            from gridweave.scenarios.plots.results import plot_waits

            return plot_waits(self.as_one())
        from gridweave.scenarios.plots import grid as grid_plots

        return grid_plots.plot_utilisation(self) if kind == "utilisation" else grid_plots.plot_schedule(self)

    def summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says, as plain values.

        Returns
        -------
        dict
            That of `SimulationResult.summary` for the grid as one machine, with the scenario as its options, and with
            ``sites``, ``multi_site``, ``network`` and ``remarks``.
        """
        one = self.as_one().summary()
        world = self.result.world
        options = one.pop("options")
        del one["site"]
        return one | {
            "label": self.label,
            "scenario": options,
            "remarks": list(self.remarks),
            "world": None if world is None else {"messages": world.messages, "restarts": world.restarts},
            "network": msgspec.to_builtins(self.network_use()),
            "sites": [
                {name: _plain(getattr(use, name)) for name in SiteUse.__dataclass_fields__} for use in self.site_uses()
            ],
            "multi_site": self.multi_site_summary(),
        }

    def multi_site_summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of multi-site jobs, as plain values.

        Returns
        -------
        dict
            ``jobs``, ``share_of_jobs``, ``share_of_squashed_area`` (None if no job ran), and ``jobs_by_fragments``.
        """
        fragments, jobs = np.unique(self.result.n_fragments[self.result.n_fragments > 0], return_counts=True)
        ran, several = int(jobs.sum()), int(self.result.multi_site.sum())
        return {
            "jobs": several,
            "share_of_jobs": several / ran if ran else None,
            "share_of_squashed_area": _plain(self.multi_site_area()),
            "jobs_by_fragments": dict(zip(map(str, fragments.tolist()), jobs.tolist(), strict=True)),
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
            The files. All are complete before the first gets its name.

        Raises
        ------
        InputError
            If the folder cannot be made or written to.
        """
        return write_all(Path(folder), files_of(self, self._write_jobs, plots=plots))

    def _write_jobs(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            header = (*JOBS_HEADER, *self.result.columns)
            writer.writerow(header)
            for first in range(0, len(self.result.workload), ROWS_AT_ONCE):
                columns = self.job_columns(slice(first, first + ROWS_AT_ONCE))
                columns["killed"] = columns["killed"].astype(np.int64)
                lists = [columns[name] if name == "site" else columns[name].tolist() for name in header]
                writer.writerows(zip(*lists, strict=True))


def job_of_fragments(result: SimulationResult) -> IntArray:
    """Return the row of the job that each fragment belongs to.

    Returns
    -------
    numpy.ndarray of int64, shape (all fragments,)
    """
    job_of = np.zeros(len(result.fragments), np.int64)
    started = np.flatnonzero(result.n_fragments)
    for number in range(int(result.n_fragments.max(initial=0))):
        started = started[result.n_fragments[started] > number]
        job_of[result.first_fragment[started] + number] = started
    return job_of


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and math.isnan(value) else value
