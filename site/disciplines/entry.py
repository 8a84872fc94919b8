"""The entry of a discipline for the rest of gridweave: its policy, its traits, and how to read its options."""

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
    """The settings by which a site schedules: a frozen struct of the discipline."""

    @property
    def discipline(self) -> str:
        """The name of the discipline, a key of `gridweave.site.disciplines.dictionary.DISCIPLINES`."""

    @property
    def label(self) -> str:
        """Label of the policy in tables and plots; policies that schedule differently should have different labels."""


@runtime_checkable
class TakesKinds(Protocol):
    """A policy that `gridweave.simulate` can apply to nodes of several kinds."""

    def on(self, nodes: Any) -> tuple[int | None, Policy]:
        """Return the number of nodes, and the policy for them; ``nodes`` may be a number, kinds of nodes, or None."""


class SiteOutcome(NamedTuple):
    """The result of a simulation of one site, for the metrics of its discipline.

    Attributes
    ----------
    nodes : int
        Nodes of the site.
    submit_ms, start_ms, end_ms, width, run_ms : numpy.ndarray of int64, shape (m,)
        All jobs that ran, at least one, in the order of submission; ``run_ms`` is the run time alone at full rate.
    columns : mapping from str to numpy.ndarray, shape (m,)
        The figures of each of these jobs, by `Traits.columns`.
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
    """Return the estimate, because a job that runs at full speed has its nodes at most until its limit."""
    return estimate_ms


@dataclass(frozen=True, kw_only=True)
class Lender:
    """The interface for sites whose nodes are lent by a batch system.

    Attributes
    ----------
    make : callable
        Takes the nodes, the policy and the `WeekClock` of a site; returns its
        `gridweave.site.nodes.source.NodeSource`.
    policy_inside : callable
        Takes the policy of the site; returns the policy by which jobs get the lent nodes.
    discipline_inside : callable
        Takes the table of the site, or None; returns the name of the discipline whose options the site also accepts:
        the entry's own name if the batch system decides when jobs start, which rules out full control by a grid.
    launcher_problems : callable
        Takes the table of the site, or None, and the keys ``kind`` and ``trust`` of its table ``launcher``; returns
        problems of these keys, each with the name of the key.
    """

    make: Callable[[int, Any, WeekClock], Any]
    policy_inside: Callable[[Any], Policy]
    discipline_inside: Callable[[Any], str]
    launcher_problems: Callable[[Any, str, str], Iterable[tuple[str, str]]]


NO_TRAITS = Traits()
"""The traits of a discipline that only counts nodes, and whose jobs run alone at full speed until they end."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A discipline in the dictionary.

    Attributes
    ----------
    name : str
        Name of the discipline in policies, scenario files and commands.
    about : str
        One line about the discipline.
    make : callable
        Takes the nodes, the policy, and the `WeekClock` of the site; returns the `Discipline`.
    read : callable
        Takes the nodes, the options given for the site, and default options; returns the `Policy`. It refuses given
        options that it does not know (`refuse_unknown`), and ignores unknown defaults.
    traits : Traits
        Capabilities of the discipline, as far as they are known without a policy. Where there is a policy, read
        `traits_of`.
    traits_by : callable, optional
        Takes a policy; returns the traits under that policy. Set if they depend on the policy. The traits in
        `Traits.of_any_policy` may not, because configuration files are checked before there is a policy.
    stay_ms : callable
        Takes a policy and an estimate in ms; returns how long such a job usually has its nodes, in ms: until its limit
        if jobs run at full speed. Used if the discipline is `Traits.elastic`.
    table : type of msgspec.Struct, optional
        Options of the discipline: the table ``table_key`` of a site in a scenario or GRID.toml, and ``--option`` of the
        command. ``read`` gets it under the name ``table_key``.
    compiled : Compiled, optional
        Description for the compiled loop, if the decisions are kernels; None: simulations step the discipline.
    lender : Lender, optional
        Set if the nodes belong to a batch system; such a site can only be live.
    variants : mapping from str to policy
        Policies that `gridweave.simulate` takes by name.
    metrics : callable, optional
        Takes a `SiteOutcome`; returns the metrics of the discipline by name, with units, for tables, ``summary.json``
        and ``result.own_metrics``.
    labels : callable, optional
        Takes a policy; returns, for each column whose numbers represent names, the names of 0, 1, ...
    remarks : callable, optional
        Takes a policy and the width of the widest job; returns remarks for the user, a line each.
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
    metrics: Callable[[SiteOutcome], Mapping[str, float]] | None = None
    labels: Callable[[Any], Mapping[str, Sequence[str]]] | None = None
    remarks: Callable[[Any, int], Sequence[str]] | None = None

    def traits_of(self, policy: Any) -> Traits:
        """Return the traits of the discipline under a policy."""
        return self.traits if self.traits_by is None else self.traits_by(policy)


def one_of(names: Sequence[str], description: str) -> msgspec.Meta:
    """Return the schema metadata of an option that takes one of these names."""
    return msgspec.Meta(description=description, extra_json_schema={"enum": list(names)})


def must_end_by(running: Iterable[Running], start_ms: int | None) -> tuple[int, ...]:
    """Return the running jobs that end by a start, by their estimates: ``waits_for`` of a `SiteReason`."""
    return tuple(run.job.job_id for run in running if start_ms is not None and run.end_by_estimate_ms <= start_ms)


def refuse_unknown(site_options: Options, accepted: tuple[str, ...], why: str) -> None:
    """Refuse options that a discipline does not know.

    Parameters
    ----------
    why : str
        Rest of the error message, after the value of the option (or its name, if the value is a table or a list).

    Raises
    ------
    OptionError
        For the first given option that is not in `accepted`.
    """
    for name, value in site_options.items():
        if value is not None and name not in accepted:
            shown = f"{value!r} " if isinstance(value, str | int | float) else ""
            raise OptionError(name, f"{shown}{why}")
