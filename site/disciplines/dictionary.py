"""The disciplines by name: all entry points of the group ``gridweave.disciplines`` (docs/write-a-discipline.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from typing_extensions import override

from gridweave.errors import InputError, OptionError, not_known
from gridweave.plugins import all_entry_points, own_entry_points
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.entry import Entry, Policy

GROUP = "gridweave.disciplines"
"""The group of entry points; each is named after its discipline, and refers to its `Entry`."""


class Entries(MutableMapping[str, Entry]):
    """Entries by name; each is imported when it is first used, as a simulation of one discipline needs no other.

    Other packages are looked for when all names are asked for, or one that is not gridweave's own.
    """

    def __init__(self) -> None:
        self._own: dict[str, Entry | str] | None = None
        self._all: dict[str, Entry | str] | None = None

    @property
    def _found(self) -> dict[str, Entry | str]:
        """What is known of all packages."""
        if self._all is None:
            self._all = {**all_entry_points(GROUP), **(self._own or {})}
        return self._all

    @override
    def __getitem__(self, name: str) -> Entry:
        if self._own is None:
            self._own = dict(own_entry_points(GROUP))
        known = self._own if self._all is None and name in self._own else self._found
        found = known[name]
        if isinstance(found, str):
            found = known[name] = _loaded(name, found)
        return found

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
    """Return the entry at a place, which is ``module:attribute``; InputError if there is none of that name."""
    module, _, attribute = place.partition(":")
    try:
        entry = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise InputError(f"the discipline {name!r} cannot be imported from {place}: {error}") from error
    if not isinstance(entry, Entry) or entry.name != name:
        raise InputError(f"the entry point {name} of {GROUP} is {place}, which is no Entry with the name {name!r}")
    return entry


DISCIPLINES = Entries()
"""Name to entry."""

_OF_MANY = ("order", "backfill")
"""Options that are no discipline's own."""


def entry_named(name: str) -> Entry:
    """Return a discipline.

    Raises
    ------
    OptionError
        If there is none of that name.
    """
    entry = DISCIPLINES.get(name)
    if entry is None:
        raise OptionError("discipline", not_known(name, DISCIPLINES))
    return entry


def entry_of(policy: Policy) -> Entry:
    """Return the discipline of a policy."""
    return entry_named(policy.discipline)


def deciding(policy: Policy) -> tuple[Policy, Traits]:
    """Return the policy by which jobs get their nodes, and its traits: at a site with pilots, the policy in these."""
    lender = entry_of(policy).lender
    inside = policy if lender is None else lender.policy_inside(policy)
    return inside, traits_of(inside)


def traits_of(policy: Policy) -> Traits:
    """Return what the discipline of a policy can do under it."""
    return entry_of(policy).traits_of(policy)


def policy_named(name: str) -> Any:
    """Return a policy that has a name of its own.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    known = {key: policy for entry in DISCIPLINES.values() for key, policy in entry.variants.items()}
    if name not in known:
        raise InputError(f"policy {not_known(name, known)}")
    return known[name]


def read_policy(name: str, nodes: int, given: Mapping[str, object], usual: Mapping[str, object]) -> Policy:
    """Return how a site schedules.

    Of the options in `given`, None is one that was not given; those in `usual` hold where nothing else was said, as far
    as the discipline knows them. OptionError if the discipline or a value is not known, or an option is none of the
    discipline.

    Examples
    --------
    >>> read_policy("queue", 8, {"order": "sjf"}, {"order": "fcfs", "backfill": "none"}).label
    'sjf none'
    """
    entry = entry_named(name)
    own = {entry.table_key, *_OF_MANY}
    if entry.lender is not None:
        own.add(entry_named(entry.lender.discipline_inside(given.get(entry.table_key))).table_key)
    tables = {key for key, value in given.items() if value is not None} - own
    for other in DISCIPLINES.values() if tables else ():
        if other.table_key in tables:
            raise OptionError(other.table_key, f"is for the discipline {other.name}, and this site has {name!r}")
    return entry.read(nodes, given, usual)
