"""From plain values to typed structs, field by field: what is wrong is reported, and the rest is still of use."""

from __future__ import annotations

import datetime
import difflib
import re
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from gridweave.netmodel.reading import read_table
from gridweave.netmodel.tables import NetTable
from gridweave.scenarios.scenario.problems import Below, Report
from gridweave.scenarios.scenario.structs import SITE_NAME
from gridweave.scenarios.scenario.toml_lines import KeyPath

BROKEN: Final = msgspec.UNSET
"""Stands for a value that could not be read."""

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_GOT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}
_MATCHING = f"`str` matching regex {SITE_NAME!r}"
_QUOTED = re.compile(r"`([^`]*)`")


def convert_table(raw: object, kind: type[msgspec.Struct], path: KeyPath, report: Report) -> Any:
    """Read a table into a struct.

    Parameters
    ----------
    raw : object
        What was written.
    kind : type of msgspec.Struct
        What is to come of it.
    path : tuple
        Where it stands.
    report : Report
        Is told of every key that is unknown, missing or of the wrong type.

    Returns
    -------
    Struct or UNSET
        A key that could not be read has its default; without a default there is no struct.
    """
    if not isinstance(raw, dict):
        report.add(path, f"is {_named(raw)}; a table with keys is needed")
        return BROKEN
    if kind is NetTable:  # the network has a reader of its own, which knows its lists
        return read_table(raw, Below(report, path))
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    for key in raw:
        if key not in fields:
            report.add((*path, key), f"is not known{_meant(key, list(fields))}; known are {', '.join(fields)}")
    values = {}
    whole = True
    for name, one in fields.items():
        value: Any = BROKEN
        if name in raw:
            value = _convert(raw[name], one.type, (*path, name), report)
        elif one.required:
            report.add((*path, name), "is missing")
        if value is not BROKEN:
            values[one.name] = value
        elif one.required:
            whole = False
    return kind(**values) if whole else BROKEN


def _convert(raw: Any, kind: Any, path: KeyPath, report: Report) -> Any:
    table = _table_of(kind)
    if table is not None:
        return convert_table(raw, table, path, report)
    element = _element_of(kind)
    if element is not None and isinstance(raw, list):
        return [convert_table(value, element, (*path, number), report) for number, value in enumerate(raw)]
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        report.add(path, _told(raw, str(error)))
        return BROKEN


def _table_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field holds, be it there or not; None if the field is no table."""
    if get_origin(kind) is list:
        return None
    kinds = [one for one in get_args(kind) or (kind,) if one is not NoneType]
    alone = kinds[0] if len(kinds) == 1 else None
    return alone if isinstance(alone, type) and issubclass(alone, msgspec.Struct) else None


def _element_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct of which a field holds a list, whatever else it may hold; None if it holds no such list."""
    for one in (kind, *get_args(kind)):
        if get_origin(one) is list:
            element = get_args(one)[0]
            element = get_args(element)[0] if get_origin(element) is Annotated else element
            if isinstance(element, type) and issubclass(element, msgspec.Struct):
                return element
    return None


def _told(raw: object, message: str) -> str:
    """Say in plain words what msgspec says of a value."""
    needed, _, place = message.partition(" - at ")
    needed = needed.removeprefix("Expected ").partition(", got ")[0]
    needed = needed.replace(_MATCHING, "a text of letters, digits, hyphens and underscores")
    words = _QUOTED.sub(
        lambda found: " or ".join(_TYPES.get(name, name) for name in found.group(1).split(" | ") if name != "null"),
        needed,
    )
    inside = place.strip("`").removeprefix("$")
    return f"is {_named(raw)}{' in which' + inside + ' is wrong' if inside else ''}; {words} is needed"


def _named(raw: object) -> str:
    """Name a value by its type, with the value itself where it is short."""
    kind = _GOT.get(type(raw))
    if isinstance(raw, (datetime.date, datetime.time)):
        return f"a date or time, {raw}"
    if isinstance(raw, (list, dict)) or kind is None:
        return kind or f"a {type(raw).__name__}"
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meant(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f" (perhaps {close[0]} was meant)" if close else ""
