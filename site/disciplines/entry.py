"""A discipline's interface to the rest of gridweave: its policy, its traits, and how to read its options."""

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
from gridweave.site.resources.chunks import NodeKind, fields_set

Options = Mapping[str, Any]
"""A site's options by name; None if an option was not given."""


class Policy(Protocol):
    """A site's scheduling settings: a frozen struct defined by the discipline."""

    @property
    def discipline(self) -> str:
        """The name of the discipline, a key of `gridweave.site.disciplines.dictionary.DISCIPLINES`."""

    @property
    def label(self) -> str:
        """Label for tables and plots; policies that schedule differently should have different labels."""


@runtime_checkable
class TakesKinds(Protocol):
    """A policy that `gridweave.simulate` can apply to nodes of several kinds."""

    def on(self, nodes: Any) -> tuple[int | None, Policy]:
        """Return the number of nodes, and the policy for them; ``nodes`` is a number, kinds of nodes, or None."""


@runtime_checkable
class HasKinds(Protocol):
    """A policy of a site that may count cores, memory and GPUs (docs/resources.md)."""

    @property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of the site's nodes; empty if jobs get whole nodes."""


def kinds_of(policy: Policy) -> tuple[NodeKind, ...]:
    """Return the kinds of a site's nodes; empty if the site does not count resources."""
    return policy.kinds if isinstance(policy, HasKinds) else ()


class SiteOutcome(NamedTuple):
    """The result of a single-site simulation, from which the discipline computes its metrics.

    Attributes
    ----------
    nodes : int
        Number of nodes of the site.
    submit_ms, start_ms, end_ms, width, run_ms : numpy.ndarray of int64, shape (m,)
        All jobs that ran (at least one), in submit order; ``run_ms`` is the run time of a job alone, at full rate.
    columns : mapping from str to numpy.ndarray, shape (m,)
        The figures of these jobs, by column (`Traits.columns`).
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
    """Return the estimate: a job that runs at full speed holds its nodes for at most this time."""
    return estimate_ms


@dataclass(frozen=True, kw_only=True)
class Lender:
    """The interface for sites that borrow their nodes from a batch system.

    Attributes
    ----------
    make : callable
        Takes a site's number of nodes, policy and `WeekClock`; returns its
        `gridweave.site.nodes.source.NodeSource`.
    policy_inside : callable
        Takes the site's policy; returns the policy that assigns the borrowed nodes to jobs.
    discipline_inside : callable
        Takes the site's table, or None; returns the name of the discipline whose options the site also accepts, or the
        entry's own name if the batch system decides when jobs start, which rules out full control by a grid.
    launcher_problems : callable
        Takes the site's table, or None, and the keys ``kind`` and ``trust`` of its table ``launcher``; returns the
        problems with these keys, each with the name of the key.
    """

    make: Callable[[int, Any, WeekClock], Any]
    policy_inside: Callable[[Any], Policy]
    discipline_inside: Callable[[Any], str]
    launcher_problems: Callable[[Any, str, str], Iterable[tuple[str, str]]]


NO_TRAITS = Traits()
"""The traits of a discipline that only counts nodes and whose jobs run alone, at full speed, until they end."""


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
        Takes the site's number of nodes, policy and `WeekClock`; returns the `Discipline`.
    read : callable
        Takes the number of nodes, the options given for the site, and default options; returns the `Policy`. It rejects
        given options that it does not know (`refuse_unknown`), and ignores unknown defaults.
    traits : Traits
        Capabilities of the discipline, for use without a policy. If there is a policy, use `traits_of` instead.
    traits_by : callable, optional
        Takes a policy; returns the traits under this policy. Required if the traits depend on the policy. The traits in
        `Traits.of_any_policy` must not, because configuration files are checked before there is a policy.
    stay_ms : callable
        Takes a policy and an estimate in ms; returns the time in ms for which a job with this estimate usually holds
        its nodes, which is the estimate if jobs run at full speed. Used if the discipline is `Traits.elastic`.
    reads_kinds : bool
        Whether ``read`` takes the option ``kinds`` (`gridweave.site.resources.chunks.NodeKind`) and, if the discipline
        `counts_resources`, the option ``placement``.
    table : type of msgspec.Struct, optional
        Options of the discipline, given in the table ``table_key`` of a site in a scenario or GRID.toml, or with the
        command's ``--option``; passed to ``read`` under the name ``table_key``.
    compiled : Compiled, optional
        Description for the compiled loop, if kernels make the decisions; None: simulations step the discipline.
    lender : Lender, optional
        Set if the nodes belong to a batch system; such a site can only be live.
    variants : mapping from str to policy
        Policies that `gridweave.simulate` accepts by name.
    metrics : callable, optional
        Takes a `SiteOutcome`; returns the discipline's metrics by name, including units, for tables, ``summary.json``
        and ``result.own_metrics``.
    labels : callable, optional
        Takes a policy; for each column whose values represent names, returns the names of the values 0, 1, ...
    remarks : callable, optional
        Takes a policy and the width of the widest job; returns one-line remarks for the user.
    """

    name: str
    about: str
    make: Callable[[int, Any, WeekClock], Discipline]
    read: Callable[[int, Options, Options], Policy]
    traits: Traits = NO_TRAITS
    traits_by: Callable[[Any], Traits] | None = None
    stay_ms: Callable[[Any, int], int] = until_limit
    reads_kinds: bool = False
    table: type[msgspec.Struct] | None = None
    table_key: str = ""
    compiled: Compiled | None = None
    lender: Lender | None = None
    variants: Mapping[str, Any] = field(default_factory=dict)
    metrics: Callable[[SiteOutcome], Mapping[str, float]] | None = None
    labels: Callable[[Any], Mapping[str, Sequence[str]]] | None = None
    remarks: Callable[[Any, int], Sequence[str]] | None = None

    @property
    def counts_resources(self) -> bool:
        """Whether a site with ``kinds`` gives out cores, memory and GPUs instead of whole nodes."""
        return self.compiled is not None and self.compiled.counts_resources

    def traits_of(self, policy: Any) -> Traits:
        """Return the discipline's traits under a policy."""
        return self.traits if self.traits_by is None else self.traits_by(policy)


