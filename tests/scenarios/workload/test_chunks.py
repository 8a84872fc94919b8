"""Chunks of the jobs of a workload: from plain columns, and drawn at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.chunks import MEMORY_SIZES, draw_chunks, with_amounts, with_chunks
from gridweave.scenarios.workload.table import Workload
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk


def jobs_of(count: int) -> Workload:
    each = np.arange(1, count + 1)
    return Workload(each, each, each, each, each)


def chunk_of_each(workload: Workload) -> list[Chunk | None]:
    chunks: list[Chunk | None] = [*workload.chunks, None]
    return [chunks[number] for number in workload.columns["chunk"].tolist()]


AMOUNTS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.sampled_from(["", "a100", "v100"]))


@given(st.lists(AMOUNTS, max_size=12))
def test_every_job_gets_the_chunk_of_its_amounts(rows: list[tuple[int, int, int, str]]) -> None:
    cores, memory_mb, gpus, gpu_type = ([row[i] for row in rows] for i in range(4))
    types = np.array(gpu_type, np.str_)
    asking = with_amounts(jobs_of(len(rows)), cores=cores, memory_mb=memory_mb, gpus=gpus, gpu_type=types)
    assert chunk_of_each(asking) == [
        Chunk(cores=row[0], memory_mb=row[1], gpus=row[2], gpu_type=row[3] if row[2] else "") if row[0] else None
        for row in rows
    ]
    assert len(set(asking.chunks)) == len(asking.chunks)


@given(st.lists(st.sampled_from([None, WHOLE_NODE, Chunk(cores=2), Chunk(cores=2, gpus=1)]), max_size=12))
def test_chunks_come_back_as_they_were_set(chunks: list[Chunk | None]) -> None:
    asking = with_chunks(jobs_of(len(chunks)), chunks)
    assert chunk_of_each(asking) == [None if chunk == WHOLE_NODE else chunk for chunk in chunks]
    assert len(asking.chunks) == len({*chunks} - {None, WHOLE_NODE})


@pytest.mark.parametrize(("name", "value"), [("memory_mb", -1), ("gpus", 10**10), ("cores", -4)])
def test_an_amount_that_is_out_of_range_is_refused_with_its_job(name: str, value: int) -> None:
    amounts = {"cores": [1, 1], "memory_mb": [0, 0], "gpus": [0, 0]} | {name: [1, value]}
    with pytest.raises(InputError, match=f"job 2: {name} {value} is not within 0 to 1000000000"):
        with_amounts(jobs_of(2), **amounts)


def test_drawn_chunks_are_within_their_ranges_and_few() -> None:
    asking = draw_chunks(
        jobs_of(5000), np.random.default_rng(1), cores=(2, 4), gpus=(1, 2), memory_mb=(1500, 9000), gpu_share=0.25
    )
    chunks = chunk_of_each(asking)
    assert {chunk.cores for chunk in chunks if chunk} == {2, 3, 4}
    assert {chunk.gpus for chunk in chunks if chunk} == {0, 1, 2}
    sizes = {chunk.memory_mb for chunk in chunks if chunk}
    assert (min(sizes), max(sizes), len(sizes)) == (1500, 9000, MEMORY_SIZES)
    assert sum(chunk.gpus > 0 for chunk in chunks if chunk) == pytest.approx(1250, rel=0.1)


def test_another_share_of_gpu_jobs_does_not_change_the_other_amounts() -> None:
    half, none = (draw_chunks(jobs_of(50), np.random.default_rng(7), gpu_share=share) for share in (0.5, 0.0))
    assert [(chunk.cores, chunk.memory_mb) for chunk in chunk_of_each(half) if chunk] == [
        (chunk.cores, chunk.memory_mb) for chunk in chunk_of_each(none) if chunk
    ]


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ({"cores": (0, 4)}, "cores: is 0 to 4; expected a range within 1"),
        ({"gpus": (4, 1)}, "gpus: is 4 to 1; expected a range"),
        ({"memory_mb": (0, 10)}, "memory_mb: is 0 to 10; a logarithmic scale"),
        ({"gpu_share": 1.5}, "gpu_share: is 1.5"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(ranges: dict[str, object], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        draw_chunks(jobs_of(1), np.random.default_rng(1), **ranges)  # type: ignore[arg-type]
