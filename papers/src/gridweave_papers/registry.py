"""List, recompute and draw the published tables and figures, identified as on the command line.

The group ``beyond`` contains evaluations that the papers suggest but do not carry out.

To add a table, add a line to ``studies/data/tables.csv`` and a module with ``report(id, runs)`` to ``studies``. Modules
are imported when a table is computed, since simulations are slow to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from gridweave.errors import OptionError, not_known
from gridweave.scenarios.scenario.run import Progress
from gridweave_papers.studies.report import Findings, Report
from gridweave_papers.studies.streit import THESIS_TRACES, ThesisRuns
from gridweave_papers.studies.study import path_of, printed, seeds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gridweave_papers.studies.collins import CollinsRuns
    from gridweave_papers.studies.dfrs import DfrsRuns
    from gridweave_papers.studies.fractional_grid import FractionalGridRuns
    from gridweave_papers.studies.lomarc import LomarcRuns
    from gridweave_papers.studies.network import NetworkRuns
    from gridweave_papers.studies.streit_dynp import TuningRuns
    from gridweave_papers.studies.streit_grid import GridRuns
    from gridweave_papers.studies.streit_load import LoadRuns
    from gridweave_papers.studies.zhang import ZhangRuns
    from gridweave_papers.studies.zhang_gang_curves import GangRuns

_CTC = THESIS_TRACES["CTC"].name


class Bench:
    """The available traces and their simulations, shared by all tables so that no simulation runs twice."""

    def __init__(self, *, seeds: int | None = None, full: bool = False, progress: Progress | None = None) -> None:
        self._seeds = {} if seeds is None else {"seeds": len(seeds_of(seeds))}  # None: the default of the study
        self._full = full
        self._progress = progress
        self._ctc = path_of(_CTC)
        self.thesis = ThesisRuns(progress)

    @cached_property
    def zhang(self) -> ZhangRuns | None:
        """The curves of Zhang et al., or None without the CTC trace, to which their model is fitted."""
        from gridweave_papers.studies.zhang import ZhangRuns, learn_model

        if self._ctc is None:
            return None
        return ZhangRuns(learn_model(self._ctc), **self._seeds, progress=self._progress)

    @cached_property
    def tuning(self) -> TuningRuns:
        """The simulations of Streit's chapter 5."""
        from gridweave_papers.studies.streit_dynp import TuningRuns

        return TuningRuns(self.thesis)

    @cached_property
    def load(self) -> LoadRuns:
        """The simulations of Streit's section 5.2, on synthetic jobs."""
        from gridweave_papers.studies.streit_load import LoadRuns

        return LoadRuns(self.thesis, **self._seeds, full=self._full, kept=True, progress=self._progress)

    @cached_property
    def zhang_gang(self) -> GangRuns | None:
        """The curves of Zhang et al. for time sharing, or None without the CTC trace."""
        from gridweave_papers.studies.zhang import learn_model
        from gridweave_papers.studies.zhang_gang_curves import GangRuns

        if self._ctc is None:
            return None
        return GangRuns(learn_model(self._ctc), **self._seeds, progress=self._progress)

    @cached_property
    def grid(self) -> GridRuns | None:
        """The schedules of Streit's chapter 7, or None without the CTC trace."""
        from gridweave_papers.studies.streit_grid import GridRuns

        return None if self._ctc is None else GridRuns(self._ctc)

    @cached_property
    def network(self) -> NetworkRuns | None:
        """The schedules of the network study, or None without the CTC trace."""
        from gridweave_papers.studies.network import NetworkRuns

        return None if self.grid is None else NetworkRuns(self.grid)

    @cached_property
    def lomarc(self) -> LomarcRuns:
        """The bars of the LOMARC figures; a model generates the workloads, so no trace is needed."""
        from gridweave_papers.studies.lomarc import LomarcRuns

        return LomarcRuns(**self._seeds, progress=self._progress)

    @cached_property
    def collins(self) -> CollinsRuns:
        """The case studies of Collins and George, which need no trace."""
        from gridweave_papers.studies.collins import CollinsRuns

        return CollinsRuns(**self._seeds, progress=self._progress)

    @cached_property
    def dfrs(self) -> DfrsRuns:
        """The simulations of DFRS, without the HPC2N weeks if the HPC2N trace is missing."""
        from gridweave_papers.studies.dfrs import DfrsRuns

        hpc2n = path_of("HPC2N-2002-2.2-cln")
        return DfrsRuns(**self._seeds, full=self._full, hpc2n=hpc2n, progress=self._progress)

    @cached_property
    def fractional_grid(self) -> FractionalGridRuns:
        """The grids from the catalogue whose sites allocate fractions of nodes."""
        from gridweave_papers.studies.fractional_grid import FractionalGridRuns

        return FractionalGridRuns(progress=self._progress)


