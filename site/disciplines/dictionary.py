"""The disciplines, by name. To add one, add the place of its entry here (docs/write-a-discipline.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from gridweave.errors import InputError, OptionError, not_known
from gridweave.site.disciplines.protocol import Entry, Policy

PLACES = {
    "queue": "queue",
    "planning": "planning",
    "lomarc": "sharing.entry",
    "gang": "gang.entry",
    "dynp": "dynp.entry",
    "optimal": "optimal.entry",
    "fractional": "fractional.entry",
    "heterogeneous": "heterogeneous.entry",
    "levels": "levels.entry",
    "slurm": "batch.entry",
}
"""Name to the module in this folder that has its ``ENTRY``."""


class Entries(MutableMapping[str, Entry]):
    """Entries by name. One is imported when it is first asked for: a simulation of one discipline needs no other."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._found: dict[str, Entry | str] = dict(places)

    def __getitem__(self, name: str) -> Entry:
        found = self._found[name]
        if isinstance(found, str):
            found = import_module(f"gridweave.site.disciplines.{found}").ENTRY
            self._found[name] = found
        return found

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._found[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._found


DISCIPLINES = Entries(PLACES)
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


def deciding(policy: Policy) -> tuple[Policy, Entry]:
    """Return by which policy of which discipline jobs are given nodes: at a site with pilots, that of these."""
    decides = entry_of(policy).decides(policy)
    return decides, entry_of(decides)


def asks_week(policy: Policy) -> bool:
    """Whether decisions depend on the local time of the week."""
    decides, entry = deciding(policy)
    return entry.asks_week(decides)


def may_share_nodes(policy: Policy) -> bool:
    """Return whether several jobs may be on a node, be it that one of them stands still."""
    entry = entry_of(policy)
    return entry.shares_nodes or entry.may_pause(policy)


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
    if entry.inside is not None:
        own.add(entry_named(entry.inside(given.get(entry.table_key))).table_key)
    tables = {key for key, value in given.items() if value is not None} - own
    for other in DISCIPLINES.values() if tables else ():
        if other.table is not None and other.table_key in tables:
            raise OptionError(other.table_key, f"is for the discipline {other.name}, and this site has {name!r}")
    return entry.read(nodes, given, usual)
