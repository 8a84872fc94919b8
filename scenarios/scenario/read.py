"""Scenario files: read, changed by ``--set``, made into typed structs, and checked as far as the text alone tells.

``key=value``: changes of a scenario from outside its file.

From plain values to typed structs, field by field: what is wrong is reported, and the rest is still of use.
"""

from __future__ import annotations

import copy
import datetime
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from gridweave.errors import InputError, ScenarioError
from gridweave.netmodel.reading import read_table
from gridweave.netmodel.tables import NetTable
from gridweave.scenarios.scenario.catalogue import machine_configurations, scenario_names, scenario_text
from gridweave.scenarios.scenario.checks import IDLE, check_scenario, without_idle_network
from gridweave.scenarios.scenario.problems import Below, KeyPath, ProblemReport, ScenarioProblem, locate_keys
from gridweave.scenarios.scenario.tables import SITE_NAME, Scenario

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


def convert_table(raw: object, kind: type[msgspec.Struct], path: KeyPath, report: ProblemReport) -> Any:
    """Read a table into a struct.

    Parameters
    ----------
    raw : object
        What was written.
    kind : type of msgspec.Struct
        What is to come of it.
    path : tuple
        Where it stands.
    report : ProblemReport
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


def _convert(raw: Any, kind: Any, path: KeyPath, report: ProblemReport) -> Any:
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


Overrides = Mapping[str, object] | Sequence[str]
"""Values by dotted key, or texts ``key=value``."""

# Who gives one of these takes back what the file says of the others: a workload and a network have one source.
_TAKEN_BACK = {
    "workload.trace": ("generator", "jobs", "load"),
    "workload.generator": ("trace",),
    "net.file": ("generator", "nodes", "links"),
    "net.generator": ("file", "nodes", "links"),
}


def apply_overrides(raw: dict[str, Any], overrides: Overrides, report: ProblemReport) -> None:
    """Change a scenario that is not typed yet.

    Parameters
    ----------
    raw : dict
        As `tomllib` reads it; changed in place.
    overrides : mapping or sequence of str
        Dotted keys and their values; later ones win. A site stands under its name (``sites.alpha.nodes``), a
        transformation under its own (``workload.transform.split``); one that is not there yet is put at the end.
    report : ProblemReport
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


def _parsed(text: str, report: ProblemReport) -> tuple[str, object]:
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


def _refused(key: str, text: str, report: ProblemReport) -> tuple[str, object]:
    path: KeyPath = (key,)
    report.typed[path] = key
    report.add(path, text)
    return "", None


def _apply(raw: dict[str, Any], key: str, value: object, report: ProblemReport) -> None:
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


MAX_BYTES = 1 << 22
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario that may have problems.

    Attributes
    ----------
    scenario : Scenario
        What could not be read has its default, and is ``UNSET`` where there is none.
    report : ProblemReport
        What is wrong so far.
    folder : pathlib.Path or None
        That of the file, if it came from one.
    remarks : tuple of str
        What was left out, for people.
    """

    scenario: Scenario
    report: ProblemReport
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
        report = ProblemReport(f"scenario {source.header.name}".strip())
    else:
        name, text, folder = _text_of(source)
        raw, report = parse_toml(name, text)
        header = raw.setdefault("scenario", {})
        if isinstance(header, dict):
            header.setdefault("name", Path(name).stem)
    raw = copy.deepcopy(raw)
    apply_overrides(raw, overrides, report)
    raw = _with_machines(raw, report)
    scenario = convert_table(raw, Scenario, (), report)
    if scenario is BROKEN:
        # The tables that are there are judged all the same; what was said once is not said again.
        lost: dict[str, Any] = {"sites": [], "workload": {}}
        left = {name: value for name, value in raw.items() if not report.stands_at((name,))}
        scenario = convert_table(lost | left, Scenario, (), report)
    used = without_idle_network(scenario, report)
    remarks = () if used is scenario else (IDLE.format(used.grid.mode),)
    check_scenario(used, report)
    return Draft(used, report, folder, remarks)


def beside(folder: Path | None, name: str) -> Path | None:
    """Return the file of a name in a scenario's own folder, which goes before one in the working directory.

    Parameters
    ----------
    folder : pathlib.Path or None
        None for a scenario that came from no file.
    name : str
        As a scenario names a file.

    Returns
    -------
    pathlib.Path or None
        None if there is no such file.
    """
    try:
        return folder / name if folder is not None and (folder / name).is_file() else None
    except (OSError, ValueError):
        return None


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


def text_of_file(path: Path) -> str:
    """Return the text of a file in TOML.

    Raises
    ------
    InputError
        If it cannot be read, or is too large.
    ScenarioError
        If it is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large, as it has more than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError([ScenarioProblem(str(path), line, "", "is no text in UTF-8, as TOML is")]) from None


def parse_toml(name: str, text: str) -> tuple[dict[str, Any], ProblemReport]:
    """Read a document.

    Parameters
    ----------
    name : str
        Of the file, for errors.

    Returns
    -------
    dict, ProblemReport
        What it says, and a report that knows where its keys stand.

    Raises
    ------
    ScenarioError
        If it is no TOML.
    """
    text = text.replace("\r\n", "\n")
    try:
        return tomllib.loads(text), ProblemReport(name, locate_keys(text))
    except ValueError as error:
        found = _AT_LINE.search(str(error))
        line = int(found.group(1)) if found else text.rstrip("\n").count("\n") + 1
        problem = f"is no TOML: {_AT_LINE.sub('', str(error))}"
    except RecursionError:
        line, problem = 1, "is no TOML that can be read: its values are nested too deeply"
    raise ScenarioError([ScenarioProblem(name, line, "", " ".join(problem.split()))])


def _with_machines(raw: dict[str, Any], report: ProblemReport) -> dict[str, Any]:
    """Put the sites of a machine configuration in the place of its name."""
    name = raw.get("sites")
    if not isinstance(name, str):
        return raw
    known = machine_configurations()
    if name in known:
        return raw | {"sites": msgspec.to_builtins(known[name].sites())}
    report.add(("sites",), f"{name!r} is no machine configuration; known are {', '.join(known)}; or write [[sites]]")
    return raw | {"sites": []}
