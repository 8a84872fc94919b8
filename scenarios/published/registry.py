"""The published tables and figures that can be recomputed, by the ids under which the command knows them.

The group ``beyond`` is of evaluations that the papers ask for and do not make.

Adding one adds an entry here, and a module with ``report(id, runs)``. It is imported when a table is computed: what
simulates is heavy to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gridweave.errors import OptionError
from gridweave.scenarios.published.report import Findings, Report
from gridweave.scenarios.published.streit import THESIS_TRACES, ThesisRuns
from gridweave.scenarios.published.study import Progress, path_of, seeds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gridweave.scenarios.published.lomarc import LomarcRuns
    from gridweave.scenarios.published.network import NetworkRuns
    from gridweave.scenarios.published.streit_grid import GridRuns
    from gridweave.scenarios.published.zhang import ZhangRuns

_CTC = THESIS_TRACES["CTC"].name
_ALL_FOUR = tuple(trace.name for trace in THESIS_TRACES.values())


class Bench:
    """The traces at hand and the simulations made with them, shared by all tables: none is run twice."""

    def __init__(self, *, seeds: int = 3, progress: Progress | None = None) -> None:
        self._seeds = len(seeds_of(seeds))
        self._progress = progress
        self._ctc = path_of(_CTC)
        self.thesis = ThesisRuns(progress)

    @cached_property
    def zhang(self) -> ZhangRuns | None:
        """The curves of Zhang et al.; None if the trace that their model is fitted to is not at hand."""
        from gridweave.scenarios.published.zhang import ZhangRuns, learn_model

        if self._ctc is None:
            return None
        return ZhangRuns(learn_model(self._ctc), seeds=self._seeds, progress=self._progress)

    @cached_property
    def grid(self) -> GridRuns | None:
        """The schedules of Streit's chapter 7; None if the trace is not at hand."""
        from gridweave.scenarios.published.streit_grid import GridRuns

        return None if self._ctc is None else GridRuns(self._ctc)

    @cached_property
    def network(self) -> NetworkRuns | None:
        """The schedules with a network; None if the trace is not at hand."""
        from gridweave.scenarios.published.network import NetworkRuns

        return None if self.grid is None else NetworkRuns(self.grid)

    @cached_property
    def lomarc(self) -> LomarcRuns:
        """The bars of LOMARC; their workloads come from a model."""
        from gridweave.scenarios.published.lomarc import LomarcRuns

        return LomarcRuns(seeds=self._seeds, progress=self._progress)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table or figure.

    Parameters
    ----------
    title, source : str
        What it shows; paper, section, and table or figure.
    module : str
        Of this package: its ``report(id, runs)`` makes the findings.
    runs : str
        The simulations that it is made of, an attribute of `Bench`.
    traces : tuple of str
        Names of the traces that it needs; none if a model makes its jobs. What needs one that is not at hand is left
        out.
    is_drawn : bool
        Whether there are figures of it.
    """

    title: str
    source: str
    module: str
    runs: str
    traces: tuple[str, ...]
    is_drawn: bool = False

    def at_hand(self) -> dict[str, bool]:
        """Return for each of its traces whether it is at hand."""
        return {name: path_of(name) is not None for name in self.traces}


def _streit(title: str, where: str, *, is_drawn: bool = False) -> PublishedTable:
    return PublishedTable(title, f"Streit, {where}", "streit", "thesis", _ALL_FOUR, is_drawn)


def _on_grid(title: str, where: str, module: str = "streit_grid") -> PublishedTable:
    return PublishedTable(title, f"Streit, {where}", module, "grid", (_CTC,))


def _zhang(title: str, where: str) -> PublishedTable:
    return PublishedTable(title, f"Zhang et al., {where}", "zhang", "zhang", (_CTC,), is_drawn=True)


def _lomarc(title: str, where: str, *, is_drawn: bool = True) -> PublishedTable:
    return PublishedTable(title, f"LOMARC, {where}", "lomarc", "lomarc", (), is_drawn)


TABLES: dict[str, PublishedTable] = {
    "streit-3.4": _streit("Basic properties of the traces", "section 3.6, Table 3.4"),
    "streit-3.6": _streit('Performance "scheduled by FCFS + EASY backfill"', "section 3.6, Table 3.6"),
    "streit-5.1": _streit("Overall SLDwA of planned FCFS, SJF and LJF", "section 5.1, Table 5.1"),
    "streit-A": _streit("The same by month of submission", "appendix A.1.1, Tables A.1 to A.4", is_drawn=True),
    "streit-7": _on_grid("What multi-site scheduling gains and costs", "sections 7.3.1 to 7.3.3"),
    "streit-7.3": _on_grid("Number of multi-site jobs", "section 7.3.1, Table 7.3"),
    "streit-7.4": _on_grid("Squashed area of multi-site jobs", "section 7.3.1, Table 7.4"),
    "streit-7.6": _on_grid("Multi-site jobs under adaptive scheduling", "section 7.3.3, Table 7.6"),
    "reserved-starts": _on_grid(
        "Adaptive scheduling with EASY and with reserved starts", "chapter 8", "reserved_starts"
    ),
    "control-levels": _on_grid("What each level of control costs", "section 2.5", "control_levels"),
    "network": PublishedTable(
        "What the links between sites cost", "Streit, section 6.5.3", "network", "network", (_CTC,), is_drawn=True
    ),
    "zhang-5": _zhang("Queueing policies with backfilling", "section 3, Figure 5"),
    "zhang-6": _zhang("Over-estimation under the Ω model", "section 4, Figure 6"),
    "zhang-7": _zhang("Over-estimation under the Φ model", "section 4, Figure 7"),
    "zhang-8": _zhang("The impact of good estimation", "section 4, Figure 8"),
    "lomarc-4": _lomarc("The workloads and their load", "section 6.1, Table 4", is_drawn=False),
    "lomarc-5": _lomarc("Candidates left by each test of a match", "section 6.2, Table 5", is_drawn=False),
    "lomarc-6": _lomarc("Response times by approach and workload", "section 6.2, Figure 6"),
    "lomarc-7": _lomarc("Relative bounded response times by approach and workload", "section 6.2, Figure 7"),
    "lomarc-8": _lomarc("Utilisation and utilisation efficiency", "section 6.2, Figure 8"),
    "lomarc-9": _lomarc("Response times with the mixes M2 and M3", "section 6.2, Figure 9"),
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


def compute(table: str, bench: Bench) -> Report:
    """Recompute one of `TABLES`; without any of its traces the report only names them."""
    entry = TABLES[table]
    runs = getattr(bench, entry.runs)
    if runs is None:
        findings = Findings(missing=entry.traces)
    else:
        findings = importlib.import_module(f"{__package__}.{entry.module}").report(table, runs)
    return Report.of(table, entry.title, entry.source, findings)


def draw(table: str, bench: Bench) -> dict[str, Figure]:
    """Return the figures of one of `TABLES`, by name; none without its traces."""
    from gridweave.scenarios.plots.published import DRAWN

    entry = TABLES[table]
    runs = getattr(bench, entry.runs)
    return DRAWN[entry.module](table, entry.title, runs) if entry.is_drawn and runs is not None else {}


def resolve(names: Iterable[str]) -> list[str]:
    """Return the ids that names of `TABLES` and `GROUPS` stand for, each once; upper and lower case are the same.

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
