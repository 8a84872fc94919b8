"""Compare a live run with its simulation, job by job and in total, using the records of the live jobs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gridweave.scenarios.batch.grid import grid_result, placement_of
from gridweave.scenarios.live.replay import LiveReplay, replayed
from gridweave.scenarios.results.files import write_all, write_json
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.scenario.run import with_names
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray, IntArray
from gridweave.site.job import JobRecord
from gridweave.site.times import span_text

MAKESPAN_TOLERANCE = 0.03
"""Maximum relative difference in makespan at which a live run on Ray still matches its simulation."""

BEHIND = 0.01
"""A machine cannot keep up if jobs hold their nodes longer than needed by more than this fraction."""

COMPARED = ("makespan_ms", "awt_ms", "awrt_area_ms", "sldwa", "util")
"""Metrics that are shown for both runs."""

HEADER = (
    *("job_id", "submit_ms", "width", "estimate_ms", "run_ms"),
    *("simulated_start_ms", "simulated_end_ms", "simulated_site", "simulated_fragments"),
    *("live_submit_ms", "live_start_ms", "live_end_ms", "live_site", "live_fragments", "outcome", "attempts"),
)
"""Columns of ``jobs.csv``."""

REPLAY_HEADER = ("replayed_start_ms", "replayed_end_ms", "replayed_site", "replayed_fragments")
"""Additional columns of ``jobs.csv`` if the live run was simulated again with its own times."""

_RAN, _NEVER_RAN = ("finished", "limit"), ("cancelled", "refused")
"""Expected outcomes of jobs that ran in the simulation, and additional expected outcomes of jobs that did not."""

_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LiveRun:
    """A scenario's live run, together with its simulation.

    Attributes
    ----------
    simulated, live : SimulationResult
        Results of the same jobs, in scenario time.
    speed : float
        Milliseconds of scenario time per real millisecond.
    submitted_ms : numpy.ndarray of int64, shape (n,)
        Time at which the live grid or site accepted each job, in scenario time.
    placed_ms : numpy.ndarray of int64, shape (n,)
        Time at which the grid placed each job; `NEVER` for jobs of a site's own users.
    needed_ms : numpy.ndarray of int64, shape (n,)
        Time that each job's work takes with its placement.
    outcomes : tuple of str
        Outcome of each job: ``finished``, ``limit``, ``failed``, ``cancelled`` or ``refused``.
    attempts : numpy.ndarray of int64, shape (n,)
        Number of attempts to start each job, including attempts that were withdrawn or not agreed on in time.
    remarks : tuple of str
        Remarks for the user.
    where : str
        Where the scenario ran live: ``Ray``, or the address of a gateway.
    tolerance : float
        Maximum relative difference in makespan at which the live run still matches the simulation.
    replay : LiveReplay, optional
        The decisions of a second simulation that uses the live run's submit times and hold times.
    """

    simulated: SimulationResult
    live: SimulationResult
    speed: float
    submitted_ms: IntArray
    placed_ms: IntArray
    needed_ms: IntArray
    outcomes: tuple[str, ...]
    attempts: IntArray
    remarks: tuple[str, ...]
    where: str = "Ray"
    tolerance: float = MAKESPAN_TOLERANCE
    replay: LiveReplay | None = None

    @property
    def ran(self) -> BoolArray:
        """Mask of the jobs that ran both live and in the simulation, shape (n,)."""
        both: BoolArray = (self.live.start_ms != NEVER) & (self.simulated.start_ms != NEVER)
        return both

    @property
    def start_differences_ms(self) -> IntArray:
        """Live minus simulated start time of each job that ran in both."""
        return (self.live.start_ms - self.simulated.start_ms)[self.ran]

    @property
    def end_differences_ms(self) -> IntArray:
        """Live minus simulated end time of each job that ran in both."""
        return (self.live.end_ms - self.simulated.end_ms)[self.ran]

    @property
    def elsewhere(self) -> BoolArray:
        """Mask of the jobs that ran live on other sites or in other fragments than in the simulation, shape (n,)."""
        simulated, other = self.simulated, self.live
        rows = range(len(simulated.workload))
        differ = [sorted(simulated.fragments_of(row)) != sorted(other.fragments_of(row)) for row in rows]
        return np.array(differ, np.bool_) & self.ran

    @property
    def same_decisions(self) -> tuple[int, int] | None:
        """Number of jobs placed live as in the replay, and number of jobs that ran in both; None without a replay."""
        if self.replay is None:
            return None
        both = np.flatnonzero((self.live.start_ms != NEVER) & (self.replay.start_ms != NEVER)).tolist()
        same = sum(tuple(sorted(self.live.fragments_of(row))) == self.replay.fragments[row] for row in both)
        return same, len(both)

    @property
    def late_ms(self) -> IntArray:
        """Time from each job's scenario submit time until it was accepted, shape (n,)."""
        return self.submitted_ms - self.live.workload.submit_ms

    @property
    def longer_ms(self) -> IntArray:
        """Time by which each job that ran held its nodes longer than its work takes."""
        return (self.live.end_ms - self.live.start_ms - self.needed_ms)[self.ran]

    @property
    def behind(self) -> float:
        """Time by which jobs held their nodes longer than they worked, relative to their work and weighted by width."""
        result, ran = self.live, self.ran
        held = float(((result.end_ms - result.start_ms)[ran] * result.workload.width[ran]).sum())
        more = float((self.longer_ms * result.workload.width[ran]).sum())
        return more / (held - more) if held > more else 0.0

    @property
    def makespan_difference(self) -> float:
        """Relative difference between the live and the simulated makespan, both counted from the first submission."""
        simulated, live = (_span_ms(run) for run in (self.simulated, self.live))
        return (live - simulated) / simulated if simulated else 0.0

    @property
    def is_within_tolerance(self) -> bool:
        """Whether every job has an expected outcome and the makespan is within the tolerance."""
        return not self._unexpected and abs(self.makespan_difference) <= self.tolerance

    @property
    def _unexpected(self) -> Counter[str]:
        """Number of jobs with each unexpected outcome; a job that never ran in the simulation need not run live."""
        runs = (self.simulated.start_ms != NEVER).tolist()
        ends = zip(self.outcomes, runs, strict=True)
        return Counter(outcome for outcome, ran in ends if outcome not in (_RAN if ran else (*_RAN, *_NEVER_RAN)))

    def verdict(self) -> str:
        """Return a one-line summary of the comparison for the user."""
        word = "yes" if self.is_within_tolerance else "no"
        text = f"makespan within {self.tolerance:.0%} of the simulated: {word} ({self.makespan_difference:+.2%})"
        return "; ".join([text, *(f"{count:,} jobs {outcome}" for outcome, count in sorted(self._unexpected.items()))])

    def warnings(self) -> list[str]:
        """Return warnings if the machine could not keep up: jobs ended late or were submitted late."""
        lines = []
        if self.behind > BEHIND:
            real_ms = float(np.median(self.longer_ms)) / self.speed
            lines.append(
                f"the machine cannot keep up: jobs held their nodes {self.behind:.1%} longer than they worked (median: "
                f"{span_text(real_ms)} of real time to start and end); give a lower --speed than "
                f"{self.speed:g}, such as {_lower(self.speed, self.behind):g}"
            )
        late_real_ms = float(np.quantile(self.late_ms, 0.95)) / self.speed
        if late_real_ms > MS_PER_S:
            lines.append(
                f"the machine cannot keep up: one job in twenty was submitted {span_text(late_real_ms)} of real "
                "time late or more; give a lower --speed"
            )
        return lines

    def metric_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield (name, simulated value, live value, relative difference) of the metrics that both runs have."""
        simulated, live = (run.metrics().to_dict() for run in (self.simulated, self.live))
        simulated["makespan_ms"], live["makespan_ms"] = _span_ms(self.simulated), _span_ms(self.live)
        for name in COMPARED:
            simulated_value, other = simulated[name], live[name]
            if simulated_value is None or other is None:
                continue
            label = _LABELS[name]
            more = f"{(other - simulated_value) / simulated_value:+.2%}" if simulated_value else "–"
            if name.endswith("_ms"):
                yield label, f"{simulated_value / MS_PER_S:,.0f}", f"{other / MS_PER_S:,.0f}", more
            elif name == "util":
                yield label, f"{simulated_value:.2%}", f"{other:.2%}", more
            else:
                yield label, f"{simulated_value:,.3f}", f"{other:,.3f}", more

    def difference_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the distribution of each per-job difference, in seconds: name, minimum, 5%, median, 95%, maximum."""
        names = ("started later", "ended later", "accepted late", "held nodes longer than its work")
        for name, values in zip(names, self._differences().values(), strict=True):
            if len(values):
                yield (name, *(f"{value / MS_PER_S:,.1f}" for value in np.quantile(values, _QUANTILES)))

    def _differences(self) -> dict[str, IntArray]:
        """Return the jobs' differences from the simulation, by their names in ``summary.json``."""
        return {
            "start_ms": self.start_differences_ms,
            "end_ms": self.end_differences_ms,
            "late_ms": self.late_ms,
            "longer_ms": self.longer_ms,
        }

    def count_rows(self) -> Iterator[tuple[str, str]]:
        """Yield (name, count) for the jobs in each category."""
        yield "jobs", f"{len(self.outcomes):,}"
        for outcome, count in sorted(Counter(self.outcomes).items()):
            yield f"of these {_OUTCOMES.get(outcome, outcome)}", f"{count:,}"
        yield "on several sites, simulated", f"{int(self.simulated.multi_site.sum()):,}"
        yield "on several sites, live", f"{int(self.live.multi_site.sum()):,}"
        yield "placed elsewhere than simulated", f"{int(self.elsewhere.sum()):,}"
        if self.same_decisions is not None:
            same, both = self.same_decisions
            yield "placed as simulated again with the live times", f"{same:,} of {both:,}"
        yield "took more than one attempt", f"{int((self.attempts > 1).sum()):,}"

    def summary(self) -> dict[str, Any]:
        """Return the content of ``summary.json`` as plain values."""
        ends = ("least", "q05", "median", "q95", "most")
        differences = {
            name: dict(zip(ends, np.quantile(values, _QUANTILES).tolist(), strict=True))
            for name, values in self._differences().items()
            if len(values)
        }
        return {
            "on": self.where,
            "speed": self.speed,
            "remarks": [*self.remarks, *self.warnings()],
            "within_tolerance": self.is_within_tolerance,
            "makespan_difference": self.makespan_difference,
            "behind": self.behind,
            "outcomes": dict(sorted(Counter(self.outcomes).items())),
            "placed_elsewhere": int(self.elsewhere.sum()),
            "placed_as_replayed": None if self.same_decisions is None else self.same_decisions[0],
            "replayed": None if self.same_decisions is None else self.same_decisions[1],
            "several_attempts": int((self.attempts > 1).sum()),
            "differences": differences,
            "simulated": self.simulated.summary(),
            "live": self.live.summary(),
        }

    def write(self, folder: str | Path, *, plots: bool = True) -> tuple[Path, ...]:
        """Write ``jobs.csv`` and ``summary.json``; with ``plots``, also write both schedules to subfolders.

        Raises
        ------
        InputError
            If the folder cannot be created or written to.
        """
        files = write_all(
            Path(folder),
            {"jobs.csv": self._write_jobs, "summary.json": lambda path: write_json(path, self.summary())},
        )
        for name, run in (("simulated", self.simulated), ("live", self.live)) if plots else ():
            files += run.write(Path(folder) / name)
        return files

    def _write_jobs(self, path: Path) -> None:
        jobs, simulated, other = self.live.workload, self.simulated, self.live
        columns: list[list[Any]] = [
            *(values.tolist() for values in (jobs.job_id, jobs.submit_ms, jobs.width, jobs.estimate_ms, jobs.run_ms)),
            *(
                simulated.start_ms.tolist(),
                simulated.end_ms.tolist(),
                self.simulated.sites_of_jobs(),
                simulated.n_fragments.tolist(),
            ),
            *(self.submitted_ms.tolist(), other.start_ms.tolist(), other.end_ms.tolist()),
            *(self.live.sites_of_jobs(), other.n_fragments.tolist(), list(self.outcomes), self.attempts.tolist()),
        ]
        header: tuple[str, ...] = HEADER
        if self.replay is not None:
            header += REPLAY_HEADER
            columns += self._replay_columns(self.replay)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(zip(*columns, strict=True))

    def _replay_columns(self, replay: LiveReplay) -> list[list[Any]]:
        sites = ["+".join(self.live.site_names[site] for site, _ in parts) for parts in replay.fragments]
        return [replay.start_ms.tolist(), replay.end_ms.tolist(), sites, [len(parts) for parts in replay.fragments]]


