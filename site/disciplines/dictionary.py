"""All disciplines by name: the entry points of the group ``gridweave.disciplines`` (docs/write-a-discipline.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from typing_extensions import override

from gridweave.errors import InputError, OptionError, not_known
from gridweave.plugins import all_entry_points, own_entry_points
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.entry import Entry, Policy, kinds_of
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import NodeKind

GROUP = "gridweave.disciplines"
"""The group of entry points; each is named after its discipline and refers to an `Entry`."""


class Entries(MutableMapping[str, Entry]):
    """Entries by name. An entry is imported on first use, so simulating one discipline does not import the others.

    The entry points of other packages are read only to list all names, or if gridweave does not have the name.
    """

    def __init__(self) -> None:
        self._own: dict[str, Entry | str] | None = None
        self._all: dict[str, Entry | str] | None = None

    @property
    def _found(self) -> dict[str, Entry | str]:
        """The disciplines of all packages by name: an entry, or the ``module:attribute`` from which to import it."""
        if self._all is None:
            self._all = {**all_entry_points(GROUP), **(self._own or {})}
        return self._all

    @override
    def __getitem__(self, name: str) -> Entry:
        if self._own is None:
            self._own = dict(own_entry_points(GROUP))
        entries = self._own if self._all is None and name in self._own else self._found
        entry = entries[name]
        if isinstance(entry, str):
            entry = entries[name] = _loaded(name, entry)
        return entry

    @override
    def __setitem__(self, name: str, entry: Entry) -> None:
        self._found[name] = entry

    @override
    def __delitem__(self, name: str) -> None:
        del self._found[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    @override
    def __len__(self) -> int:
        return len(self._found)

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._found


def _loaded(name: str, place: str) -> Entry:
    """Import an entry from ``module:attribute``; raise InputError if the attribute is not an entry with this name."""
    module, _, attribute = place.partition(":")
    try:
        entry = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise InputError(f"the discipline {name!r} cannot be imported from {place}: {error}") from error
    if not isinstance(entry, Entry) or entry.name != name:
        raise InputError(f"the entry point {name} of {GROUP} is {place}, which is not an Entry named {name!r}")
    return entry


DISCIPLINES = Entries()
"""The entries of all disciplines, by name."""

_OF_MANY = ("order", "backfill")
"""Options shared by several disciplines."""


def entry_named(name: str) -> Entry:
    """Return the entry of a discipline.

    Raises
    ------
    OptionError
        If there is no discipline with this name.
    """
    entry = DISCIPLINES.get(name)
    if entry is None:
        raise OptionError("discipline", not_known(name, DISCIPLINES))
    return entry


def entry_of(policy: Policy) -> Entry:
    """Return the entry of a policy's discipline."""
    return entry_named(policy.discipline)


def deciding(policy: Policy) -> tuple[Policy, Traits]:
    """Return the policy that assigns nodes to jobs (with pilots, the policy used inside the pilots), and its traits."""
    lender = entry_of(policy).lender
    inside = policy if lender is None else lender.policy_inside(policy)
    return inside, traits_of(inside)


def traits_of(policy: Policy) -> Traits:
    """Return the traits of a policy's discipline under this policy."""
    return entry_of(policy).traits_of(policy)


def counted_kinds(policy: Policy) -> tuple[NodeKind, ...]:
    """Return the kinds of a site's nodes if it counts cores, memory and GPUs; empty if it gives out whole nodes."""
    inside, traits = deciding(policy)
    return kinds_of(inside) if traits.counts_resources else ()


def counted_placement(policy: Policy) -> str:
    """Return which nodes jobs get first at a site that counts resources."""
    inside, _ = deciding(policy)
    return inside.placement if isinstance(inside, SitePolicy) else PLACEMENTS[0]


def policy_named(name: str) -> Any:
    """Return a predefined policy by name, from `Entry.variants`.

    Raises
    ------
    InputError
        If there is no policy with this name.
    """
    policies = {key: policy for entry in DISCIPLINES.values() for key, policy in entry.variants.items()}
    if name not in policies:
        raise InputError(f"policy {not_known(name, policies)}")
    return policies[name]


def read_policy(name: str, nodes: int, site_options: Mapping[str, object], usual: Mapping[str, object]) -> Policy:
    """Return the policy of a site from its options.

    An option in `site_options` is None if it was not given. The options in `usual` are defaults; a discipline ignores
    defaults that it does not know. Raise OptionError if the discipline or a value is unknown, or an option in
    `site_options` belongs to another discipline.

    Examples
    --------
    >>> read_policy("queue", 8, {"order": "sjf"}, {"order": "fcfs", "backfill": "none"}).label
    'sjf none'
    """
    entry = entry_named(name)
    own = {entry.table_key, *_OF_MANY}
    if entry.lender is not None:
        own.add(entry_named(entry.lender.discipline_inside(site_options.get(entry.table_key))).table_key)
    tables = {key for key, value in site_options.items() if value is not None} - own
    for other in DISCIPLINES.values() if tables else ():
        if other.table_key in tables:
            raise OptionError(other.table_key, f"is for the discipline {other.name}, and this site has {name!r}")
    if site_options.get("kinds") and not entry.reads_kinds:
        names = ", ".join(other.name for other in DISCIPLINES.values() if other.reads_kinds)
        raise OptionError("kinds", f"need a discipline that reads them ({names}), and this site has {name!r}")
    return entry.read(nodes, site_options, usual)
