"""Kinds of nodes, and what jobs ask for, are checked with all problems at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gridweave.site.resources.chunks import MAX_AMOUNT, MAX_KINDS, WHOLE_NODE, Chunk, NodeKind
from gridweave.site.resources.problems import chunk_problems, kind_problems


def test_sound_kinds_and_chunks_have_no_problems() -> None:
    kinds = [
        NodeKind(name="cpu", count=6, cores=64, memory_mb=256_000, labels=("fast-disk",)),
        NodeKind(name="gpu", count=2, cores=32, gpus=4, gpu_type="a100", others=(("fpga", 2),)),
    ]
    assert list(kind_problems(kinds)) == []
    assert list(chunk_problems(Chunk(cores=4, memory_mb=8000, gpus=1, gpu_type="a100", per_node=2), 8)) == []
    assert list(chunk_problems(WHOLE_NODE, 3)) == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"count": 0}, "count"),
        ({"cores": 0}, "cores"),
        ({"memory_mb": -5}, "memory_mb"),
        ({"memory_mb": MAX_AMOUNT + 1}, "memory_mb"),
        ({"gpus": -1}, "gpus"),
        ({"gpu_type": "a b"}, "gpu_type"),
        ({"others": (("fpga", 0),)}, "others"),
        ({"others": (("gpus", 1),)}, "others"),
        ({"others": (("b", 1), ("a", 1))}, "others"),
        ({"labels": ("",)}, "labels"),
        ({"speed": 0.0}, "speed"),
        ({"speed": math.nan}, "speed"),
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
    ],
)
def test_each_wrong_value_of_a_kind_is_one_problem(values: dict[str, Any], field: str) -> None:
    kind = NodeKind(**{"name": "cpu", "count": 1} | values)
    assert [(number, name) for number, name, _ in kind_problems([kind])] == [(0, field)]


def test_kinds_have_different_names_and_are_not_too_many() -> None:
    kinds = [NodeKind(name=f"k{number}", count=1) for number in range(MAX_KINDS + 1)]
    assert list(kind_problems(kinds[:MAX_KINDS])) == []
    assert list(kind_problems(kinds)) == [(62, "name", "'k62' is one kind too many; a site has at most 62")]
    assert list(kind_problems([kinds[0], kinds[0]])) == [
        (1, "name", "'k0' is also the name of another kind; each needs its own")
    ]


@pytest.mark.parametrize(
    ("chunk", "fields"),
    [
        (Chunk(cores=-1), ["cores"]),
        (Chunk(memory_mb=-8, gpus=-2, per_node=-1), ["memory_mb", "gpus", "per_node"]),
        (Chunk(memory_mb=MAX_AMOUNT + 1), ["memory_mb"]),
        (Chunk(gpu_type="a100"), ["gpus"]),
        (Chunk(labels=("fast disk",)), ["labels"]),
        (Chunk(per_node=3), ["per_node"]),
        (Chunk(per_node=16), ["per_node"]),
        (Chunk(cores=0), ["cores"]),
        (Chunk(cores=0, exclusive=True, gpus=1), ["cores"]),
    ],
)
def test_all_problems_of_a_chunk_are_found(chunk: Chunk, fields: list[str]) -> None:
    assert [field for field, _ in chunk_problems(chunk, 8)] == fields
