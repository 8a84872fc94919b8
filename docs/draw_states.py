"""Draw the state tables into docs/states.md: ``python docs/draw_states.py`` renews the page.

The text between ``<!-- drawn: NAME -->`` and ``<!-- end -->`` comes from a table. The rest is written by hand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from gridweave.grid.lifecycle import ATTEMPT, DELEGATION
from gridweave.site.lifecycle import JOB, PART, RUN_END, StateTable

PAGE = Path(__file__).with_name("states.md")
TABLES: dict[str, StateTable[Any, Any]] = {
    "job": JOB,
    "part": PART,
    "end": RUN_END,
    "delegation": DELEGATION,
    "attempt": ATTEMPT,
}
_DRAWN = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def diagram(table: StateTable[Any, Any]) -> str:
    """Return the diagram of a table in Mermaid's language; a cause that leaves a state as it is has no arrow."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cause, state in table.first.items():
        arrows["[*]", state].append(cause)
    for before, row in table.rows.items():
        for cause, after in row.items():
            if after != before:
                arrows[before, after].append(cause)
    lines = [f"    {before} --> {after}: {', '.join(causes)}" for (before, after), causes in arrows.items()]
    lines += [f"    {state} --> [*]" for state in table.over]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def meanings(heading: str, known: dict[str, str]) -> str:
    """Return what each state or cause means, as a table."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in known.items()]
    return "\n".join([f"| {heading} | meaning |", "|---|---|", *rows])


def drawn(page: str) -> str:
    """Return the text of the page with each table as it is now."""

    def draw(match: re.Match[str]) -> str:
        table = TABLES[match[2]]
        parts = diagram(table), meanings("state", dict(table.states)), meanings("cause", dict(table.causes))
        return match[1] + "\n\n".join(parts) + "\n" + match[3]

    return _DRAWN.sub(draw, page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
