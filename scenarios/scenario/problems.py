"""Problems of a scenario: collected while it is read and built, and reported all at once.

On which line each key of a TOML document stands: `tomllib` tells values, but not where they came from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gridweave.errors import ScenarioError

KeyPath = tuple[str | int, ...]
"""Keys from the root of a document, and numbers of the elements of arrays, from 0."""

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
    r"""Return the line of every key, table and array element of a TOML document.

    Parameters
    ----------
    text : str
        A document that `tomllib` reads.

    Returns
    -------
    dict from tuple to int
        Path to line, from 1. A table's line is that of its header, or of the first key that speaks of it.

    Examples
    --------
    >>> locate_keys("a = 1\n[[b]]\nc.d = [\n  2]\n")
    {('a',): 1, ('b', 0): 2, ('b',): 2, ('b', 0, 'c', 'd'): 3, ('b', 0, 'c'): 3, ('b', 0, 'c', 'd', 0): 4}
    """
    locator = _Locator(text)
    locator.document()
    return locator.lines


class _Locator:
    """A walk through a valid document that follows its brackets, strings and comments, and takes no value apart."""

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
            found = string or _SCALAR.match(self.text, self.place)
            assert found is not None
            self.place = found.end()

    def _keys(self) -> KeyPath:
        """Read a dotted key."""
        keys: list[str] = []
        while True:
            self._blank()
            quoted = _STRING.match(self.text, self.place)
            found = quoted or _BARE_KEY.match(self.text, self.place)
            assert found is not None, "the document is not valid"
            self.place = found.end()
            keys.append(next(iter(tomllib.loads(f"{found.group()} = 0"))))
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
        """Return the path of a table: a key that is an array of tables stands for its last element."""
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
        """Pass over blanks, ends of lines and comments."""
        while (found := _BLANK.match(self.text, self.place)) and found.end() > self.place:
            self.place = found.end()

    def _at_end(self) -> bool:
        self._blank()
        return self.place >= len(self.text)


@dataclass(frozen=True, slots=True)
class ScenarioProblem:
    """One thing that is wrong with a scenario.

    Attributes
    ----------
    source : str
        The file, or ``--set``.
    line : int or None
        Line of the file, from 1.
    field : str
        Dotted keys; empty where it is not about one key.
    text : str
        What is wrong, and what would be right.
    """

    source: str
    line: int | None
    field: str
    text: str

    def __str__(self) -> str:
        where = self.source + (f":{self.line}" if self.line is not None else "")
        if self.source == "--set":
            return f"--set {self.field}: {self.text}"
        return f"{where}: {self.field}: {self.text}" if self.field else f"{where}: {self.text}"


@dataclass(slots=True)
class ProblemReport:
    """What is wrong with one scenario so far.

    Attributes
    ----------
    source : str
        The file, or what else it came from.
    lines : mapping from path to int
        Where its keys stand; empty if it is no file.
    typed : dict from path to str
        Keys that ``--set`` gave, as they were typed.
    problems : dict from ScenarioProblem to path
        In the order in which they were found, none twice.
    """

    source: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    typed: dict[KeyPath, str] = field(default_factory=dict)
    problems: dict[ScenarioProblem, KeyPath] = field(default_factory=dict)

    def add(self, path: KeyPath, text: str) -> None:
        """Note a problem with the key at a path; its line is that of the key, or of the nearest table around it."""
        text = " ".join(text.split())
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        for length in range(len(path), 0, -1):
            if path[:length] in self.typed:
                rest = [str(key) for key in path[length:] if not isinstance(key, int)]
                self.problems.setdefault(
                    ScenarioProblem("--set", None, ".".join([self.typed[path[:length]], *rest]), text), path
                )
                return
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        self.problems.setdefault(ScenarioProblem(self.source, line, name, text), path)

    def is_clean(self, *paths: KeyPath) -> bool:
        """Return whether nothing is wrong at or below these paths."""
        return not any(found[: len(path)] == path for found in self.problems.values() for path in paths)

    def stands_at(self, path: KeyPath) -> bool:
        """Return whether something is wrong with the very key at a path, rather than with one below it."""
        return path in self.problems.values()

    def raise_if_any(self) -> None:
        """End here if anything is wrong.

        Raises
        ------
        ScenarioError
            With all problems, in the order of their lines.
        """
        if self.problems:
            in_file = [problem for problem in self.problems if problem.source != "--set"]
            typed = [problem for problem in self.problems if problem.source == "--set"]
            raise ScenarioError([*sorted(in_file, key=lambda problem: problem.line or 0), *typed])


@dataclass(frozen=True, slots=True)
class Below:
    """Those who check a table of a scenario report through this: their paths begin at the table.

    Attributes
    ----------
    report : ProblemReport
    place : tuple
        Where the table stands.
    """

    report: ProblemReport
    place: KeyPath

    def add(self, path: KeyPath, text: str) -> None:
        """Note a problem with the key at a path within the table."""
        self.report.add((*self.place, *path), text)
