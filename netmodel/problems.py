"""What is wrong with a network, collected so that it can be told all at once."""

from __future__ import annotations

from typing import Protocol

from gridweave.errors import ScenarioError

Path = tuple[str | int, ...]
"""Where something stands: keys from the root of a table, and numbers of the elements of lists, from 0."""


class Reporter(Protocol):
    """Whoever is told of problems; the report of a scenario is one."""

    def add(self, path: Path, text: str) -> None:
        """Note what is wrong with the key at a path, and what would be right."""


class Problems:
    """The problems of one network.

    Attributes
    ----------
    source : str
        The file, or what else the network came from.
    found : list of (path, str)
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[tuple[Path, str]] = []

    def add(self, path: Path, text: str) -> None:
        """Note a problem, unless it is known.

        Parameters
        ----------
        text : str
            What is wrong, and what would be right.
        """
        problem = (path, " ".join(text.split()))
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """End here if anything is wrong.

        Raises
        ------
        ScenarioError
            With all problems.
        """
        if self.found:
            raise ScenarioError([self._line(path, text) for path, text in self.found])

    def _line(self, path: Path, text: str) -> str:
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        return f"{self.source}: {name}: {text}" if name else f"{self.source}: {text}"
