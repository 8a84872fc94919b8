"""A failure drill: run jobs, inject a fault and repair it, wait for the jobs' ends, and check the history."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

from compose_grid import SITES, ComposeGrid, until
from gridweave.site.job import JobRecord

NOT_BEGUN = "not begun: the time for drills was used up"


@dataclass
class Outcome:
    """The outcome of a drill."""

    name: str
    seed: int
    jobs: int = 0
    again: int = 0
    seconds: float = 0.0
    problem: str = "never came to its end"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for a JSON file."""
        return asdict(self) | {"is_good": not self.problem}


@dataclass
class Report:
    """The outcomes of all drills and the durations of other phases; no drill begins after `budget_s`."""

    seed: int
    budget_s: float = float("inf")
    outcomes: list[Outcome] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether the time budget is spent, so that no other drill begins."""
        return time.monotonic() - self.began_s > self.budget_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        begin_s = time.monotonic()
        yield
        self.phases.append((name, time.monotonic() - begin_s))

    def table(self) -> Table:
        """Return the report as a table."""
        took = ", ".join(f"{name}: {seconds:.0f} s" for name, seconds in self.phases)
        table = Table(title=f"Failure drills, seed {self.seed} ({took})", title_justify="left")
        for name, is_number in (
            ("drill", False),
            ("seed", True),
            ("jobs", True),
            ("run again", True),
            ("s", True),
            ("outcome", False),
        ):
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for one in self.outcomes:
            if one.problem == NOT_BEGUN:
                table.add_row(one.name, str(one.seed), "", "", "", f"[yellow]{NOT_BEGUN}[/]")
                continue
            good = "[green]none lost, none doubled[/]" if not one.problem else f"[red]{one.problem}[/]"
            table.add_row(one.name, str(one.seed), str(one.jobs), str(one.again), f"{one.seconds:.0f}", good)
        return table


class Drill:
    """The jobs of one drill.

    Parameters
    ----------
    grid : ComposeGrid
    seed : int
        Seed of the widths and lengths of the jobs.
    """

    def __init__(self, grid: ComposeGrid, seed: int) -> None:
        self.grid = grid
        self._rng = np.random.default_rng(seed)
        self.jobs: dict[str, list[int]] = {}
        self.records: dict[int, JobRecord] = {}

    def submit(self, service: str, count: int) -> list[int]:
        """Submit jobs to a site or to the grid, where some are wider than any site; return their numbers."""
        return self._took(service, self.grid.hand_in(service, self._shapes(service, count)))

    def submit_within(self, site: str, count: int) -> list[int]:
        """Submit jobs to a site from its own container; return their numbers."""
        return self._took(site, self.grid.hand_in_within(site, self._shapes(site, count)))

    def _shapes(self, service: str, count: int) -> list[tuple[int, float]]:
        most = {"grid": 10, **SITES}[service]
        widths, sleeps_s = self._rng.integers(1, most + 1, count), self._rng.uniform(3.0, 6.0, count)
        return list(zip(widths.tolist(), sleeps_s.tolist(), strict=True))

    def _took(self, service: str, numbers: list[int]) -> list[int]:
        self.jobs.setdefault(service, []).extend(numbers)
        return numbers

    def submit_split(self, sleep_s: float = 10.0) -> int:
        """Submit a job that needs the nodes of all sites; return its number."""
        (number,) = self.grid.hand_in("grid", [(sum(SITES.values()), sleep_s)])
        self.jobs.setdefault("grid", []).append(number)
        return number

    def wait_state(self, service: str, number: int, state: str) -> None:
        """Wait until a job is in a state."""
        until(
            f"job {number} of {service} is {state}",
            lambda: self.grid.records(service, [number])[0].state == state or None,
        )

    def wait_all(self) -> None:
        """Wait until every job has ended; assert that each has finished."""
        for service, numbers in self.jobs.items():
            for record in self.grid.wait_ended(service, numbers):
                self.records[record.job_id] = record
        unwell = {number: one.outcome for number, one in self.records.items() if one.outcome != "finished"}
        assert not unwell, f"jobs that did not finish: {unwell}"

    def run_again(self) -> int:
        """Return the number of the grid's jobs that needed more than one attempt."""
        return sum(record.attempt > 1 for record in self.records.values())


@contextlib.contextmanager
def drilled(grid: ComposeGrid, report: Report, name: str, folder: Path) -> Iterator[Drill]:
    """Run the block as a drill: start jobs on all sites before it, await their ends after it, and check the history.

    Parameters
    ----------
    grid : ComposeGrid
    report : Report
        Gets the outcome.
    name : str
    folder : pathlib.Path
        Folder for copies of the journals.
    """
    outcome = Outcome(name, (report.seed * 1_000_003 + zlib.crc32(name.encode())) % 2**31)
    report.outcomes.append(outcome)
    if report.is_spent:
        outcome.problem = NOT_BEGUN
        pytest.skip(NOT_BEGUN)
    begin_s = time.monotonic()
    drill = Drill(grid, outcome.seed)
    try:
        drill.wait_state("grid", drill.submit_split(), "running")
        drill.submit("grid", 6)
        for site in SITES:
            drill.submit(site, 1)
        yield drill
        drill.submit("grid", 2)
        drill.wait_all()
        grid.check(folder)
        outcome.problem = ""
    except BaseException as error:
        outcome.problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise
    finally:
        outcome.seconds = time.monotonic() - begin_s
        outcome.jobs = sum(len(numbers) for numbers in drill.jobs.values())
        outcome.again = drill.run_again()
