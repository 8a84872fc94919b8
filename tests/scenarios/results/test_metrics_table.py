"""The table of metrics."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from gridweave.errors import InputError
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.tables import ACROSS_AT_MOST, metrics_table
from gridweave.scenarios.workload.table import Workload


def make_result(label: str, delay_s: int = 0, name: str = "big") -> SimulationResult:
    """Build a result of three hundred jobs, one after the other, each after the same wait."""
    rows = np.arange(300)
    run_ms = np.full(300, 100_000_000)
    workload = Workload(rows, rows * 100_000_000, rows % 4 + 1, run_ms, run_ms, name=name)
    start_ms = workload.submit_ms + delay_s * 1000
    return SimulationResult(workload=workload, nodes=8, start_ms=start_ms, end_ms=start_ms + run_ms, label=label)


def lines(results: list[SimulationResult], width: int = 80) -> list[str]:
    """Print the table of results on a console of the given width, without colours."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(metrics_table(results))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def row(printed: list[str], name: str) -> list[str]:
    """Return the cells of the row that begins with this name."""
    return next(line for line in printed if line.startswith(name)).removeprefix(name).split()


def test_a_single_result_has_no_best_values() -> None:
    """Values have units and thousands separators, and none is marked as best."""
    printed = lines([make_result("fcfs easy", delay_s=12_345)])
    assert printed[0] == "big on 8 nodes"
    assert row(printed, "jobs ") == ["300"]
    assert row(printed, "AWT [s]") == ["12,345"]
    assert row(printed, "makespan [s]") == ["30,012,345"]
    assert row(printed, "SLDwA") == ["1.123"]
    assert not any("*" in line for line in printed)


def test_best_of_each_row_is_marked() -> None:
    """The lower AWT and the higher UTIL are marked, but no row of equal values or without a better direction."""
    printed = lines([make_result("late", 100_000), make_result("early", 5), make_result("at once, almost", 5)])
    assert row(printed, "AWT [s]") == ["100,000", "5*", "5*"]
    assert row(printed, "UTIL [%]") == ["31.15", "31.25*", "31.25*"]
    assert row(printed, "jobs that waited [%]") == ["100.0", "100.0", "100.0"]
    assert row(printed, "jobs ") == ["300", "300", "300"]
    assert printed[-1] == "* best"


def test_results_of_different_workloads_are_not_ranked() -> None:
    """The title names both workloads."""
    printed = lines([make_result("a", 7), make_result("b", 5, name="other")])
    assert printed[0] == "big on 8 nodes, other on 8 nodes"
    assert not any("*" in line for line in printed)


def test_undefined_metrics_are_dashes() -> None:
    """A result without jobs has dashes and is never best."""
    none = np.zeros(0, np.int64)
    empty = SimulationResult(
        workload=Workload(none, none, none, none, none, name="big"), nodes=8, start_ms=none, end_ms=none, label="none"
    )
    printed = lines([empty, make_result("some", 5)])
    assert row(printed, "AWT [s]") == ["–", "5*"]
    assert row(printed, "queue met, mean length") == ["–", "–"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_table_fits_into_80_columns(count: int) -> None:
    """Nothing is cut off, for any number of results."""
    results = [make_result(f"ljf queue conservative {number}", 123_456 * number) for number in range(count)]
    printed = lines(results)
    text = "\n".join(printed)
    assert max(map(len, printed)) <= 80
    assert "…" not in text
    for result in results:
        assert f"{result.metrics().sldwa:,.3f}" in text
    assert (count > ACROSS_AT_MOST) == ("makespan" not in text)


def test_labels_are_not_markup() -> None:
    """A label with brackets is shown unchanged."""
    assert any("[red]x" in line for line in lines([make_result("[red]x")]))
    assert any("[red]x" in line for line in lines([make_result(f"[red]x{n}") for n in range(6)]))


def test_a_table_needs_a_result() -> None:
    with pytest.raises(InputError, match="give at least one"):
        metrics_table([])


def test_killed_and_label_do_not_change_the_metrics() -> None:
    first = make_result("a", 5)
    second = dataclasses.replace(first, label="b")
    assert row(lines([first, second]), "ART [s]") == ["100,005", "100,005"]
