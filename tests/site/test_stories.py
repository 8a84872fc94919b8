"""What is noted of jobs: the kinds that the code writes, that clients may ask for, and that the docs name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gridweave.site.job import ActionKind
from gridweave.site.query_messages import EventKind

ROOT = Path(__file__).resolve().parents[2]
KINDS = set(get_args(EventKind))


def test_the_kinds_are_those_of_the_docs() -> None:
    """The table "The story" of docs/live.md has every kind that a client may ask for, once, and no other."""
    page = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    table = page[page.index("**The story**") : page.index("## Held")]
    named = [kind for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(KINDS)


def test_what_is_noted_is_of_a_kind() -> None:
    """Each note that the code takes of a job is of one of these kinds, and each kind is noted somewhere."""
    noted: set[str] = set()
    for path in [*(ROOT / "site").rglob("*.py"), *(ROOT / "grid").rglob("*.py")]:
        noted |= set(re.findall(r'registry\.note\([^"()]*,\s*"(\w+)"', path.read_text(encoding="utf-8")))
        noted |= set(re.findall(r'self\.note\([^"()]*(?:\([^()]*\))?[^"()]*"(\w+)"', path.read_text(encoding="utf-8")))
    # An action is noted by its own name, but for the ends of jobs.
    noted |= set(get_args(ActionKind)) - {"cancel", "kill"}
    assert noted == KINDS
