"""Chunks on nodes of which others use a part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, NodeKind
from gridweave.site.resources.groups import NodeGroup, chunks_at, earliest_fit, merged, without_chunks
from gridweave.site.resources.refusals import why_no_node

KINDS = (
    NodeKind(name="cpu", count=4, cores=16, memory_mb=4000, labels=("ib",)),
    NodeKind(name="gpu", count=2, cores=8, memory_mb=8000, gpus=4, gpu_type="a100"),
)
CHUNKS = st.builds(
    Chunk,
    cores=st.integers(1, 8),
    memory_mb=st.sampled_from([0, 500, 3000]),
    gpus=st.integers(0, 2),
    exclusive=st.booleans(),
    per_node=st.sampled_from([0, 0, 2]),
)


@st.composite
def groups(draw: st.DrawFn) -> tuple[NodeGroup, ...]:
    """Return nodes with some of their resources in use."""
    drawn = []
    for kind, what in enumerate(KINDS):
        for _ in range(draw(st.integers(0, 3))):
            free = tuple(draw(st.integers(0, most)) for most in (what.cores, what.memory_mb or 0, what.gpus))
            drawn.append(NodeGroup(kind, draw(st.integers(1, 3)), free, draw(st.integers(1, 100))))
    return tuple(drawn)


def test_a_node_in_use_counts_as_it_is_until_its_jobs_have_ended() -> None:
    nodes = (NodeGroup(0, 2, (3, 4000, 0), 50), NodeGroup(1, 1, (8, 8000, 4), 0))
    assert chunks_at(Chunk(cores=2), KINDS, nodes, 0) == 2 + 4
    assert chunks_at(Chunk(cores=2), KINDS, nodes, 50) == 2 * 8 + 4
    assert earliest_fit(Chunk(cores=2), 6, KINDS, nodes, 0) == 0
    assert earliest_fit(Chunk(cores=2), 7, KINDS, nodes, 0) == 50
    assert earliest_fit(Chunk(cores=2), 21, KINDS, nodes, 0) is None
    assert earliest_fit(WHOLE_NODE, 3, KINDS, nodes, 0) == 50
    assert chunks_at(Chunk(labels=("ib",), exclusive=True), KINDS, nodes, 0) == 0


@given(groups(), CHUNKS, st.integers(1, 20))
def test_a_job_takes_what_it_needs_and_no_more(nodes: tuple[NodeGroup, ...], chunk: Chunk, width: int) -> None:
    """No amount goes below 0, no node appears or vanishes, and the chunks that fit become fewer by those of the job."""
    width -= width % (chunk.per_node or 1)
    before = chunks_at(chunk, KINDS, nodes, 0)
    left = without_chunks(chunk, width, KINDS, nodes, 0, 200)
    assert sum(group.count for group in left) == sum(group.count for group in nodes)
    assert all(amount >= 0 for group in left for amount in group.free)
    after = chunks_at(chunk, KINDS, left, 0)
    if chunk.per_node and not chunk.exclusive:
        assert after <= before  # another job may have as many chunks on the same nodes
    elif chunk.exclusive:
        assert after <= max(0, before - width)
    else:
        assert after == max(0, before - width)


@given(groups(), st.integers(1, 4), CHUNKS, st.integers(0, 120))
def test_merged_groups_never_promise_more(nodes: tuple[NodeGroup, ...], limit: int, chunk: Chunk, at_ms: int) -> None:
    few = merged(nodes, limit)
    assert len(few) <= max(limit, len({group.kind for group in nodes}))
    assert sum(group.count for group in few) == sum(group.count for group in nodes)
    assert chunks_at(chunk, KINDS, few, at_ms) <= chunks_at(chunk, KINDS, nodes, at_ms)


def test_a_misfit_names_the_resource_and_the_largest_node() -> None:
    assert why_no_node(KINDS, Chunk(gpus=5)) == "a chunk needs 5 GPUs and the largest node that suits has 4"
    assert why_no_node(KINDS, Chunk(cores=16, labels=("gpu",))) == (
        "a chunk needs 16 cores and the largest node that suits has 8"
    )
    assert why_no_node(KINDS, Chunk(others=(("fpga", 1),))) == "no node has 'fpga'"
    assert why_no_node(KINDS, Chunk(labels=("ib",), gpus=1, gpu_type="a100")) == (
        "no node has all of ib, GPUs of type a100"
    )
    assert why_no_node(KINDS, WHOLE_NODE) is None
