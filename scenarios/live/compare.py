"""What was played live, by the records of its jobs, beside what was simulated: job by job, and as a whole."""

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
"""A live schedule on Ray is as the simulation says if its makespan is no further off."""

BEHIND = 0.01
"""A machine cannot keep up if jobs hold their nodes by more than such a part longer than they need them."""

COMPARED = ("makespan_ms", "awt_ms", "awrt_area_ms", "sldwa", "util")
"""The metrics that are set side by side."""

HEADER = (
    *("job_id", "submit_ms", "width", "estimate_ms", "run_ms"),
    *("simulated_start_ms", "simulated_end_ms", "simulated_site", "simulated_fragments"),
    *("live_submit_ms", "live_start_ms", "live_end_ms", "live_site", "live_fragments", "outcome", "attempts"),
)
"""Of jobs.csv."""

REPLAY_HEADER = ("replayed_start_ms", "replayed_end_ms", "replayed_site", "replayed_fragments")
"""Of the further columns if the run was simulated again."""

_RAN, _NEVER_RAN = ("finished", "limit"), ("cancelled", "refused")
"""How a job may end that has run, and that has not."""

_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LiveRun:
    """A scenario as it was simulated and as it was played live.

    Attributes
    ----------
    simulated, live : SimulationResult
        Of the same jobs; all times are the scenario's.
    speed : float
        How many ms of the scenario passed in one.
    submitted_ms : numpy.ndarray of int64, shape (n,)
        When the live grid, or site, took in each job.
    placed_ms : numpy.ndarray of int64, shape (n,)
        When the grid placed each job; `NEVER` for those of a site's own users.
    needed_ms : numpy.ndarray of int64, shape (n,)
        How long the work of each job takes where it was placed.
    outcomes : tuple of str
        How each job ended: ``finished``, ``limit``, ``failed``, ``cancelled`` or ``refused``.
    attempts : numpy.ndarray of int64, shape (n,)
        How many attempts each took; one that was withdrawn from a queue, or not agreed on in time, counts.
    remarks : tuple of str
        For people.
    where : str
        On what it was played, for people.
    tolerance : float
        The live schedule is as simulated if its makespan differs by no more than such a part.
    replay : LiveReplay, optional
        What is decided if the run is simulated again with the live submit times and hold times.
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
        """Which jobs ran in both, shape (n,)."""
        both: BoolArray = (self.live.start_ms != NEVER) & (self.simulated.start_ms != NEVER)
        return both

    @property
    def start_differences_ms(self) -> IntArray:
        """How much later each job that ran was started live."""
        return (self.live.start_ms - self.simulated.start_ms)[self.ran]

    @property
    def end_differences_ms(self) -> IntArray:
        """How much later each job that ran ended live."""
        return (self.live.end_ms - self.simulated.end_ms)[self.ran]

    @property
    def elsewhere(self) -> BoolArray:
        """Which jobs were placed otherwise than in the simulation: on other sites, or in other parts, shape (n,)."""
        one, other = self.simulated, self.live
        rows = range(len(one.workload))
        differ = [sorted(one.fragments_of(row)) != sorted(other.fragments_of(row)) for row in rows]
        return np.array(differ, np.bool_) & self.ran

    @property
    def same_decisions(self) -> tuple[int, int] | None:
        """How many jobs were placed live as in the replay, of how many that ran in both; None without a replay."""
        if self.replay is None:
            return None
        both = np.flatnonzero((self.live.start_ms != NEVER) & (self.replay.start_ms != NEVER)).tolist()
        same = sum(tuple(sorted(self.live.fragments_of(row))) == self.replay.fragments[row] for row in both)
        return same, len(both)

    @property
    def late_ms(self) -> IntArray:
        """How much later each job was taken in than the scenario has it, shape (n,)."""
        return self.submitted_ms - self.live.workload.submit_ms

    @property
    def longer_ms(self) -> IntArray:
        """How much longer each job that ran held its nodes than its work takes where it was placed."""
        return (self.live.end_ms - self.live.start_ms - self.needed_ms)[self.ran]

    @property
    def behind(self) -> float:
        """By which part of their work jobs held their nodes longer than that, weighted by width."""
        result, ran = self.live, self.ran
        held = float(((result.end_ms - result.start_ms)[ran] * result.workload.width[ran]).sum())
        more = float((self.longer_ms * result.workload.width[ran]).sum())
        return more / (held - more) if held > more else 0.0

    @property
    def makespan_difference(self) -> float:
        """By which part the live makespan is longer than the simulated, both from the first submission."""
        simulated, live = (_span_ms(run) for run in (self.simulated, self.live))
        return (live - simulated) / simulated if simulated else 0.0

    @property
    def is_within_tolerance(self) -> bool:
        """Whether every job came to the end that it has in the simulation, and the makespan is as simulated."""
        return not self._others and abs(self.makespan_difference) <= self.tolerance

    @property
    def _others(self) -> Counter[str]:
        """Count unexpected outcomes, by outcome; a job that never runs in the simulation need not run live."""
        runs = (self.simulated.start_ms != NEVER).tolist()
        ends = zip(self.outcomes, runs, strict=True)
        return Counter(outcome for outcome, ran in ends if outcome not in (_RAN if ran else (*_RAN, *_NEVER_RAN)))

    def verdict(self) -> str:
        """Return what came out, in one line for people."""
        word = "yes" if self.is_within_tolerance else "no"
        text = f"makespan within {self.tolerance:.0%} of the simulated: {word} ({self.makespan_difference:+.2%})"
        return "; ".join([text, *(f"{count:,} jobs {outcome}" for outcome, count in sorted(self._others.items()))])

    def warnings(self) -> list[str]:
        """Return whether the machine could keep up, and how far behind it was if not: at most one line each."""
        lines = []
        if self.behind > BEHIND:
            real_ms = float(np.median(self.longer_ms)) / self.speed
            lines.append(
                f"the machine cannot keep up: jobs held their nodes {self.behind:.1%} longer than they worked (half of "
                f"them {span_text(real_ms)} of real time or more to start and end); give a lower --speed than "
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
        """Yield metrics: name, simulated, live, and by how much the latter is more."""
        simulated, live = (run.metrics().to_dict() for run in (self.simulated, self.live))
        simulated["makespan_ms"], live["makespan_ms"] = _span_ms(self.simulated), _span_ms(self.live)
        for name in COMPARED:
            one, other = simulated[name], live[name]
            if one is None or other is None:
                continue
            label = _LABELS[name]
            more = f"{(other - one) / one:+.2%}" if one else "–"
            if name.endswith("_ms"):
                yield label, f"{one / MS_PER_S:,.0f}", f"{other / MS_PER_S:,.0f}", more
            elif name == "util":
                yield label, f"{one:.2%}", f"{other:.2%}", more
            else:
                yield label, f"{one:,.3f}", f"{other:,.3f}", more

    def difference_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield differences job by job in seconds: name, least, 5%, median, 95%, most."""
        names = ("started later", "ended later", "accepted late", "held nodes longer than its work")
        for name, values in zip(names, self._differences().values(), strict=True):
            if len(values):
                yield (name, *(f"{value / MS_PER_S:,.1f}" for value in np.quantile(values, _QUANTILES)))

    def _differences(self) -> dict[str, IntArray]:
        """Return by how much jobs differed from the simulation, by the names of ``summary.json``."""
        return {
            "start_ms": self.start_differences_ms,
            "end_ms": self.end_differences_ms,
            "late_ms": self.late_ms,
            "longer_ms": self.longer_ms,
        }

    def count_rows(self) -> Iterator[tuple[str, str]]:
        """Yield numbers of jobs."""
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
        """Return what ``summary.json`` says, as plain values."""
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
        """Write ``jobs.csv`` and ``summary.json``, and the plots of both schedules into folders of their own.

        Raises
        ------
        InputError
            If the folder cannot be made or written to.
        """
        files = write_all(
            Path(folder),
            {"jobs.csv": self._write_jobs, "summary.json": lambda path: write_json(path, self.summary())},
        )
        for name, run in (("simulated", self.simulated), ("live", self.live)) if plots else ():
            files += run.write(Path(folder) / name)
        return files

    def _write_jobs(self, path: Path) -> None:
        jobs, one, other = self.live.workload, self.simulated, self.live
        columns: list[list[Any]] = [
            *(values.tolist() for values in (jobs.job_id, jobs.submit_ms, jobs.width, jobs.estimate_ms, jobs.run_ms)),
            *(one.start_ms.tolist(), one.end_ms.tolist(), self.simulated.sites_of_jobs(), one.n_fragments.tolist()),
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
    """Return the time from the first submission to the last end."""
    ran = run.start_ms != NEVER
    return int(run.end_ms[ran].max()) - int(run.workload.submit_ms[0]) if ran.any() else 0


def _lower(speed: float, behind: float) -> float:
    """Return a round speed at which the same delays would be in bounds."""
    wanted = speed * BEHIND / behind
    unit = 10.0 ** np.floor(np.log10(wanted))
    return float(max(unit * np.floor(wanted / unit), 1e-3))


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
    """Return what became of the jobs of a scenario, in the order of the workload, beside its simulation.

    With `replay` it is simulated again, with the times of the live run.
    """
    schedule = _schedule_of(built, records)
    submitted_ms = np.array([record.submit_ms for record in records], np.int64)
    placed_ms = np.array([NEVER if record.placed_ms is None else record.placed_ms for record in records], np.int64)
    needed_ms = np.array([_needed_ms(built, row, record) for row, record in enumerate(records)], np.int64)
    return LiveRun(
        simulated=simulated,
        # The grid hears of ends late, when a site's own queue may have used the nodes again: as if jobs shared them.
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
    """Return how long a job's work takes at its placement.

    At a site where jobs may run at rates other than 1, this is how long the job's processes ran.
    """
    if record.ran_ms is not None and any(site in built.sites_with_rates for site, _ in record.places):
        return record.ran_ms[1] - record.ran_ms[0]
    run_ms = int(built.workload.run_ms[row])
    if built.net is None:
        return built.policy.split_length_ms(run_ms, max(1, len(record.places)))
    return run_ms if record.split is None else round(run_ms * record.split.factor)


def _schedule_of(built: Built, records: Sequence[JobRecord]) -> SimulationResult:
    """Return what was played as the schedule that it is, in the time of the scenario."""
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