def one_of(names: Sequence[str], description: str) -> msgspec.Meta:
    """Return schema metadata for an option whose value must be one of these names."""
    return msgspec.Meta(description=description, extra_json_schema={"enum": list(names)})


def refuse_different(kinds: Sequence[NodeKind]) -> None:
    """Raise OptionError if the kinds differ in cores or memory, or describe anything else, such as GPUs."""
    for kind in kinds:
        if unread := fields_set(kind, ignore=("name", "count", "cores", "memory_mb")):
            raise OptionError("kinds", f"{kind.name!r} has {', '.join(unread)}, which this discipline does not use")
        if (kind.cores, kind.memory_mb) != (kinds[0].cores, kinds[0].memory_mb):
            names = f"{kinds[0].name!r} and {kind.name!r}"
            raise OptionError("kinds", f"{names} differ in cores or memory; this discipline needs nodes that are alike")


def must_end_by(running: Iterable[Running], start_ms: int | None) -> tuple[int, ...]:
    """Return the ids of the running jobs with an estimated end up to ``start_ms`` (`SiteReason.waits_for`)."""
    return tuple(run.job.job_id for run in running if start_ms is not None and run.end_by_estimate_ms <= start_ms)


def refuse_unknown(site_options: Options, accepted: tuple[str, ...], why: str) -> None:
    """Reject options that a discipline does not know.

    Parameters
    ----------
    why : str
        Rest of the error message, after the option's value (or its name if the value is a table or a list).

    Raises
    ------
    OptionError
        For the first given option that is not in `accepted`.
    """
    for name, value in site_options.items():
        if value is not None and name not in accepted:
            shown = f"{value!r} " if isinstance(value, str | int | float) else ""
            raise OptionError(name, f"{shown}{why}")