class PublishedTable(msgspec.Struct, frozen=True):
    """A published table or figure.

    Parameters
    ----------
    title, source : str
        Content of the table; paper, section and number of the table or figure.
    module : str
        Module in ``studies`` whose ``report(id, runs)`` returns the findings.
    runs : str
        Attribute of `Bench` with the simulations.
    is_drawn : bool
        Whether the table has figures.
    """

    title: str
    source: str
    module: str
    runs: str
    is_drawn: bool

    @property
    def traces(self) -> tuple[str, ...]:
        """Names of the traces required to recompute the table."""
        if self.runs in ("thesis", "tuning", "load"):
            return tuple(trace.name for trace in THESIS_TRACES.values())
        return () if self.runs in ("lomarc", "dfrs", "collins", "fractional_grid") else (_CTC,)

    def at_hand(self) -> dict[str, bool]:
        """Return whether each required trace is on this machine, by name."""
        return {name: path_of(name) is not None for name in self.traces}


TABLES = {row["id"]: msgspec.convert(row, PublishedTable, strict=False) for row in printed("tables")}
"""Published tables and figures by id."""


def _of_module(module: str) -> tuple[str, ...]:
    return tuple(table for table, entry in TABLES.items() if entry.module == module)


GROUPS: dict[str, tuple[str, ...]] = {
    "streit": tuple(table for table, entry in TABLES.items() if table.startswith("streit-") and entry.runs != "load"),
    "streit-load": _of_module("streit_load"),
    "zhang": _of_module("zhang"),
    "gang": _of_module("zhang_gang"),
    "lomarc": _of_module("lomarc"),
    "dfrs": _of_module("dfrs"),
    "collins": _of_module("collins"),
    "beyond": (
        "self-tuning",
        "reserved-starts",
        "control-levels",
        "network",
        "time-sharing",
        "time-sharing-grid",
        "fractional-grid",
    ),
    "all": tuple(TABLES),
}
"""Ids of the tables in each group."""


def compute(table: str, bench: Bench) -> Report:
    """Recompute one of `TABLES`; if its traces are missing, the report only lists their names."""
    entry = TABLES[table]
    runs = getattr(bench, entry.runs)
    if runs is None:
        findings = Findings(missing=entry.traces)
    else:
        findings = importlib.import_module(f"{__package__}.studies.{entry.module}").report(table, runs)
    return Report.of(table, entry.title, entry.source, findings)


def draw(table: str, bench: Bench) -> dict[str, Figure]:
    """Return the figures of one of `TABLES` by name; empty if its traces are missing."""
    from gridweave_papers.figures import DRAWN

    entry = TABLES[table]
    runs = getattr(bench, entry.runs)
    return DRAWN[entry.module](table, entry.title, runs) if entry.is_drawn and runs is not None else {}


def resolve(names: Iterable[str]) -> list[str]:
    """Expand names of tables and groups to table ids, ignoring case and dropping duplicates.

    Raises
    ------
    OptionError
        If a name is neither in `TABLES` nor in `GROUPS`.

    Examples
    --------
    >>> resolve(["streit-a", "zhang"])
    ['streit-A', 'zhang-5', 'zhang-6', 'zhang-7', 'zhang-8']
    """
    ids_by_name = {name.casefold(): ids for name, ids in {**{table: (table,) for table in TABLES}, **GROUPS}.items()}
    table_ids: list[str] = []
    for name in names:
        if name.casefold() not in ids_by_name:
            raise OptionError("TABLE", not_known(name, [*TABLES, *GROUPS]))
        table_ids += ids_by_name[name.casefold()]
    return list(dict.fromkeys(table_ids))
