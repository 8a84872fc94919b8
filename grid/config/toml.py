"""Read TOML files into typed structs, and report all problems at once, with file, line and key.

`tomllib` returns values without their positions, so this module finds the line of each key itself.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from gridweave.errors import InputError, OptionError, ScenarioError
from gridweave.netmodel.reading import TYPE_WORDS, meant, read_table
from gridweave.netmodel.tables import KeyPath, NetTable

NAME_PATTERN = r"^[A-Za-z0-9_-]+$(?!\n)"
"""The pattern of site names; the lookahead is needed because in Python `$` also matches before a final line break."""

MAX_BYTES = 1 << 22
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")

_BLANK = re.compile(r"[ \t\r\n]*(?:#[^\n]*)?")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\])*"|'
    r"'[^']*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def locate_keys(text: str) -> dict[KeyPath, int]:
    r"""Return the line (from 1) of every key, table and array element of a document that `tomllib` accepts.

    The line of a table is the line of its header, or else of the first key that mentions the table.

    Examples
    --------
    >>> locate_keys("a = 1\n[[b]]\nc.d = [\n  2]\n")
    {('a',): 1, ('b', 0): 2, ('b',): 2, ('b', 0, 'c', 'd'): 3, ('b', 0, 'c'): 3, ('b', 0, 'c', 'd', 0): 4}
    """
    locator = _Locator(text)
    locator.document()
    return locator.lines


class _Locator:
    """Find the lines of keys in a valid document by scanning brackets, strings and comments, without parsing values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.lines: dict[KeyPath, int] = {}
        self._counted_to = 0
        self._line = 1
        self._arrays: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while not self._at_end():
            if self._takes("[["):
                table = self._element(self._keys())
                self._takes("]]")
            elif self._takes("["):
                table = self._resolved(self._keys())
                self._note(table, self._line_here())
                self._takes("]")
            else:
                self._assignment(table)

    def _assignment(self, table: KeyPath) -> None:
        line = self._line_here()
        path = (*table, *self._keys())
        self._note(path, line)
        self._blank()
        self._takes("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._blank()
        if self._takes("["):
            number = 0
            while not self._at_end() and not self._takes("]"):
                self._note((*path, number), self._line_here())
                self._value((*path, number))
                self._blank()
                self._takes(",")
                number += 1
        elif self._takes("{"):
            while not self._at_end() and not self._takes("}"):
                self._assignment(path)
                self._blank()
                self._takes(",")
        else:
            string = _STRING.match(self.text, self.place)
            match = string or _SCALAR.match(self.text, self.place)
            assert match is not None
            self.place = match.end()

    def _keys(self) -> KeyPath:
        keys: list[str] = []
        while True:
            self._blank()
            quoted = _STRING.match(self.text, self.place)
            match = quoted or _BARE_KEY.match(self.text, self.place)
            assert match is not None, "the document is not valid"
            self.place = match.end()
            keys.append(next(iter(tomllib.loads(f"{match.group()} = 0"))))
            self._blank()
            if not self._takes("."):
                return tuple(keys)

    def _element(self, keys: KeyPath) -> KeyPath:
        """Return the path of a new element of an array of tables."""
        path = (*self._resolved(keys[:-1]), keys[-1])
        number = self._arrays.get(path, -1) + 1
        self._arrays[path] = number
        self._note((*path, number), self._line_here())
        return (*path, number)

    def _resolved(self, keys: KeyPath) -> KeyPath:
        """Return the path of a table, where the key of an array of tables is replaced by the array's last element."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _note(self, path: KeyPath, line: int) -> None:
        for length in range(len(path), 0, -1):
            self.lines.setdefault(path[:length], line)

    def _line_here(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.place)
        self._counted_to = self.place
        return self._line

    def _takes(self, mark: str) -> bool:
        if self.text.startswith(mark, self.place):
            self.place += len(mark)
            return True
        return False

    def _blank(self) -> None:
        while (match := _BLANK.match(self.text, self.place)) and match.end() > self.place:
            self.place = match.end()

    def _at_end(self) -> bool:
        self._blank()
        return self.place >= len(self.text)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem in a file."""

    source: str  # the file, or ``--set``
    line: int | None  # line of the file, from 1
    field: str  # dotted keys; empty if the problem is not about one key
    text: str  # what is wrong, and what would be right

    def __str__(self) -> str:
        where = self.source + (f":{self.line}" if self.line is not None else "")
        if self.source == "--set":
            return f"--set {self.field}: {self.text}"
        return f"{where}: {self.field}: {self.text}" if self.field else f"{where}: {self.text}"


@dataclass(slots=True)
class FileReport:
    """The problems found in one file so far."""

    source: str  # the name of the file or of another source
    lines: Mapping[KeyPath, int] = field(default_factory=dict)  # the line of each key; empty without a file
    typed: dict[KeyPath, str] = field(default_factory=dict)  # the keys set by ``--set``, as the user typed them
    # In order of discovery, without duplicates.
    problems: dict[FileProblem, KeyPath] = field(default_factory=dict)

    def add(self, path: KeyPath, text: str) -> None:
        """Add a problem with the key at a path, on the line of the key or of the nearest enclosing table."""
        text = " ".join(text.split())
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        for length in range(len(path), 0, -1):
            if path[:length] in self.typed:
                rest = [str(key) for key in path[length:] if not isinstance(key, int)]
                self.problems.setdefault(
                    FileProblem("--set", None, ".".join([self.typed[path[:length]], *rest]), text), path
                )
                return
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        self.problems.setdefault(FileProblem(self.source, line, name, text), path)

    def is_clean(self, *paths: KeyPath) -> bool:
        """Whether there are no problems at or below these paths."""
        return not any(problem_path[: len(path)] == path for problem_path in self.problems.values() for path in paths)

    def stands_at(self, path: KeyPath) -> bool:
        """Whether there is a problem with the key at exactly this path, not only with a key below it."""
        return path in self.problems.values()

    def raise_if_any(self) -> None:
        """Raise ScenarioError with all problems, sorted by line, if there are any."""
        if self.problems:
            in_file = [problem for problem in self.problems if problem.source != "--set"]
            typed = [problem for problem in self.problems if problem.source == "--set"]
            raise ScenarioError([*sorted(in_file, key=lambda problem: problem.line or 0), *typed])


@dataclass(frozen=True, slots=True)
class Below:
    """A report about one table, with paths relative to the table."""

    report: FileReport
    place: KeyPath  # the path of the table

    def add(self, path: KeyPath, text: str) -> None:
        """Add a problem with the key at a path within the table."""
        self.report.add((*self.place, *path), text)


def text_of_file(path: Path) -> str:
    """Return the text of a TOML file; raise InputError if it is unreadable or too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large; at most {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError([FileProblem(str(path), line, "", "is not text in UTF-8, as TOML is")]) from None


def parse_toml(name: str, text: str) -> tuple[dict[str, Any], FileReport]:
    """Parse a document; return its values and a report with the line of each key."""
    text = text.replace("\r\n", "\n")
    try:
        return tomllib.loads(text), FileReport(name, locate_keys(text))
    except ValueError as error:
        match = _AT_LINE.search(str(error))
        line = int(match.group(1)) if match else text.rstrip("\n").count("\n") + 1
        problem = f"is not TOML: {_AT_LINE.sub('', str(error))}"
    except RecursionError:
        line, problem = 1, "is nested too deeply"
    raise ScenarioError([FileProblem(name, line, "", " ".join(problem.split()))])


BROKEN: Final = msgspec.UNSET
"""The result of reading an invalid value."""

_GOT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}
_MATCHING = f"`str` matching regex {NAME_PATTERN!r}"
_QUOTED = re.compile(r"`([^`]*)`")


def convert_table(raw: object, kind: type[msgspec.Struct], path: KeyPath, report: FileReport) -> Any:
    """Read a table into a struct, and report every key that is unknown, missing or of the wrong type.

    An invalid key gets its default; if it has no default, return `BROKEN`.
    """
    if not isinstance(raw, dict):
        report.add(path, f"is {_named(raw)}; a table with keys is needed")
        return BROKEN
    if kind is NetTable:  # networks have their own reader
        return read_table(raw, Below(report, path))
    fields = {field_info.encode_name: field_info for field_info in msgspec.structs.fields(kind)}
    for key in raw:
        if key not in fields:
            report.add((*path, key), f"is not known{meant(key, list(fields))}; known are {', '.join(fields)}")
    values = {}
    whole = True
    for name, field_info in fields.items():
        value: Any = BROKEN
        if name in raw:
            value = _convert(raw[name], field_info.type, (*path, name), report)
        elif field_info.required:
            report.add((*path, name), "is missing")
        if value is not BROKEN:
            values[field_info.name] = value
        elif field_info.required:
            whole = False
    try:
        return kind(**values) if whole else BROKEN
    except OptionError as error:
        # A key that could not be read is reported already, and may only seem to be missing.
        has_lost_keys = any(name in raw and info.name not in values for name, info in fields.items())
        if report.is_clean((*path, error.option)) if error.option in raw else not has_lost_keys:
            report.add((*path, error.option), error.problem)
        return BROKEN


def _convert(raw: Any, kind: Any, path: KeyPath, report: FileReport) -> Any:
    table = _table_of(kind) or (_table_among(kind) if isinstance(raw, dict) else None)
    if table is not None:
        return convert_table(raw, table, path, report)
    element = _element_of(kind)
    if element is not None and isinstance(raw, list):
        return [convert_table(value, element, (*path, number), report) for number, value in enumerate(raw)]
    entry = get_args(kind)[1] if get_origin(kind) is dict else None
    if entry is not None and _table_of(entry) is not None and isinstance(raw, dict):
        entries = {name: convert_table(value, entry, (*path, name), report) for name, value in raw.items()}
        return {name: value for name, value in entries.items() if value is not BROKEN}
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        report.add(path, _explained(raw, str(error)))
        return BROKEN


def _table_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct type of a field, which may be optional; None if the field is not a table."""
    if get_origin(kind) is list:
        return None
    kinds = [member for member in get_args(kind) or (kind,) if member is not NoneType]
    alone = kinds[0] if len(kinds) == 1 else None
    return alone if isinstance(alone, type) and issubclass(alone, msgspec.Struct) else None


def _table_among(kind: Any) -> type[msgspec.Struct] | None:
    """Return the table type in the union of a field's types; None unless exactly one of the types is a table."""
    if get_origin(kind) not in (Union, UnionType):
        return None
    tables = [member for member in get_args(kind) if get_origin(member) is dict or _table_of(member) is not None]
    return _table_of(tables[0]) if len(tables) == 1 else None


def _element_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the type of the structs if a field can be a list of structs, or None."""
    for member in (kind, *get_args(kind)):
        if get_origin(member) is list:
            element = get_args(member)[0]
            element = get_args(element)[0] if get_origin(element) is Annotated else element
            if isinstance(element, type) and issubclass(element, msgspec.Struct):
                return element
    return None


def _explained(raw: object, message: str) -> str:
    """Translate a validation message of msgspec into plain words."""
    needed, _, place = message.partition(" - at ")
    needed = needed.removeprefix("Expected ").partition(", got ")[0]
    needed = needed.replace(_MATCHING, "a text of letters, digits, hyphens and underscores")
    words = _QUOTED.sub(
        lambda match: " or ".join(TYPE_WORDS.get(name, name) for name in match.group(1).split(" | ") if name != "null"),
        needed,
    )
    inside = place.strip("`").removeprefix("$")
    return f"is {_named(raw)}{' in which' + inside + ' is wrong' if inside else ''}; {words} is needed"


def _named(raw: object) -> str:
    """Describe a value for a message: by its text, shortened to 60 characters, or by its type for lists and tables."""
    kind = _GOT.get(type(raw))
    if isinstance(raw, (datetime.date, datetime.time)):
        return f"a date or time, {raw}"
    if isinstance(raw, (list, dict)) or kind is None:
        return kind or f"a {type(raw).__name__}"
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}..."


def convert_whole(raw: dict[str, Any], kind: type[msgspec.Struct], report: FileReport, lost: dict[str, Any]) -> Any:
    """Read a whole document into a struct, even if parts of it are invalid.

    `lost` contains substitutes for required keys that are missing or invalid. Raise ScenarioError if the document
    cannot be read even with these substitutes.
    """
    result = convert_table(raw, kind, (), report)
    if result is BROKEN:
        # Check the rest, too; leave out keys that already have a problem, so that it is reported only once.
        left = {name: value for name, value in raw.items() if not report.stands_at((name,))}
        result = convert_table(lost | left, kind, (), report)
    if result is BROKEN:
        report.raise_if_any()
    return result
