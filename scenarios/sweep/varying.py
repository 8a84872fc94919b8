"""What is varied: keys with lists of values, as typed (``--vary key=v1,v2``) or as given from Python."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIASES = {"config": "sites", "p": "grid.overhead"}
"""Short names: the machine configurations of Streit, Table 7.1, and his overhead parameter."""

MAX_RUNS = 100_000
MAX_SEED = 2**63 - 1
SEED_KEY = "scenario.seed"

_OPEN, _CLOSE = "[{", "]}"

Vary = Mapping[str, Iterable[object]] | Sequence[str]
"""Lists of values by key, or texts ``key=v1,v2``."""

Seeds = int | Sequence[int] | None
"""How many are derived from the scenario's, or which; None for the scenario's own alone."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One key that is varied.

    Attributes
    ----------
    name : str
        The key as it was given; tables and plots use it.
    key : str
        The same with its alias resolved, as ``--set`` knows it.
    values : tuple
        Plain values, all different.
    texts : tuple of str
        The values as ``--set`` takes them.
    """

    name: str
    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        """The values for people."""
        return tuple(value if isinstance(value, str) else toml_text(value) for value in self.values)

    @property
    def column(self) -> tuple[Any, ...]:
        """The values as a column of a table takes them: numbers, truth values, or else texts."""
        if self.is_numeric:
            return self.values if all(isinstance(v, int) for v in self.values) else tuple(map(float, self.values))
        return self.values if all(isinstance(value, bool) for value in self.values) else self.labels


def read_axes(vary: Vary, problems: list[str]) -> tuple[Axis, ...]:
    """Return what is varied.

    Parameters
    ----------
    vary : mapping or sequence of str
    problems : list of str
        Is told of what cannot be used.

    Returns
    -------
    tuple of Axis
        In the given order; what cannot be used is left out.

    Examples
    --------
    >>> [(axis.key, axis.values) for axis in read_axes(["p=0,0.3", "config=m128,m256"], [])]
    [('grid.overhead', (0, 0.3)), ('sites', ('m128', 'm256'))]
    """
    axes: list[Axis] = []
    pairs = _pairs_of(vary) if isinstance(vary, Mapping) else (_parsed(text, problems) for text in vary)
    for pair in pairs:
        if pair is None:
            continue
        name, values = pair
        found = len(problems)
        texts = tuple(_text_of(name, value, problems) for value in values)
        key = ALIASES.get(name, name)
        if not values:
            problems.append(f"--vary {name}: has no values; write {name}=a,b")
        if key == SEED_KEY:
            problems.append(f"--vary {name}: seeds are not varied so; write --seeds 10, or --seeds 1,2,3")
        if any(axis.key == key for axis in axes):
            problems.append(f"--vary {name}: is varied already; give all of its values at once")
        twice = next((text for place, text in enumerate(texts) if text in texts[:place]), None)
        if twice is not None:
            problems.append(f"--vary {name}: has the value {twice} twice")
        if len(problems) == found:
            axes.append(Axis(name, key, tuple(values), texts))
    # One run for each combination: too many are refused before they are counted out.
    if math.prod(len(axis.values) for axis in axes) > MAX_RUNS:
        problems.append(f"--vary: makes more than {MAX_RUNS:,} combinations; vary less at once")
        return ()
    return tuple(axes)


def read_seeds(seeds: Seeds, problems: list[str]) -> Seeds:
    """Return seeds that can be used.

    Parameters
    ----------
    seeds : int, sequence of int, or None
    problems : list of str
        Is told of what cannot be used.

    Returns
    -------
    int, tuple of int, or None
    """
    if seeds is None:
        return None
    if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_RUNS:
            problems.append(f"--seeds: is {seeds}; a number of seeds from 1 to {MAX_RUNS:,}, or a list such as 1,2,3")
            return None
        return int(seeds)
    listed = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not listed:
        problems.append("--seeds: is empty; give a number of seeds, or a list such as 1,2,3")
        return None
    wrong = next((seed for seed in listed if not _is_seed(seed)), None)
    if wrong is not None:
        problems.append(f"--seeds: {wrong!r} is no seed; a seed is a whole number from 0 to {MAX_SEED}")
        return None
    if len(set(listed)) < len(listed):
        problems.append("--seeds: has a seed twice; the same seed gives the same result")
        return None
    return tuple(int(seed) for seed in listed)


def _is_seed(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= MAX_SEED


def parse_seeds(text: str, problems: list[str]) -> Seeds:
    """Return what ``--seeds`` says: ``10`` for ten derived ones, ``1,2,3`` or ``7,`` for these.

    Parameters
    ----------
    text : str
    problems : list of str
        Is told of what cannot be used.

    Returns
    -------
    int, tuple of int, or None
    """
    words = [word.strip() for word in text.split(",")]
    is_list = len(words) > 1
    if is_list and not words[-1]:
        words.pop()
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) <= 19)]
    if wrong:
        problems.append(
            f"--seeds: {wrong[0]!r} is no whole number; write 10 for ten seeds, 1,2,3 for these, 7, for one"
        )
        return None
    numbers = [int(word) for word in words]
    return read_seeds(numbers if is_list else numbers[0], problems)


def derive_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return seeds for independent repetitions, derived from one.

    Parameters
    ----------
    seed : int
        Of the scenario.
    count : int

    Returns
    -------
    tuple of int
        Of 53 bits, which every reader of JSON and CSV keeps. More of them begin with the same ones, so a sweep that is
        widened from 10 to 20 seeds has half of its runs already.

    Examples
    --------
    >>> derive_seeds(1, 3) == derive_seeds(1, 5)[:3]
    True
    """
    children = np.random.SeedSequence(seed).spawn(count)
    return tuple(int(child.generate_state(1, np.uint64)[0]) >> 11 for child in children)


