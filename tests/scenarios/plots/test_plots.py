"""What plots show: heights, shares, rectangles, windows, axes."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import matplotlib.dates as mdates
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.plots import results as plots
from gridweave.scenarios.plots import schedule as schedule_view
from gridweave.scenarios.plots.parts import NICE_MS, TimeAxis
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.results.steps import step_functions
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.workload.table import Workload

DAY = 86_400_000


def make_result(n: int = 60, nodes: int = 8, seed: int = 1, gap_s: int = 40, **changes: object) -> SimulationResult:
    """Build a result: jobs first come first served, without backfilling."""
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, max(1, n * gap_s), n)) * 1000
    width = rng.integers(1, nodes // 2 + 1, n)
    run = rng.integers(1, 100, n) * 1000
    start = np.zeros(n, np.int64)
    for row in range(n):
        begin = max(submit[row], start[row - 1] if row else 0)
        ends = np.sort((start + run)[:row])
        for instant in (begin, *ends[ends > begin]):
            running = (start[:row] <= instant) & (instant < (start + run)[:row])
            if width[:row][running].sum() + width[row] <= nodes:
                start[row] = instant
                break
    workload = Workload(np.arange(n), submit, width, run, run, name="random", **changes)  # type: ignore[arg-type]
    return SimulationResult(workload=workload, nodes=nodes, start_ms=start, end_ms=start + run, label="fcfs none")


def drawn(figure: Figure) -> Figure:
    """Render a figure, so that errors show."""
    figure.canvas.draw()  # type: ignore[no-untyped-call]
    return figure


def text_of(figure: Figure) -> str:
    """Return the labels, titles and legends of a figure."""
    drawn(figure)
    legends = [legend for axes in figure.axes if (legend := axes.get_legend())] + list(figure.legends)
    parts = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts += [axes.get_xlabel() + axes.get_ylabel() + axes.get_title() + axes.get_title("left") for axes in figure.axes]
    return "\n".join([figure.get_suptitle(), *parts])


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=8),
    st.integers(0, 12),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([1.0, 0.8, 0.5]),
    st.integers(1, 4) | st.just(1 << 18),
)
def test_bins_have_the_exact_mean_and_range(
    changes: list[tuple[int, int]], first: int, lengths: list[int], share: float, rows: int
) -> None:
    """Mean and range equal those of a list with the value of every millisecond, for any grouping of bins."""
    time = np.cumsum([5] + [gap for gap, _ in changes])
    values = np.array([value for _, value in changes] + [0])
    edges = first + np.cumsum([0, *lengths])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_ROWS_AT_ONCE", rows)
        mean, low, high = plots.over_bins(time, values, edges, share)
    for number, (begin, end) in enumerate(pairwise(edges.tolist())):
        held = sorted(int(np.append(values, 0)[np.searchsorted(time, t, "right") - 1]) for t in range(begin, end))
        assert mean[number] == pytest.approx(sum(held) / len(held))
        # Instants a ten-thousandth apart stand for the whole of time.
        inner = [held[int(place)] for place in np.linspace(0, len(held) - 1e-9, 10_001)]
        margin = round((1 - share) / 2 * 10_000)
        assert low[number] in inner[max(0, margin - 1) : margin + 2]
        assert high[number] in inner[10_000 - margin - 1 : 10_000 - margin + 2]


def test_short_schedules_are_drawn_change_by_change() -> None:
    """Short schedules are drawn change by change, with busy nodes in percent."""
    result = make_result()
    upper, lower = drawn(plots.plot_utilisation(result)).axes
    steps = step_functions(*result.schedule())
    busy, waiting = upper.patches[-1].get_data(), lower.patches[-1].get_data()  # type: ignore[attr-defined]
    assert busy.values.tolist() == pytest.approx((steps.busy[:-1] / 8 * 100).tolist())
    assert waiting.values.tolist() == steps.waiting[:-1].tolist()
    assert np.diff(busy.edges).tolist() == pytest.approx((np.diff(steps.time_ms) / 60_000).tolist())
    assert waiting.values.max() > 0


def test_long_schedules_are_averaged() -> None:
    """With too many changes, means over a round duration are drawn and named in the legend; their mean is UTIL."""
    result = make_result(n=1200)
    figure = plots.plot_utilisation(result)
    text = text_of(figure)
    upper, lower = figure.axes
    length = next(name for name in NICE_MS.values() if f"mean of {name}" in text)
    assert f"80% of the time within {length}" in text
    assert f"range within {length}" in text
    assert f"mean of the time shown: {result.metrics().util:.1%}" in text
    assert len(upper.patches[-1].get_data().values) <= 200  # type: ignore[attr-defined]
    assert lower.get_ylim()[1] >= step_functions(*result.schedule()).waiting.max()


def test_window_of_utilisation() -> None:
    """A window limits the axis and the mean; an empty window is refused."""
    result = make_result()
    figure = plots.plot_utilisation(result, start_ms=60_000, end_ms=120_000)
    assert figure.axes[1].get_xlim() == (60.0, 120.0)
    assert "[seconds]" in figure.axes[1].get_xlabel()
    area = sum(
        int(width) * max(0, min(120_000, end) - max(60_000, start))
        for _, start, end, width in zip(*(values.tolist() for values in result.schedule()), strict=True)
    )
    assert f"mean of the time shown: {area / (8 * 60_000):.1%}" in text_of(figure)
    with pytest.raises(OptionError, match="the window to draw is empty"):
        plots.plot_utilisation(result, start_ms=5, end_ms=5)


def test_axis_shows_dates_of_the_zone() -> None:
    """An unknown zone is shown as UTC."""
    workload = make_result(start_unix_s=843480031, timezone="Europe/Stockholm").workload
    axis = TimeAxis.of(workload, 0, DAY)
    assert axis.label == "Date (Europe/Stockholm)"
    when = mdates.num2date(float(axis.place(0)), tz=axis.zone)  # type: ignore[no-untyped-call]
    assert when.strftime("%Y-%m-%d %H:%M:%S") == "1996-09-23 14:00:31"
    assert TimeAxis.of(workload.replace(timezone="Middle/Earth"), 0, DAY).label == "Date (UTC)"
    assert TimeAxis.of(workload.replace(timezone=None), 0, DAY).label == "Date (UTC)"


@pytest.mark.parametrize(
    ("span_ms", "unit", "place"),
    [(5 * DAY, "days", 5.0), (DAY, "hours", 24.0), (3_600_000, "minutes", 60.0), (60_000, "seconds", 60.0)],
)
def test_axis_without_dates_has_a_unit(span_ms: int, unit: str, place: float) -> None:
    """Without a start date, time counts from the start of the workload in a suitable unit."""
    axis = TimeAxis.of(make_result().workload, 0, span_ms)
    assert axis.label == f"Time since the start of the workload [{unit}]"
    assert axis.place(span_ms) == place


def test_axis_beyond_the_calendar_has_no_dates() -> None:
    """With a start date after the year 9999, time counts from the start."""
    workload = make_result(start_unix_s=10**12).workload
    assert TimeAxis.of(workload, 0, DAY).label.endswith("[hours]")


def test_distributions_begin_at_the_jobs_that_did_not_wait() -> None:
    """A curve starts at the share of jobs that did not wait, which the legend shows, and ends at 100%."""
    result = make_result(nodes=80, gap_s=30)
    submit, start, _, width = result.schedule()
    share = float(np.mean(start == submit))
    assert 0 < share < 1
    figure = plots.plot_waits(result)
    assert f"all: 60 jobs, {share:.1%} did not wait" in text_of(figure)
    assert f"wider than 32 nodes: {np.sum(width > 32)} jobs" in text_of(figure)
    for axes in figure.axes:
        x, y = axes.lines[0].get_data()
        assert y[0] == pytest.approx(share * 100)
        assert y[-1] == pytest.approx(100)
        assert x[0] < axes.get_xlim()[0]
    waits = (start - submit)[start > submit] / 1000
    x, y = (np.asarray(values) for values in figure.axes[0].lines[0].get_data())
    for value in waits:
        assert y[np.searchsorted(x, value, "right") - 1] / 100 == pytest.approx(
            np.mean((start - submit) / 1000 <= value)
        )


def test_distributions_of_many_jobs_are_thinned() -> None:
    """Ten thousand jobs are drawn with fewer points between the same ends."""
    n = 10_000
    run = np.full(n, 1000)
    workload = Workload(np.arange(n), np.arange(n) * 1000, np.ones(n), run, run)
    start = workload.submit_ms + (np.arange(n) + 1) * 10
    result = SimulationResult(workload=workload, nodes=400, start_ms=start, end_ms=start + 1000)
    x, y = plots.plot_waits(result).axes[0].lines[0].get_data()
    assert len(x) < 4000
    assert (x[1], x[-2]) == (0.01, 100.0)
    assert (y[0], y[-2]) == (0.0, 100.0)


def placed(result: SimulationResult, begin_ms: int, until_ms: int) -> dict[int, set[int]]:
    """Return the nodes of each job that runs in a window, as sets."""
    steps = step_functions(*result.schedule())
    return {
        row: {node for low, high in intervals for node in range(low, high)}
        for row, intervals in schedule_view.place_jobs(result, steps, begin_ms, until_ms)
    }


def test_running_jobs_share_no_nodes() -> None:
    """Replayed jobs have as many nodes as they are wide, all within the site, and share none."""
    result = make_result()
    nodes = placed(result, 0, 10**9)
    assert sorted(nodes) == list(range(60))
    for row, mine in nodes.items():
        assert len(mine) == result.workload.width[row]
        assert mine <= set(range(8))
        for other, theirs in nodes.items():
            if (
                other != row
                and result.start_ms[other] < result.end_ms[row]
                and result.start_ms[row] < result.end_ms[other]
            ):
                assert not mine & theirs


SPARSE = make_result(gap_s=120)


@given(st.data())
def test_a_window_shows_the_nodes_of_the_whole_schedule(data: st.DataObject) -> None:
    """A window shows exactly the jobs that run in it, on the same nodes as in the whole schedule."""
    changes = step_functions(*SPARSE.schedule()).time_ms.tolist()
    begin_ms = data.draw(st.sampled_from(changes) | st.integers(0, changes[-1]))
    until_ms = data.draw(st.sampled_from(changes).filter(lambda ms: ms > begin_ms) | st.just(begin_ms + 1000))
    whole = placed(SPARSE, 0, 10**9)
    inside = (SPARSE.start_ms < until_ms) & (SPARSE.end_ms > begin_ms)
    assert placed(SPARSE, begin_ms, until_ms) == {row: whole[row] for row in np.flatnonzero(inside).tolist()}


def test_replay_begins_where_all_nodes_are_free() -> None:
    """The replay for a later window must not begin after the start of a job that still runs."""
    start, end, width = [0, 0, 10, 30], [20, 50, 30, 40], [1, 1, 1, 1]
    workload = Workload(np.arange(4), start, width, [99] * 4, np.subtract(end, start))
    result = SimulationResult(workload=workload, nodes=3, start_ms=start, end_ms=end)
    assert placed(result, 30, 40) == {1: {1}, 3: {0}}


def test_rectangles_cover_the_area_of_the_jobs() -> None:
    """The rectangles together have the area of the jobs."""
    result = make_result()
    figure = drawn(result.plot("schedule"))
    collection = next(part for part in figure.axes[0].collections if isinstance(part, PolyCollection))
    boxes = [path.get_extents() for path in collection.get_paths()]
    assert sum(box.width * box.height for box in boxes) * 60_000 == pytest.approx(result.metrics().area_node_ms)
    assert figure.axes[0].get_ylim() == (0, 8)
    assert "60 jobs" in figure.axes[0].get_title()
    ids = {text.get_text() for text in figure.axes[0].texts}
    assert ids
    assert ids <= {str(row) for row in range(60)}


def test_neighbours_differ_in_colour() -> None:
    """Jobs that touch in nodes and time have different colours if there are enough colours."""
    result = make_result(n=30, nodes=4)
    steps = step_functions(*result.schedule())
    jobs = list(schedule_view.place_jobs(result, steps, 0, 10**9))
    fills = schedule_view._fills(result, jobs)
    for number, (row, nodes) in enumerate(jobs):
        for earlier, (other, theirs) in enumerate(jobs[:number]):
            together = result.end_ms[other] >= result.start_ms[row]
            if together and any(low <= up and down <= high for low, high in nodes for down, up in theirs):
                assert fills[number] != fills[earlier]


def test_colour_of_a_neighbour_is_avoided_before_a_frequent_one() -> None:
    """A job between two neighbours avoids their colours, even if other colours are more frequent."""
    start, run = np.array([0] * 15 + [20]), np.array([99] * 15 + [70])
    run[6] = 10
    workload = Workload(np.arange(16), start, np.ones(16), run, run)
    result = SimulationResult(workload=workload, nodes=15, start_ms=start, end_ms=start + run)
    jobs = list(schedule_view.place_jobs(result, step_functions(*result.schedule()), 0, 99))
    assert jobs[15] == (15, ((6, 7),))
    fills = schedule_view._fills(result, jobs)
    assert fills.count(fills[7]) == 1
    assert fills[15] not in {fills[5], fills[7]}


def test_the_busiest_window_has_the_most_demand() -> None:
    """A long schedule shows the readable window with the most demand; a short one shows all time."""
    short = make_result(n=50)
    assert schedule_view.busiest_window(short, step_functions(*short.schedule())) == plots.span(short)
    calm = make_result(n=300, gap_s=200)
    late = calm.workload.submit_ms[-1] + 1_000_000
    rush = make_result(n=50, gap_s=1, seed=2)
    workload = Workload(
        np.arange(350),
        np.concatenate((calm.workload.submit_ms, rush.workload.submit_ms + late)),
        np.concatenate((calm.workload.width, rush.workload.width)),
        *[np.concatenate((calm.workload.run_ms, rush.workload.run_ms))] * 2,
    )
    start = np.concatenate((calm.start_ms, rush.start_ms + late))
    result = SimulationResult(workload=workload, nodes=8, start_ms=start, end_ms=start + workload.run_ms)
    begin_ms, until_ms = schedule_view.busiest_window(result, step_functions(*result.schedule()))
    starts = np.count_nonzero((start >= begin_ms) & (start < until_ms))
    assert begin_ms <= late + 1000
    assert until_ms > late + 60_000
    assert 10 < starts <= schedule_view.STARTS_AT_MOST
    assert until_ms - begin_ms in NICE_MS


def test_one_end_of_the_window_is_enough() -> None:
    """The window is then as long as the busiest window; an empty window is refused."""
    result = make_result(n=300)
    steps = step_functions(*result.schedule())
    begin_ms, until_ms = schedule_view.busiest_window(result, steps)
    length_min = (until_ms - begin_ms) / 60_000

    def shown_min(**window: int) -> tuple[float, ...]:
        figure = result.plot("schedule", **window)
        unit_min = {"minutes": 1, "seconds": 1 / 60, "hours": 60}[figure.axes[1].get_xlabel().split("[")[1][:-1]]
        return tuple(edge * unit_min for edge in figure.axes[1].get_xlim())

    assert shown_min(start_ms=600_000) == pytest.approx((10, 10 + length_min))
    assert shown_min(end_ms=6_000_000) == pytest.approx((100 - length_min, 100))
    with pytest.raises(OptionError, match="the window to draw is empty"):
        result.plot("schedule", start_ms=7, end_ms=3)


@pytest.mark.parametrize("n", [0, 1])
def test_plots_of_no_job_and_of_one_job(n: int) -> None:
    result = make_result(n=n)
    for kind in ("utilisation", "waits", "schedule"):
        assert "random on 8 nodes: fcfs none" in text_of(result.plot(kind))
    drawn(plots.plot_comparison([result, dataclasses.replace(result, label="other")]))


def test_comparison_shows_the_three_metrics_and_all_waits() -> None:
    """Bars have the lengths of SLDwA, AWT and UTIL, and each result has a distinct curve of waits."""
    results = [dataclasses.replace(make_result(seed=seed), label=f"run {seed}") for seed in range(10)]
    figure = drawn(plots.plot_comparison(results))
    *bars, waits = [axes for part in figure.subfigs for axes in part.axes]
    metrics = [result.metrics() for result in results]
    lengths = [[patch.get_width() for patch in axes.patches] for axes in bars]  # type: ignore[attr-defined]
    assert lengths[0] == pytest.approx([one.sldwa for one in metrics])
    assert lengths[1] == pytest.approx([one.awt_ms / 1000 for one in metrics])
    assert lengths[2] == pytest.approx([one.util * 100 for one in metrics])
    assert [label.get_text() for label in bars[0].get_yticklabels()] == [result.label for result in results]
    looks = {(line.get_color(), line.get_linestyle()) for line in waits.lines}
    assert len(looks) == 10
    assert [axes.get_title("left") for axes in bars] == ["SLDwA", "AWT [s]", "UTIL [%]"]


def test_comparison_needs_a_result() -> None:
    with pytest.raises(InputError, match="give at least one"):
        plots.plot_comparison([])


def test_a_window_is_widened_until_dozens_of_jobs_start() -> None:
    """Ten days with 150 starts in ten minutes, of which few are in any one minute."""
    rng = np.random.default_rng(5)
    submit = np.sort(np.concatenate((rng.integers(0, 864_000_000, 200), rng.integers(4e8, 4e8 + 600_000, 150))))
    ones = np.ones(350, np.int64)
    workload = Workload(np.arange(350), submit, ones, ones * 30_000, ones * 30_000)
    result = SimulationResult(workload=workload, nodes=512, start_ms=submit, end_ms=submit + 30_000)
    begin_ms, until_ms = schedule_view.busiest_window(result, step_functions(*result.schedule()))
    starts = np.count_nonzero((submit >= begin_ms) & (submit < until_ms))
    assert schedule_view.STARTS_AT_LEAST <= starts <= schedule_view.STARTS_AT_MOST
    assert until_ms - begin_ms not in NICE_MS


def test_the_schedule_of_a_grid_names_the_unit_of_its_time_axis() -> None:
    """The unit is named even without dates."""
    run = run_scenario("two-sites", overrides={"workload.jobs": 300})
    figure = run.plot("schedule")
    lower = figure.axes[1]
    label = lower.get_xlabel()
    assert label.startswith("Time since the start of the workload [")
    unit_ms = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}[label.split("[")[1][:-1]]
    begin_ms, until_ms = schedule_view.busiest_window(run, step_functions(*run.schedule()))
    assert lower.get_xlim() == pytest.approx((begin_ms / unit_ms, until_ms / unit_ms))
