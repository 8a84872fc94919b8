"""The disciplines, by name. To add one, add its entry here (docs/write-a-discipline.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridweave.errors import InputError, OptionError
from gridweave.site.disciplines import planning, queue
from gridweave.site.disciplines.batch import entry as batch
from gridweave.site.disciplines.dynp import entry as dynp
from gridweave.site.disciplines.fractional import entry as fractional
from gridweave.site.disciplines.gang import entry as gang
from gridweave.site.disciplines.heterogeneous import entry as heterogeneous
from gridweave.site.disciplines.optimal import entry as optimal
from gridweave.site.disciplines.protocol import Entry, Policy
from gridweave.site.disciplines.sharing import entry as sharing

ENTRIES = (
    queue.ENTRY,
    planning.ENTRY,
    sharing.ENTRY,
    gang.ENTRY,
    dynp.ENTRY,
    optimal.ENTRY,
    fractional.ENTRY,
    heterogeneous.ENTRY,
    batch.ENTRY,
)

DISCIPLINES: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
"""Name to entry."""


def entry_named(name: str) -> Entry:
    """Return a discipline.

    Raises
    ------
    OptionError
        If there is none of that name.
    """
    entry = DISCIPLINES.get(name)
    if entry is None:
        raise OptionError("discipline", f"{name!r} is not known; one of {', '.join(DISCIPLINES)}")
    return entry


def entry_of(policy: Policy) -> Entry:
    """Return the discipline of a policy."""
    return entry_named(policy.discipline)


def policy_named(name: str) -> Any:
    """Return a policy that has a name of its own.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    known = {key: policy for entry in DISCIPLINES.values() for key, policy in entry.variants.items()}
    if name not in known:
        raise InputError(f"policy {name!r} is not known; one of {', '.join(known)}")
    return known[name]


def read_policy(name: str, nodes: int, given: Mapping[str, object], usual: Mapping[str, object]) -> Policy:
    """Return how a site schedules.

    Parameters
    ----------
    name : str
        Of the discipline.
    nodes : int
        Of the site.
    given : mapping from str to object
        Its options, as far as they were given for this site; None is one that was not.
    usual : mapping from str to object
        Those that hold where nothing else was said, as far as the discipline knows them.

    Raises
    ------
    OptionError
        If the discipline or a value is not known, or an option is none of the discipline.

    Examples
    --------
    >>> read_policy("queue", 8, {"order": "sjf"}, {"order": "fcfs", "backfill": "none"}).label
    'sjf none'
    """
    entry = entry_named(name)
    for other in DISCIPLINES.values():
        if other is not entry and other.table is not None and given.get(other.table_key) is not None:
            raise OptionError(other.table_key, f"is for the discipline {other.name}, and this site has {name!r}")
    return entry.read(nodes, given, usual)
