"""On which line each key of a TOML document stands: `tomllib` tells values, but not where they came from."""

from __future__ import annotations

import re
import tomllib

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
