"""What is sent and kept changes only knowingly."""

from __future__ import annotations

import ast
import json

import msgspec

import house
import wire_format
from gridweave.site.known_times import KnownTimes, read_times
from gridweave.site.messages import DisciplineEdited


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


def test_edits_of_learned_times_keep_their_bytes() -> None:
    """The edit of a discipline is opaque, and journals have it as they always had: times without their defaults."""
    times = [
        KnownTimes(job_class="cfd", resource="old", runs=4, mean_ms=9_000.0),
        KnownTimes(user=7, runs=0, mean_ms=0.0),
    ]
    written = {
        "type": "ExperienceEdited",
        "times": [
            {"job_class": "cfd", "resource": "old", "runs": 4, "mean_ms": 9_000.0},
            {"user": 7, "runs": 0, "mean_ms": 0.0},
        ],
    }
    event = DisciplineEdited(msgspec.to_builtins(times))
    assert msgspec.msgpack.encode(event) == msgspec.msgpack.encode(written)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=DisciplineEdited)
    assert read_times(read.changes) == times
