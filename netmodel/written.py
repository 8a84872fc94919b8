"""Networks that are written down as tables: nodes and links one by one, with both directions of a cable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from gridweave.netmodel.assemble import LinkRow, NodeRow, Rows
from gridweave.netmodel.problems import Path, Reporter
from gridweave.netmodel.tables import AttachTable, BackTable, ChangeTable, LinkTable, NetTable, NodeTable
from gridweave.netmodel.units import speed_of

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_LISTS: dict[str, type[msgspec.Struct]] = {"nodes": NodeTable, "links": LinkTable, "changes": ChangeTable}


def read_table(raw: dict[str, Any], report: Reporter) -> NetTable:
    """Read the table ``[net]`` of a file.

    Parameters
    ----------
    raw : dict
        Of plain values, as TOML gives them.
    report : Reporter
        Is told of what is unknown, missing or of a wrong type, element by element.

    Returns
    -------
    NetTable
        With what could be read; the rest is as if it had been left out. A node or a link that is refused is
        there all the same, if its name or its ends can be read, so that nothing else is found wrong for lack of it.
    """
    lists: dict[str, Any] = {}
    for key, kind in _LISTS.items():
        listed = raw.get(key, [])
        if not isinstance(listed, list):
            report.add((key,), f"is {listed!r}; a list of tables, [[net.{key}]]")
            listed = []
        elements = [_element(value, kind, (key, number), report) for number, value in enumerate(listed)]
        lists[key] = [element for element in elements if element is not None]
    attach = raw.get("attach", {})
    if isinstance(attach, dict):
        entries = {site: _element(value, AttachTable, ("attach", site), report) for site, value in attach.items()}
        lists["attach"] = {site: entry for site, entry in entries.items() if entry is not None}
    known = {one.encode_name: one for one in msgspec.structs.fields(NetTable)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            report.add((key,), f"is not known{_meant(key, known)}; known are {', '.join(known)}")
        elif key not in lists:
            alone = _element({key: value}, NetTable, (), report)
            if alone is not None:
                values[key] = getattr(alone, known[key].name)
    return NetTable(**values, **lists)


def _element(value: object, kind: type[msgspec.Struct], path: Path, report: Reporter) -> Any:
    """Read one table; say in plain words what is wrong with it."""
    if kind is AttachTable and isinstance(value, str):
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        keys = re.findall(r"[A-Za-z_]\w*", place)
        label = ""
        if kind is LinkTable and isinstance(value, dict):
            label = f"link {value.get('from', '?')} - {value.get('to', '?')}: "
        known = [one.encode_name for one in msgspec.structs.fields(kind)]
        report.add((*path, *keys), label + _told(message, known))
        return _stand_in(value, kind)


def _stand_in(value: object, kind: type[msgspec.Struct]) -> NodeTable | LinkTable | None:
    """Return what keeps the place of a node or a link that is refused, with numbers that nobody will complain of."""
    if not isinstance(value, dict):
        return None
    if kind is NodeTable and isinstance(value.get("name"), str):
        return NodeTable(name=value["name"], latitude=0.0, longitude=0.0)
    if kind is LinkTable and isinstance(value.get("from"), str) and isinstance(value.get("to"), str):
        name = value.get("name")
        return LinkTable(
            origin=value["from"],
            target=value["to"],
            name=name if isinstance(name, str) else "",
            latency_ms=0.0,
            bandwidth_bps=1.0,
        )
    return None


def _told(message: str, known: list[str]) -> str:
    """Say in plain words what msgspec says."""
    quoted = re.findall(r"`([^`]*)`", message)
    if "unknown field" in message:
        return f"{quoted[0]!r} is not known{_meant(quoted[0], known)}; known are {', '.join(known)}"
    if "missing required field" in message:
        return f"{quoted[0]} is missing"
    if message.startswith("Expected") and len(quoted) == 2:
        needed = " or ".join(_TYPES.get(name, name) for name in quoted[0].split(" | ") if name != "null")
        return f"is {_TYPES.get(quoted[1], quoted[1])}; {needed} is needed"
    return message[:1].lower() + message[1:]


def _meant(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), 1)
    return f" (perhaps {close[0]} was meant)" if close else ""


def rows_of(table: NetTable, name: str, report: Reporter) -> Rows:
    """Return the nodes and links that are written in a table.

    Parameters
    ----------
    table : NetTable
    name : str
        The file, or what else it came from.
    report : Reporter

    Returns
    -------
    Rows
    """
    rows = Rows(name, detour=table.detour, bandwidth_bps=speed_of(table.bandwidth_bps, table.bandwidth, (), report))
    rows.nodes = [
        NodeRow(("nodes", number), node.name, node.latitude, node.longitude) for number, node in enumerate(table.nodes)
    ]
    for number, link in enumerate(table.links):
        rows.links += _both_ways(link, number, report)
    return rows


def _both_ways(link: LinkTable, number: int, report: Reporter) -> list[LinkRow]:
    """Return the links of a cable, one for each direction in which it is used."""
    path: Path = ("links", number)
    row = LinkRow(
        path=path,
        origin=link.origin,
        target=link.target,
        cable=number,
        name=link.name,
        latency_ms=link.latency_ms,
        bandwidth_bps=_link_speed(link.bandwidth_bps, link.bandwidth, link, path, report),
        loss=link.loss,
        jitter_ms=link.jitter_ms,
    )
    if link.one_way:
        if link.back is not None:
            report.add((*path, "back"), f"link {row.label}: is one way, and has a way back; leave out one of them")
        return [row]
    back = link.back or BackTable()
    back_bps = _link_speed(back.bandwidth_bps, back.bandwidth, link, (*path, "back"), report)
    return [
        row,
        LinkRow(
            path=(*path, "back") if link.back is not None else path,
            origin=link.target,
            target=link.origin,
            cable=number,
            name=link.name,
            latency_ms=back.latency_ms if back.latency_ms is not None else row.latency_ms,
            bandwidth_bps=back_bps if back_bps is not None else row.bandwidth_bps,
            loss=back.loss if back.loss is not None else row.loss,
            jitter_ms=back.jitter_ms if back.jitter_ms is not None else row.jitter_ms,
            is_back=True,
        ),
    ]


def _link_speed(bps: float | None, text: str | None, link: LinkTable, path: Path, report: Reporter) -> float | None:
    return speed_of(bps, text, path, report, f"link {link.origin} - {link.target}: ")
