"""What a job counts as against the share of a site that the grid may use."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind
from gridweave.site.resources.refusals import why_never_on
from gridweave.site.resources.shares import NODE, chunks_in_share, share_of
from support.counted import CountedCase, counted_cases

CPU = NodeKind(name="cpu", count=6, cores=64, memory_mb=256_000)
GPU = NodeKind(name="gpu", count=2, cores=32, memory_mb=512_000, gpus=4)


@pytest.mark.parametrize(
    ("width", "chunk", "nodes"),
    [
        (3, msgspec.UNSET, 3),
        (3, WHOLE_NODE, 3),
        (7, Chunk(cores=32), 4),  # 224 of 448 cores are half of the 8 nodes
        (4, Chunk(cores=1, gpus=1), 4),  # 4 of 8 GPUs, although only 4 of 448 cores
        (1, Chunk(cores=1, memory_mb=256_000), 0.8),  # 1/10 of the memory of the site
        (9, Chunk(cores=16, exclusive=True), 3),  # at most 4 on a node
        (8, Chunk(cores=1, exclusive=True, per_node=2), 4),
    ],
)
def test_a_job_counts_as_its_largest_share_of_any_resource(
    width: int, chunk: Chunk | msgspec.UnsetType, nodes: float
) -> None:
    assert share_of(width, chunk, [CPU, GPU]) == pytest.approx(nodes * NODE, abs=1)


@given(counted_cases())
def test_a_job_that_fits_counts_as_at_most_the_whole_site(case: CountedCase) -> None:
    nodes = sum(kind.count for kind in case.kinds)
    for job in case.jobs:
        chunk = case.chunks[job.id]
        if why_never_on(case.kinds, job.width, chunk) is None:
            assert 0 < share_of(job.width, chunk, case.kinds) <= nodes * NODE


@pytest.mark.parametrize(
    ("left", "per_unit", "most"), [(NODE, 1, 8), (NODE, 3, 6), (NODE // 8 - 1, 1, 0), (NODE, 9, 0)]
)
def test_the_largest_number_of_chunks_in_share_a_share_is_a_multiple_of_the_unit(
    left: int, per_unit: int, most: int
) -> None:
    assert chunks_in_share(left, 100, per_unit, lambda width: width * NODE // 8) == most
    assert chunks_in_share(left, 5, per_unit, lambda width: width * NODE // 8) == min(most, 5 // per_unit * per_unit)
