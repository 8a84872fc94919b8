"""What is sent and kept changes only knowingly."""

from __future__ import annotations

import ast
import json

import house
import wire_format


def test_no_tag_is_the_name_of_a_class() -> None:
    """Every tag is written out: a class can be renamed, and what was sent or kept of it is read as before."""
    for file in house.product_files():
        for node in ast.walk(house.tree_of(file)):
            if isinstance(node, ast.keyword) and node.arg == "tag":
                value = node.value
                is_written = isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value
                assert is_written, f"{file}, line {node.lineno}: a tag is a text"


def test_the_wire_is_as_written() -> None:
    """Tags, fields and types are those of the committed file; docs/journal.md says what may change how."""
    written = json.loads(wire_format.FILE.read_text(encoding="utf-8"))
    assert wire_format.now() == written, "if that is meant: python tools/wire_format.py, and docs/journal.md, Versions"
