"""Tables as they are printed: as rich prints them, without loading it."""

from __future__ import annotations

import io
import os
import re
import sys

import numpy as np
import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gridweave.cli.output import print_table

WORDS = ("", "a", "north", "12,000", "x y z", "日本", "ä")


def as_rich_prints_it(rows: list[list[str]], headings: list[str] | None, right: tuple[int, ...]) -> str:
    """Return a table by rich."""
    table = Table(box=SIMPLE_HEAD, show_header=headings is not None, pad_edge=False)
    for place in range(len(headings) if headings is not None else max(map(len, rows))):
        heading = Text(headings[place]) if headings is not None else ""
        table.add_column(heading, justify="right" if place in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=Console(width=10_000).measure(table).maximum, highlight=False, file=io.StringIO())
    with console.capture() as printed:
        console.print(table)
    return printed.get()


def test_a_table_is_as_rich_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Random tables, also with rows that are short and letters that are wide."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        width = int(rng.integers(1, 6))
        headings = list(map(str, rng.choice(WORDS, width))) if rng.random() < 0.6 else None
        rows = [list(map(str, rng.choice(WORDS, rng.integers(1, width + 1)))) for _ in range(rng.integers(1, 6))]
        right = tuple(place for place in range(width) if rng.random() < 0.5)
        print_table(rows, headings=headings, right=right)
        assert capsys.readouterr().out == as_rich_prints_it(rows, headings, right)


def test_the_last_column_is_wrapped_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There alone, and no word of it is lost; what is piped into a file is as wide as it needs to be."""
    words = [f"word{number}" for number in range(30)]
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((60, 16)))
        print_table([["17", " ".join(words)]], headings=("job", "why"), wrap=True, right=(0,))
        lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
        assert (max(map(len, lines)) <= 60) == is_terminal
        assert " ".join(lines[3:]).split()[1:] == words


def test_a_title_stands_above(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be wider than the table; nothing at all is a table, too."""
    print_table([["a"]], title="what this is about")
    assert capsys.readouterr().out.splitlines() == ["what this is about", "   ", " a ", "   "]
    print_table([])
    assert capsys.readouterr().out.strip() == ""
