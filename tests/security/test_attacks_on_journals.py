"""What is read from a journal, a wire or a file is data: nothing in it can name code that is then run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READS_NAMES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@pytest.mark.parametrize("folder", ["site", "grid"])
def test_nothing_is_looked_up_by_a_name_that_came_from_outside(folder: str) -> None:
    """No file of a site or the grid imports what makes objects of names that it reads, and none evaluates a text."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                found.append(f"{path}:{node.lineno}")
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.partition(".")[0] in READS_NAMES]
    assert found == []
