"""What the rest of gridweave knows about a discipline: its policy, its traits, and how its options are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.site.disciplines.base import Discipline, Traits
from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.job import Running
from gridweave.site.kernels.limits import WeekClock

Options = Mapping[str, Any]
"""Options of a site by name; None: not given."""


class Policy(Protocol):
    """How a site schedules: a frozen struct of the discipline."""

    @property
    def discipline(self) -> str:
        """The name of the discipline, a key of `gridweave.site.disciplines.dictionary.DISCIPLINES`."""

    @property
    def label(self) -> str:
        """Its name in tables and plots; two policies that schedule differently have different labels."""


@runtime_checkable
class TakesKinds(Protocol):
    """A policy for nodes that are not all alike, as `gridweave.simulate` asks it."""

    def on(self, nodes: Any) -> tuple[int | None, Policy]:
        """Return how many nodes there are, and the policy for them; ``nodes`` may be kinds of nodes, or None."""


class Played(NamedTuple):
    """The simulation of one site, for the metrics of its discipline.

    Attributes
    ----------
    nodes : int
        Nodes of the site.
    submit_ms, start_ms, end_ms, width, run_ms : numpy.ndarray of int64, shape (m,)
        All jobs that ran, at least one, in the order of submission; ``run_ms`` is the run time alone at full rate.
    columns : mapping from str to numpy.ndarray, shape (m,)
        The figures of each, by `Traits.columns`.
    totals : mapping from str to float
        `Discipline.totals` at the end.
    """

    nodes: int
    submit_ms: npt.NDArray[np.int64]
    start_ms: npt.NDArray[np.int64]
    end_ms: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    run_ms: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]
    totals: Mapping[str, float]


def until_limit(_policy: Policy, estimate_ms: int) -> int:
    """Return the estimate: a job that runs at full speed has its nodes until its limit."""
    return estimate_ms


@dataclass(frozen=True, kw_only=True)
class Lender:
    """Where the nodes of a site come from if they are not its own: a batch system lends them.

    Attributes
    ----------
    make : callable
        Takes the nodes, the policy and the `WeekClock` of a site; returns its
        `gridweave.site.nodes.source.NodeSource`.
    policy_inside : callable
        Takes the policy of the site; returns the policy by which jobs get the nodes that are there.
    discipline_inside : callable
        Takes the table of the site, or None; returns the name of the discipline whose options the site may have too.
    is_in_control : callable
        Takes the table of the site, or None; returns whether the site decides what starts when, so that a grid may
        have full control.
    """

    make: Callable[[int, Any, WeekClock], Any]
    policy_inside: Callable[[Any], Policy]
    discipline_inside: Callable[[Any], str]
    is_in_control: Callable[[Any], bool]


NO_TRAITS = Traits()
"""A discipline that declares nothing: it counts nodes, and a job runs alone at full speed until it ends."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A discipline in the dictionary.

    Attributes
    ----------
    name : str
        Its name in policies, scenario files and commands.
    about : str
        What it does, in one line.
    make : callable
        Takes the nodes, the policy, and the `WeekClock` of the site; returns the `Discipline`.
    read : callable
        Takes the nodes, the options given for the site, and the options that hold otherwise; returns the `Policy`.
        It refuses given options that it does not know (`refuse_unknown`), and ignores others that it does not know.
    traits : Traits
        What it can do.
    traits_by : callable, optional
        Takes a policy; returns the traits under that policy, where they depend on it.
    stay_ms : callable
        Takes a policy and an estimate in ms; returns how long such a job usually has its nodes, in ms: until its limit
        if jobs run at full speed. Used if the discipline is `Traits.elastic`.
    table : type of msgspec.Struct, optional
        Its own options: the table ``table_key`` of a site in a scenario or GRID.toml, and ``--option`` of the command.
        ``read`` gets it under the name ``table_key``.
    compiled : Compiled, optional
        How simulations run it in the compiled loop, if its decisions are kernels; otherwise they step it.
    lender : Lender, optional
        Set if the nodes belong to a batch system; such a site can only be live.
    variants : mapping from str to policy
        Policies that `gridweave.simulate` takes by name.
    metrics : callable, optional
        Takes what was `Played`; returns its own metrics by name, with units, for tables, ``summary.json`` and
        ``result.own_metrics``.
    labels : callable, optional
        Takes a policy; returns, for each column whose numbers stand for names, the names of 0, 1, ...
    remarks : callable, optional
        Takes a policy and the width of the widest job; returns what a user should know about the two, a line each.
    """

    name: str
    about: str
    make: Callable[[int, Any, WeekClock], Discipline]
    read: Callable[[int, Options, Options], Policy]
    traits: Traits = NO_TRAITS
    traits_by: Callable[[Any], Traits] | None = None
    stay_ms: Callable[[Any, int], int] = until_limit
    table: type[msgspec.Struct] | None = None
    table_key: str = ""
    compiled: Compiled | None = None
    lender: Lender | None = None
    variants: Mapping[str, Any] = field(default_factory=dict)
    metrics: Callable[[Played], Mapping[str, float]] | None = None
    labels: Callable[[Any], Mapping[str, Sequence[str]]] | None = None
    remarks: Callable[[Any, int], Sequence[str]] | None = None

    def traits_of(self, policy: Any) -> Traits:
        """Return what the discipline can do under a policy."""
        return self.traits if self.traits_by is None else self.traits_by(policy)


def one_of(names: Sequence[str], description: str) -> msgspec.Meta:
    """Return what the schema of scenarios says about an option that takes one of some names."""
    return msgspec.Meta(description=description, extra_json_schema={"enum": list(names)})


def must_end_by(running: Iterable[Running], start_ms: int | None) -> tuple[int, ...]:
    """Return the running jobs that end by a start, by their estimates: ``waits_for`` of a `SiteReason`."""
    return tuple(run.job.job_id for run in running if start_ms is not None and run.end_by_estimate_ms <= start_ms)


def refuse_unknown(given: Options, known: tuple[str, ...], why: str) -> None:
    """Refuse options that a discipline does not know.

    Parameters
    ----------
    why : str
        What the error says about such an option, after its value.

    Raises
    ------
    OptionError
        For the first of them.
    """
    for name, value in given.items():
        if value is not None and name not in known:
            raise OptionError(name, f"{value!r} {why}")
