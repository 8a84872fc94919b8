"""Problems of a scenario: collected while it is read and built, and reported all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gridweave.errors import ScenarioError
from gridweave.scenarios.scenario.toml_lines import KeyPath


@dataclass(frozen=True, slots=True)
class Problem:
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
class Report:
    """What is wrong with one scenario so far.

    Attributes
    ----------
    source : str
        The file, or what else it came from.
    lines : mapping from path to int
        Where its keys stand; empty if it is no file.
    typed : dict from path to str
        Keys that ``--set`` gave, as they were typed.
    problems : dict from Problem to path
        In the order in which they were found, none twice.
    """

    source: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    typed: dict[KeyPath, str] = field(default_factory=dict)
    problems: dict[Problem, KeyPath] = field(default_factory=dict)

    def add(self, path: KeyPath, text: str) -> None:
        """Note a problem with the key at a path; its line is that of the key, or of the nearest table around it.

        Parameters
        ----------
        path : tuple
        text : str
        """
        text = " ".join(text.split())
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        for length in range(len(path), 0, -1):
            if path[:length] in self.typed:
                rest = [str(key) for key in path[length:] if not isinstance(key, int)]
                self.problems.setdefault(
                    Problem("--set", None, ".".join([self.typed[path[:length]], *rest]), text), path
                )
                return
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        self.problems.setdefault(Problem(self.source, line, name, text), path)

    def is_clean(self, *paths: KeyPath) -> bool:
        """Return whether nothing is wrong at or below these paths.

        Parameters
        ----------
        *paths : tuple
        """
        return not any(found[: len(path)] == path for found in self.problems.values() for path in paths)

    def stands_at(self, path: KeyPath) -> bool:
        """Return whether something is wrong with the very key at a path, rather than with one below it.

        Parameters
        ----------
        path : tuple
        """
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
    report : Report
    place : tuple
        Where the table stands.
    """

    report: Report
    place: KeyPath

    def add(self, path: KeyPath, text: str) -> None:
        """Note a problem with the key at a path within the table.

        Parameters
        ----------
        path : tuple
        text : str
        """
        self.report.add((*self.place, *path), text)