_LABELS = {
    "makespan_ms": "makespan, s",
    "awt_ms": "AWT, s",
    "awrt_area_ms": "AWRT by resource consumption, s",
    "sldwa": "SLDwA",
    "util": "UTIL",
}
_OUTCOMES = {"limit": "ended at their limit"}


def _span_ms(run: SimulationResult) -> int:
    ran = run.start_ms != NEVER
    return int(run.end_ms[ran].max()) - int(run.workload.submit_ms[0]) if ran.any() else 0


def _lower(speed: float, behind: float) -> float:
    """Return a rounded speed at which the same real delays would stay within `BEHIND`."""
    target = speed * BEHIND / behind
    unit = 10.0 ** np.floor(np.log10(target))
    return float(max(unit * np.floor(target / unit), 1e-3))


def live_run_of(
    built: Built,
    simulated: SimulationResult,
    records: Sequence[JobRecord],
    *,
    speed: float,
    remarks: Sequence[str] = (),
    where: str = "Ray",
    tolerance: float = MAKESPAN_TOLERANCE,
    replay: bool = False,
) -> LiveRun:
    """Compare a live run's records, given in workload order, with its simulation.

    With ``replay``, also simulate the scenario with the live run's times.
    """
    schedule = _schedule_of(built, records)
    submitted_ms = np.array([record.submit_ms for record in records], np.int64)
    placed_ms = np.array([NEVER if record.placed_ms is None else record.placed_ms for record in records], np.int64)
    needed_ms = np.array([_needed_ms(built, row, record) for row, record in enumerate(records)], np.int64)
    return LiveRun(
        simulated=simulated,
        # The grid learns late that a job has ended; by then the site may have reused its nodes, so jobs seem to share.
        live=with_names(schedule, built, shared=True),
        replay=replayed(built, schedule, submitted_ms, placed_ms, needed_ms) if replay else None,
        speed=speed,
        submitted_ms=submitted_ms,
        placed_ms=placed_ms,
        needed_ms=needed_ms,
        outcomes=tuple(record.outcome or record.state for record in records),
        attempts=np.array([record.attempt for record in records], np.int64),
        remarks=tuple(remarks),
        where=where,
        tolerance=tolerance,
    )


