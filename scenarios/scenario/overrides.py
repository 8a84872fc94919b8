"""``key=value``: changes of a scenario from outside its file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gridweave.scenarios.scenario.catalogue import machine_configurations
from gridweave.scenarios.scenario.problems import Report
from gridweave.scenarios.scenario.toml_lines import KeyPath

Overrides = Mapping[str, object] | Sequence[str]
"""Values by dotted key, or texts ``key=value``."""

# Who gives one of these takes back what the file says of the others: a workload and a network have one source.
_TAKEN_BACK = {
    "workload.trace": ("generator", "jobs", "load"),
    "workload.generator": ("trace",),
    "net.file": ("generator", "nodes", "links"),
    "net.generator": ("file", "nodes", "links"),
}


def apply_overrides(raw: dict[str, Any], overrides: Overrides, report: Report) -> None:
    """Change a scenario that is not typed yet.

    Parameters
    ----------
    raw : dict
        As `tomllib` reads it; changed in place.
    overrides : mapping or sequence of str
        Dotted keys and their values; later ones win. A site stands under its name (``sites.alpha.nodes``), a
        transformation under its own (``workload.transform.split``); one that is not there yet is put at the end.
    report : Report
        Is told of what cannot be applied, and which keys were typed.
    """
    pairs = dict(overrides) if isinstance(overrides, Mapping) else dict(_parsed(text, report) for text in overrides)
    for key in pairs:
        table = raw.get(key.partition(".")[0])
        for name in _TAKEN_BACK.get(key, ()):
            if isinstance(table, dict):
                table.pop(name, None)
    for key, value in pairs.items():
        if key:
            _apply(raw, key, value, report)


def _parsed(text: str, report: Report) -> tuple[str, object]:
    """Return key and value; an empty key, and a problem, if the text is no pair."""
    key, separator, written = (part.strip() for part in text.partition("="))
    if not separator or not key:
        return _refused(key or text, "is not key=value, such as grid.overhead=0.3", report)
    try:
        return key, tomllib.loads(f"value = {written}\n")["value"]
    except (ValueError, RecursionError):
        pass
    if not written or written[0] in "[{\"'" or "\n" in written:
        return _refused(key, f"{written!r} is no value; write it as in TOML, or a bare word", report)
    return key, written


def _refused(key: str, text: str, report: Report) -> tuple[str, object]:
    path: KeyPath = (key,)
    report.typed[path] = key
    report.add(path, text)
    return "", None


def _apply(raw: dict[str, Any], key: str, value: object, report: Report) -> None:
    if key.startswith("sites.") and isinstance(raw.get("sites"), str):
        machines = machine_configurations().get(raw["sites"])
        if machines is not None:
            raw["sites"] = msgspec.to_builtins(machines.sites())
    done = _set(raw, (), key.split("."), value)
    if isinstance(done, str):
        _refused(key, done, report)
    else:
        report.typed[done] = key


def _set(place: Any, path: KeyPath, names: list[str], value: object) -> KeyPath | str:
    """Set a value below a place; return its path, or why it cannot be set."""
    name, *rest = names
    if isinstance(place, list) and path == ("workload", "transform"):
        holders = [number for number, step in enumerate(place) if isinstance(step, dict) and name in step]
        if len(holders) > 1:
            return f"{name} stands there {len(holders)} times; set workload.transform as a whole"
        if not holders:
            holders = [len(place)]
            place.append({})
        return _set(place[holders[0]], (*path, holders[0]), names, value)
    if isinstance(place, list) and path == ("sites",):
        sites = [site.get("name") if isinstance(site, dict) else None for site in place]
        if name not in sites:
            return f"there is no site {name!r}; there are {', '.join(str(site) for site in sites)}"
        if not rest:
            return f"is a site; set one of its keys, such as sites.{name}.nodes"
        return _set(place[sites.index(name)], (*path, sites.index(name)), rest, value)
    if not isinstance(place, dict):
        return f"{'.'.join(str(key) for key in path)} has a value of its own, and no keys"
    if not rest:
        place[name] = value
        return (*path, name)
    inside: Any = [] if (*path, name) == ("workload", "transform") else {}
    return _set(place.setdefault(name, inside), (*path, name), rest, value)