def toml_text(value: object) -> str:
    """Return a plain value as TOML writes it.

    Parameters
    ----------
    value : bool, int, float, str, list, tuple or dict

    Returns
    -------
    str

    Raises
    ------
    TypeError
        If TOML has no such value.

    Examples
    --------
    >>> toml_text({"north": 2, "south": [0.5, True, "x"]})
    '{"north" = 2, "south" = [0.5, true, "x"]}'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return f"{{{', '.join(f'{toml_text(key)} = {toml_text(inner)}' for key, inner in value.items())}}}"
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _pairs_of(vary: Mapping[str, Iterable[object]]) -> Iterable[tuple[str, list[object]]]:
    """Yield keys and values; a text or a number is the one value of its key."""
    for name, values in vary.items():
        single = isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable)
        listed = [values] if single else list(values)
        yield str(name), [value.item() if isinstance(value, np.generic) else value for value in listed]


def _parsed(text: str, problems: list[str]) -> tuple[str, list[object]] | None:
    """Return key and values of ``key=v1,v2``; a value that is no TOML is a text."""
    name, separator, written = (part.strip() for part in text.partition("="))
    if not separator or not name:
        problems.append(f"--vary {text}: is not key=v1,v2, such as grid.overhead=0,0.1,0.3")
        return None
    values: list[object] = []
    for part in _split(written) if written else []:
        try:
            values.append(tomllib.loads(f"value = {part}\n")["value"])
        except (ValueError, RecursionError):
            if not part or part[0] in "[{\"'" or "\n" in part:
                problems.append(f"--vary {name}: {part!r} is no value; write it as in TOML, or a bare word")
                return None
            values.append(part)
    return name, values


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
            if letter == "," and depth <= 0:
                parts.append("")
                continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _text_of(name: str, value: object, problems: list[str]) -> str:
    try:
        return toml_text(value)
    except TypeError as error:
        problems.append(f"--vary {name}: {error}, which no scenario file can hold")
        return ""
