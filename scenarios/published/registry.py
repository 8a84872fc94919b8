"""The published tables and figures that can be recomputed, by the ids under which the command knows them.

The group ``beyond`` is of evaluations that the papers ask for and do not make.

Adding one adds an entry here and touches nothing else. What is heavy to import is imported when a table is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gridweave.errors import OptionError
from gridweave.scenarios.published.report import Report
from gridweave.scenarios.published.thesis_runs import THESIS_TRACES, Progress, ThesisRuns, path_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gridweave.scenarios.published.grid_runs import GridRuns
    from gridweave.scenarios.published.lomarc_runs import LomarcRuns
    from gridweave.scenarios.published.zhang_runs import ZhangRuns

_CTC = THESIS_TRACES["CTC"].name
_ALL_FOUR = tuple(trace.name for trace in THESIS_TRACES.values())


class Bench:
    """The traces at hand and the simulations made with them, shared by all tables: none is run twice.

    Parameters
    ----------
    seeds : int
        Baseline workloads of each curve of Zhang et al., and workloads of each bar of LOMARC, >= 1.
    progress : callable, optional
        Called with how much is done, how much there is, and what is going on.

    Raises
    ------
    OptionError
        If `seeds` is less than 1.
    """

    def __init__(self, *, seeds: int = 3, progress: Progress | None = None) -> None:
        if seeds < 1:
            raise OptionError("seeds", f"is {seeds}; at least 1")
        self._seeds = seeds
        self._progress = progress
        self.thesis = ThesisRuns(progress)

    @cached_property
    def zhang(self) -> ZhangRuns | None:
        """The curves of Zhang et al.; None if the trace that their model is fitted to is not at hand."""
        from gridweave.scenarios.published.zhang_runs import ZhangRuns, learn_model

        path = path_of(_CTC)
        return None if path is None else ZhangRuns(learn_model(path), seeds=self._seeds, progress=self._progress)

    @cached_property
    def grid(self) -> GridRuns | None:
        """The schedules of Streit's chapter 7; None if the trace is not at hand."""
        from gridweave.scenarios.published.grid_runs import GridRuns

        path = path_of(_CTC)
        return None if path is None else GridRuns(path)

    @cached_property
    def lomarc(self) -> LomarcRuns:
        """The bars of LOMARC; their workloads come from a model."""
        from gridweave.scenarios.published.lomarc_runs import LomarcRuns

        return LomarcRuns(seeds=self._seeds, progress=self._progress)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table or figure.

    Parameters
    ----------
    title, source : str
        What it shows; paper, section, and table or figure.
    traces : tuple of str
        Names of the traces that it needs; none if a model makes its jobs. What needs one that is not at hand is left
        out.
    compute : callable
        ``compute(bench)`` returns a `Report`.
    draw : callable, optional
        ``draw(bench)`` returns figures by name.
    """

    title: str
    source: str
    traces: tuple[str, ...]
    compute: Callable[[Bench], Report]
    draw: Callable[[Bench], dict[str, Figure]] | None = None

    def at_hand(self) -> dict[str, bool]:
        """Return for each of its traces whether it is at hand."""
        return {name: path_of(name) is not None for name in self.traces}


def _streit(table: str) -> Callable[[Bench], Report]:
    def compute(bench: Bench) -> Report:
        from gridweave.scenarios.published import streit

        return streit.TABLES[table](bench.thesis)

    return compute


def _on_grid(table: str, compute: Callable[[GridRuns], Report]) -> Callable[[Bench], Report]:
    return lambda bench: _missing(table) if bench.grid is None else compute(bench.grid)


def _missing(table: str) -> Report:
    """Return the report of a table none of whose traces is at hand."""
    known = TABLES[table]
    return Report(id=table, title=known.title, source=known.source, missing=known.traces)


def _streit_grid(table: str) -> Callable[[Bench], Report]:
    def compute(runs: GridRuns) -> Report:
        from gridweave.scenarios.published import streit_grid

        return streit_grid.TABLES[table](runs)

    return _on_grid(table, compute)


def _reserved_starts(runs: GridRuns) -> Report:
    from gridweave.scenarios.published.reserved_starts import reserved_starts

    return reserved_starts(runs)


def _control_levels(runs: GridRuns) -> Report:
    from gridweave.scenarios.published.control_levels import control_levels

    return control_levels(runs)


def _network(runs: GridRuns) -> Report:
    from gridweave.scenarios.published.network import network

    return network(runs)


def _draw_network(bench: Bench) -> dict[str, Figure]:
    from gridweave.scenarios.plots.published_network import plot_network

    return {} if bench.grid is None else plot_network(bench.grid)


def _draw_months(bench: Bench) -> dict[str, Figure]:
    from gridweave.scenarios.plots.published import plot_months

    return plot_months(bench.thesis)


def _zhang(figure: str) -> Callable[[Bench], Report]:
    def compute(bench: Bench) -> Report:
        from gridweave.scenarios.published.zhang import report_figure

        return _missing(figure) if bench.zhang is None else report_figure(figure, bench.zhang)

    return compute


def _draw_zhang(figure: str) -> Callable[[Bench], dict[str, Figure]]:
    def draw(bench: Bench) -> dict[str, Figure]:
        from gridweave.scenarios.plots.published import plot_figure

        return {} if bench.zhang is None else plot_figure(figure, bench.zhang)

    return draw


def _zhang_entry(number: int, section: int, title: str) -> PublishedTable:
    figure = f"zhang-{number}"
    source = f"Zhang et al., section {section}, Figure {number}"
    return PublishedTable(title, source, (_CTC,), _zhang(figure), _draw_zhang(figure))


def _lomarc_entry(number: int, section: str, title: str, *, draws: bool = True) -> PublishedTable:
    entry = f"lomarc-{number}"

    def compute(bench: Bench) -> Report:
        from gridweave.scenarios.published.lomarc import report_lomarc

        return report_lomarc(entry, bench.lomarc)

    def draw(bench: Bench) -> dict[str, Figure]:
        from gridweave.scenarios.plots.published_lomarc import plot_lomarc

        return plot_lomarc(entry, bench.lomarc)

    return PublishedTable(title, f"LOMARC, section {section}", (), compute, draw if draws else None)


TABLES: dict[str, PublishedTable] = {
    "streit-3.4": PublishedTable(
        "Basic properties of the traces", "Streit, section 3.6, Table 3.4", _ALL_FOUR, _streit("streit-3.4")
    ),
    "streit-3.6": PublishedTable(
        "Performance under FCFS", "Streit, section 3.6, Table 3.6", _ALL_FOUR, _streit("streit-3.6")
    ),
    "streit-5.1": PublishedTable(
        "SLDwA of planned FCFS, SJF and LJF", "Streit, section 5.1, Table 5.1", _ALL_FOUR, _streit("streit-5.1")
    ),
    "streit-A": PublishedTable(
        "The same by month of submission",
        "Streit, appendix A.1.1, Tables A.1 to A.4",
        _ALL_FOUR,
        _streit("streit-A"),
        _draw_months,
    ),
    "streit-7": PublishedTable(
        "What multi-site scheduling gains and costs",
        "Streit, sections 7.3.1 to 7.3.3",
        (_CTC,),
        _streit_grid("streit-7"),
    ),
    "streit-7.3": PublishedTable(
        "Number of multi-site jobs", "Streit, section 7.3.1, Table 7.3", (_CTC,), _streit_grid("streit-7.3")
    ),
    "streit-7.4": PublishedTable(
        "Squashed area of multi-site jobs", "Streit, section 7.3.1, Table 7.4", (_CTC,), _streit_grid("streit-7.4")
    ),
    "streit-7.6": PublishedTable(
        "Multi-site jobs under adaptive scheduling",
        "Streit, section 7.3.3, Table 7.6",
        (_CTC,),
        _streit_grid("streit-7.6"),
    ),
    "reserved-starts": PublishedTable(
        "Adaptive scheduling with EASY and with reserved starts",
        "Streit, chapter 8",
        (_CTC,),
        _on_grid("reserved-starts", _reserved_starts),
    ),
    "control-levels": PublishedTable(
        "What each level of control costs",
        "Streit, section 2.5",
        (_CTC,),
        _on_grid("control-levels", _control_levels),
    ),
    "network": PublishedTable(
        "What the links between sites cost",
        "Streit, section 6.5.3",
        (_CTC,),
        _on_grid("network", _network),
        _draw_network,
    ),
    "zhang-5": _zhang_entry(5, 3, "Queueing policies with backfilling"),
    "zhang-6": _zhang_entry(6, 4, "Over-estimation under the Ω model"),
    "zhang-7": _zhang_entry(7, 4, "Over-estimation under the Φ model"),
    "zhang-8": _zhang_entry(8, 4, "The impact of good estimation"),
    "lomarc-4": _lomarc_entry(4, "6.1, Table 4", "The workloads and their load", draws=False),
    "lomarc-5": _lomarc_entry(5, "6.2, Table 5", "Candidates left by each test of a match", draws=False),
    "lomarc-6": _lomarc_entry(6, "6.2, Figure 6", "Response times by approach and workload"),
    "lomarc-7": _lomarc_entry(7, "6.2, Figure 7", "Relative bounded response times by approach and workload"),
    "lomarc-8": _lomarc_entry(8, "6.2, Figure 8", "Utilisation and utilisation efficiency"),
    "lomarc-9": _lomarc_entry(9, "6.2, Figure 9", "Response times with the mixes M2 and M3"),
}
"""Id to published table or figure."""

GROUPS: dict[str, tuple[str, ...]] = {
    "streit": tuple(table for table in TABLES if table.startswith("streit-")),
    "zhang": tuple(table for table in TABLES if table.startswith("zhang-")),
    "lomarc": tuple(table for table in TABLES if table.startswith("lomarc-")),
    "beyond": ("reserved-starts", "control-levels", "network"),
    "all": tuple(TABLES),
}
"""Name to the ids that it stands for."""


def resolve(names: Iterable[str]) -> list[str]:
    """Return the ids that names stand for.

    Parameters
    ----------
    names : iterable of str
        Ids of `TABLES` or names of `GROUPS`; upper and lower case are the same.

    Returns
    -------
    list of str
        In the order in which they are first named, each once.

    Raises
    ------
    OptionError
        If a name is unknown.

    Examples
    --------
    >>> resolve(["streit-a", "zhang"])
    ['streit-A', 'zhang-5', 'zhang-6', 'zhang-7', 'zhang-8']
    """
    known = {name.casefold(): ids for name, ids in {**{one: (one,) for one in TABLES}, **GROUPS}.items()}
    found: list[str] = []
    for name in names:
        if name.casefold() not in known:
            raise OptionError("TABLE", f"{name!r} is not known; known are {', '.join([*TABLES, *GROUPS])}")
        found += known[name.casefold()]
    return list(dict.fromkeys(found))