def _needed_ms(built: Built, row: int, record: JobRecord) -> int:
    """Return how long a job's work takes with its placement.

    If a site may run jobs at rates other than 1, return how long the job's processes ran.
    """
    if record.ran_ms is not None and any(site in built.sites_with_rates for site, _ in record.places):
        return record.ran_ms[1] - record.ran_ms[0]
    run_ms = int(built.workload.run_ms[row])
    if built.net is None:
        return built.policy.split_length_ms(run_ms, max(1, len(record.places)))
    return run_ms if record.split is None else round(run_ms * record.split.factor)


def _schedule_of(built: Built, records: Sequence[JobRecord]) -> SimulationResult:
    """Build the live schedule, in scenario time."""
    numbers = {name: number for number, name in enumerate(built.site_names)}
    start_ms, end_ms = np.full((2, len(records)), NEVER, np.int64)
    parts: list[list[tuple[int, int]]] = [[] for _ in records]
    for row, record in enumerate(records):
        if record.start_ms is not None and record.end_ms is not None:
            start_ms[row], end_ms[row] = record.start_ms, record.end_ms
            parts[row] = [(numbers[site], nodes) for site, nodes in record.places]
    ids = built.workload.job_id.tolist()
    refused = {ids[row]: r.reason for row, r in enumerate(records) if r.state == "refused"}
    result = grid_result(built.workload, built.nodes, built.policy, start_ms, end_ms, placement_of(parts), refused)
    killed = np.array([record.outcome == "limit" for record in records], np.bool_)
    return replace(result, killed=killed & (start_ms != NEVER))
