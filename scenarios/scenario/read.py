"""Scenario files: read, changed by ``--set``, made into typed structs, and checked as far as the text alone tells.

``key=value``: changes of a scenario from outside its file.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.grid.config.toml import FileReport, convert_whole, parse_toml, text_of_file
from gridweave.netmodel.tables import KeyPath
from gridweave.scenarios.scenario.catalogue import machine_configurations, scenario_names, scenario_text
from gridweave.scenarios.scenario.checks import IDLE, check_scenario, without_idle_network
from gridweave.scenarios.scenario.tables import Scenario

Overrides = Mapping[str, object] | Sequence[str]
"""Values by dotted key, or texts ``key=value``."""

# Who gives one of these takes back what the file says of the others: a workload and a network have one source.
_TAKEN_BACK = {
    "workload.trace": ("generator", "jobs", "load"),
    "workload.generator": ("trace",),
    "net.file": ("generator", "nodes", "links"),
    "net.generator": ("file", "nodes", "links"),
}


def apply_overrides(raw: dict[str, Any], overrides: Overrides, report: FileReport) -> None:
    """Change a scenario that is not typed yet.

    Parameters
    ----------
    raw : dict
        As `tomllib` reads it; changed in place.
    overrides : mapping or sequence of str
        Dotted keys and their values; later ones win. A site stands under its name (``sites.alpha.nodes``), a
        transformation under its own (``workload.transform.split``); one that is not there yet is put at the end.
    report : FileReport
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


def _parsed(text: str, report: FileReport) -> tuple[str, object]:
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


def _refused(key: str, text: str, report: FileReport) -> tuple[str, object]:
    path: KeyPath = (key,)
    report.typed[path] = key
    report.add(path, text)
    return "", None


def _apply(raw: dict[str, Any], key: str, value: object, report: FileReport) -> None:
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


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario that may have problems.

    Attributes
    ----------
    scenario : Scenario
        What could not be read has its default, and is ``UNSET`` where there is none.
    report : FileReport
        What is wrong so far.
    folder : pathlib.Path or None
        That of the file, if it came from one.
    remarks : tuple of str
        What was left out, for people.
    """

    scenario: Scenario
    report: FileReport
    folder: Path | None
    remarks: tuple[str, ...] = ()


def read_scenario(source: str | Path | Scenario, overrides: Overrides = ()) -> Scenario:
    """Read a scenario and check what can be checked without its workload.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario that stands already.
    overrides : mapping or sequence of str
        Changes, as for `gridweave.scenarios.scenario.read.apply_overrides`.

    Returns
    -------
    Scenario
        With its sites as a list.

    Raises
    ------
    ScenarioError
        With all that is wrong.
    InputError
        If there is no such scenario.

    Examples
    --------
    >>> scenario = read_scenario("two-sites", ["grid.overhead=0.3"])
    >>> scenario.grid.overhead, [site.nodes for site in scenario.sites]
    (0.3, [256, 128])
    """
    draft = read_draft(source, overrides)
    draft.report.raise_if_any()
    return draft.scenario


def read_draft(source: str | Path | Scenario, overrides: Overrides = ()) -> Draft:
    """Read a scenario as far as that goes, for `gridweave.scenarios.scenario.build`, which looks for more problems.

    Parameters
    ----------
    source, overrides
        As for `read_scenario`.

    Raises
    ------
    ScenarioError
        If the file is no TOML.
    InputError
        If there is no such scenario.
    """
    folder = None
    if isinstance(source, Scenario):
        raw: dict[str, Any] = msgspec.to_builtins(source)
        report = FileReport(f"scenario {source.header.name}".strip())
    else:
        name, text, folder = _text_of(source)
        raw, report = parse_toml(name, text)
        header = raw.setdefault("scenario", {})
        if isinstance(header, dict):
            header.setdefault("name", Path(name).stem)
    raw = copy.deepcopy(raw)
    apply_overrides(raw, overrides, report)
    raw = _with_machines(raw, report)
    scenario = convert_whole(raw, Scenario, report, {"sites": [], "workload": {}})
    used = without_idle_network(scenario, report)
    remarks = () if used is scenario else (IDLE.format(used.grid.mode),)
    check_scenario(used, report)
    return Draft(used, report, folder, remarks)


def _text_of(source: str | Path) -> tuple[str, str, Path | None]:
    """Return what a scenario is called, its text, and the folder of its file."""
    path = Path(source)
    try:
        there, exists = path.is_file(), path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if there:
        return str(source), text_of_file(path), path.parent
    if isinstance(source, str) and source in scenario_names():
        return f"{source}.toml", scenario_text(source), None
    problem = "is not a file" if exists else "there is no such file"
    names = ", ".join(scenario_names())
    raise InputError(f"{source}: {problem}, and no scenario of that name; the catalogue has {names}")


def _with_machines(raw: dict[str, Any], report: FileReport) -> dict[str, Any]:
    """Put the sites of a machine configuration in the place of its name."""
    name = raw.get("sites")
    if not isinstance(name, str):
        return raw
    known = machine_configurations()
    if name in known:
        return raw | {"sites": msgspec.to_builtins(known[name].sites())}
    report.add(("sites",), f"{name!r} is no machine configuration; known are {', '.join(known)}; or write [[sites]]")
    return raw | {"sites": []}
