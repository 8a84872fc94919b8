"""Scenario files: read, changed by ``--set``, made into typed structs, and checked as far as the text alone tells."""

from __future__ import annotations

import copy
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError, ScenarioError
from gridweave.scenarios.scenario.catalogue import machine_configurations, scenario_names, scenario_text
from gridweave.scenarios.scenario.checks import check_scenario
from gridweave.scenarios.scenario.converting import BROKEN, convert_table
from gridweave.scenarios.scenario.network_checks import IDLE, without_idle_network
from gridweave.scenarios.scenario.overrides import Overrides, apply_overrides
from gridweave.scenarios.scenario.problems import Problem, Report
from gridweave.scenarios.scenario.structs import Scenario
from gridweave.scenarios.scenario.toml_lines import locate_keys

MAX_BYTES = 1 << 22
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario that may have problems.

    Attributes
    ----------
    scenario : Scenario
        What could not be read has its default, and is ``UNSET`` where there is none.
    report : Report
        What is wrong so far.
    folder : pathlib.Path or None
        That of the file, if it came from one.
    remarks : tuple of str
        What was left out, for people.
    """

    scenario: Scenario
    report: Report
    folder: Path | None
    remarks: tuple[str, ...] = ()


def read_scenario(source: str | Path | Scenario, overrides: Overrides = ()) -> Scenario:
    """Read a scenario and check what can be checked without its workload.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario that stands already.
    overrides : mapping or sequence of str
        Changes, as for `gridweave.scenarios.scenario.overrides.apply_overrides`.

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

    Returns
    -------
    Draft

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
        report = Report(f"scenario {source.header.name}".strip())
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

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    str

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
        raise ScenarioError([Problem(str(path), line, "", "is no text in UTF-8, as TOML is")]) from None


def parse_toml(name: str, text: str) -> tuple[dict[str, Any], Report]:
    """Read a document.

    Parameters
    ----------
    name : str
        Of the file, for errors.
    text : str

    Returns
    -------
    dict, Report
        What it says, and a report that knows where its keys stand.

    Raises
    ------
    ScenarioError
        If it is no TOML.
    """
    text = text.replace("\r\n", "\n")
    try:
        return tomllib.loads(text), Report(name, locate_keys(text))
    except ValueError as error:
        found = _AT_LINE.search(str(error))
        line = int(found.group(1)) if found else text.rstrip("\n").count("\n") + 1
        problem = f"is no TOML: {_AT_LINE.sub('', str(error))}"
    except RecursionError:
        line, problem = 1, "is no TOML that can be read: its values are nested too deeply"
    raise ScenarioError([Problem(name, line, "", " ".join(problem.split()))])


def _with_machines(raw: dict[str, Any], report: Report) -> dict[str, Any]:
    """Put the sites of a machine configuration in the place of its name."""
    name = raw.get("sites")
    if not isinstance(name, str):
        return raw
    known = machine_configurations()
    if name in known:
        return raw | {"sites": msgspec.to_builtins(known[name].sites())}
    report.add(("sites",), f"{name!r} is no machine configuration; known are {', '.join(known)}; or write [[sites]]")
    return raw | {"sites": []}
