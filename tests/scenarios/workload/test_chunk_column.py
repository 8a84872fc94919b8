"""Workloads whose jobs ask for chunks."""

from __future__ import annotations

from typing import Any

import pytest

from gridweave.errors import InputError
from gridweave.scenarios.workload.table import Workload
from gridweave.site.resources.chunks import Chunk

JOBS: dict[str, Any] = {"job_id": [1, 2], "submit_ms": [0, 5], "width": [4, 3], "estimate_ms": [9, 9], "run_ms": [9, 9]}


def test_rows_keep_their_chunks() -> None:
    jobs = Workload(**JOBS, columns={"chunk": [0, -1]}, chunks=(Chunk(cores=4, per_node=2),))
    assert jobs.take([1]).columns["chunk"].tolist() == [-1]
    assert jobs.take([0]).chunks == (Chunk(cores=4, per_node=2),)


@pytest.mark.parametrize(
    ("chunk", "problem"), [([1, 0], "chunk 1 is not -1 to 0"), ([-1, 0], "job 2: width 3 is not a multiple")]
)
def test_wrong_chunks_are_refused(chunk: list[int], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Workload(**JOBS, columns={"chunk": chunk}, chunks=(Chunk(per_node=2),))
