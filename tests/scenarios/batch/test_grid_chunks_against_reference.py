"""Sites that count resources: the compiled loop and the slow reference give the same starts on the same sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import simulate, simulate_grid
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.site.policy import PLACEMENTS, SitePolicy
from gridweave.site.resources.chunks import Chunk, NodeKind
from reference.grid import HEAD_RESERVATIONS
from reference.grid_chunks import ChunkJob, ChunkOutcome, Need, Node, Site, simulate_chunks
from reference.model import Job
from reference.ordering import ORDERS
from support.builders import (
    Dice,
    assert_alike,
    drawn_model,
    grid_cases,
    grid_options,
    random_jobs,
    to_workload,
    with_columns,
)

KINDS = (
    NodeKind(name="thin", count=1, cores=4),
    NodeKind(name="fat", count=1, cores=8, memory_mb=16, labels=("ssd",)),
    NodeKind(name="a100", count=1, cores=4, memory_mb=8, gpus=4, gpu_type="a100"),
    NodeKind(name="v100", count=1, cores=6, memory_mb=12, gpus=2, gpu_type="v100", labels=("ssd",)),
    NodeKind(name="fpga", count=1, cores=2, memory_mb=4, others=(("fpga", 2),)),
)
CHUNKS = (
    Chunk(cores=1),
    Chunk(cores=3),
    Chunk(cores=1, memory_mb=4),
    Chunk(cores=1, gpus=1),
    Chunk(cores=2, gpus=2, gpu_type="a100"),
    Chunk(cores=1, others=(("fpga", 1),)),
    Chunk(cores=1, labels=("ssd",)),
    Chunk(cores=2, exclusive=True),
    Chunk(cores=1, memory_mb=2, per_node=2),
    Chunk(cores=1, gpus=1, exclusive=True, per_node=2),
)


class ChunkCase(NamedTuple):
    """Sites, and jobs with their chunks (None: whole nodes)."""

    sites: list[int | SitePolicy]
    jobs: list[ChunkJob]
    chunks: dict[int, Chunk | None]
    draws: dict[int, float]
    sensitivity: dict[int, float]


def drawn_sites(dice: Dice, most: int) -> list[int | SitePolicy]:
    """Draw up to `most` sites; the first counts resources."""
    sites: list[int | SitePolicy] = []
    for number in range(dice.number(1, most)):
        drawn = {kind.name: kind for kind in (dice.pick(KINDS), dice.pick(KINDS))}
        kinds = tuple(msgspec.structs.replace(kind, count=dice.number(1, 3)) for kind in drawn.values())
        plain = number > 0 and dice.number(0, 4) == 0
        sites.append(dice.number(1, 4) if plain else SitePolicy(kinds=kinds, placement=dice.pick(PLACEMENTS)))
    return sites


@st.composite
def chunk_cases(draw: st.DrawFn, *, max_sites: int = 4, max_jobs: int = 14) -> ChunkCase:
    """Draw sites and jobs; all times are small, so many events happen at the same instant."""
    dice = Dice(draw, 1 + 8 * max_sites + 16 * max_jobs)
    sites = drawn_sites(dice, max_sites)
    jobs: list[ChunkJob] = []
    chunks, draws, sensitivity, submit = {}, {}, {}, 0
    for job_id in dice.ids(dice.number(1, max_jobs), max_jobs):
        submit += dice.number(0, 3)
        estimate, run = dice.times(perfect=False)
        chunk = dice.pick((None, *CHUNKS))
        width = dice.number(1, 14 if dice.chance() else 5) * ((chunk.per_node or 1) if chunk else 1)
        jobs.append(ChunkJob(job_id, submit, width, estimate, run, need=need_of(chunk)))
        chunks[job_id] = chunk
        draws[job_id] = dice.number(0, 63) / 64
        sensitivity[job_id] = dice.pick((1.0, 1.0, 0.0, 0.5, 2.0))
    return ChunkCase(sites, jobs, chunks, draws, sensitivity)


def need_of(chunk: Chunk | None) -> Need | None:
    """Convert a chunk for the reference."""
    if chunk is None:
        return None
    amounts = {"cores": chunk.cores, "memory": chunk.memory_mb, "gpus": chunk.gpus, **dict(chunk.others)}
    labels = frozenset(chunk.labels)
    return Need(tuple(amounts.items()), chunk.per_node, chunk.exclusive, labels, chunk.gpu_type)


def reference_site(site: int | SitePolicy) -> Site:
    """Convert a site for the reference."""
    if isinstance(site, int):
        return Site((Node(is_plain=True),) * site)
    nodes: list[Node] = []
    for kind in site.kinds:
        memory = 10**9 if kind.memory_mb is None else kind.memory_mb
        amounts = {"cores": kind.cores, "memory": memory, "gpus": kind.gpus, **dict(kind.others)}
        labels = frozenset({kind.name, *kind.labels})
        nodes += [Node(tuple(amounts.items()), labels, kind.gpu_type)] * kind.count
    return Site(tuple(nodes), site.placement)


def workload_of(jobs: Sequence[Job], chunks: dict[int, Chunk | None]) -> Workload:
    """Return the jobs as a workload with chunks."""
    workload = to_workload(jobs)
    column = [-1 if (chunk := chunks[job_id]) is None else CHUNKS.index(chunk) for job_id in workload.job_id.tolist()]
    columns = {**workload.columns, "chunk": np.array(column, np.int64)}
    fields = {name: getattr(workload, name) for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms")}
    return Workload(**fields, overran=workload.overran, columns=columns, chunks=CHUNKS)


class SameDraws:
    """A generator that returns prepared draws, so that kernel and reference use the same."""

    def __init__(self, draws: Sequence[float]) -> None:
        self._draws = draws

    def random(self, count: int) -> np.ndarray:
        """Return the draws, one per job."""
        assert count == len(self._draws)
        return np.array(self._draws)


def both(case: ChunkCase, options: dict[str, Any]) -> tuple[SimulationResult, ChunkOutcome]:
    """Simulate a case, and run the reference."""
    want = simulate_chunks(
        case.jobs,
        [reference_site(site) for site in case.sites],
        draws=case.draws,
        sensitivity=case.sensitivity,
        **options,
    )
    workload = workload_of(case.jobs, case.chunks)
    ids = workload.job_id.tolist()
    policy = GridPolicy(**options | {"max_fragments": tuple(options.get("max_fragments") or ())})
    chance: Any = SameDraws([case.draws[job_id] for job_id in ids])
    factors = [case.sensitivity[job_id] for job_id in ids]
    return simulate_grid(workload, case.sites, policy, rng=chance, sensitivity=factors), want


MODES = ("sharing", "multi-site", "adaptive")


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_random_workloads_give_the_same_schedule(data: st.DataObject) -> None:
    """All orders, selections, modes and head reservations, on sites with and without kinds of nodes."""
    case = data.draw(chunk_cases())
    got, want = both(case, data.draw(grid_options(MODES, orders=ORDERS, heads=HEAD_RESERVATIONS)))
    assert_alike(got, want)


POLICIES: tuple[dict[str, Any], ...] = (
    *({"mode": "sharing", "selection": selection} for selection in ("best-fit", "biggest-free", "equal-util")),
    {"mode": "sharing", "backfill": "none"},
    *({"mode": "multi-site", "overhead": overhead} for overhead in (0.0, 0.3)),
    *({"mode": "adaptive", "overhead": overhead} for overhead in (0.0, 0.3)),
    {"mode": "adaptive", "overhead": (0.1, 0.4), "order": "sjf", "head_reservation": "single-site"},
    {"mode": "multi-site", "overhead": 0.3, "max_fragments": ((8, 2),), "lower_bound": 3},
)


@pytest.mark.parametrize("number", range(len(POLICIES)), ids=[str(sorted(policy.items())) for policy in POLICIES])
def test_loaded_grids_give_the_same_schedule(number: int) -> None:
    """Up to 60 jobs with mixed chunks, most of which wait."""
    rng = np.random.default_rng([39, number])
    for _ in range(6):
        sites: list[int | SitePolicy] = [
            SitePolicy(
                kinds=tuple(
                    msgspec.structs.replace(KINDS[kind], count=int(rng.integers(1, 4)))
                    for kind in rng.choice(len(KINDS), 2, replace=False)
                ),
                placement=PLACEMENTS[rng.integers(3)],
            )
            for _ in range(int(rng.integers(2, 4)))
        ]
        sites += [3] if rng.random() < 0.3 else []
        chunks: dict[int, Chunk | None] = {}
        jobs = []
        for job in random_jobs(rng, 60, 20, load=2.0):
            chunks[job.id] = chunk = (None, *CHUNKS)[rng.integers(len(CHUNKS) + 1)]
            width = job.width * ((chunk.per_node or 1) if chunk else 1)
            jobs.append(ChunkJob(job.id, job.submit, width, job.estimate, job.run, need=need_of(chunk)))
        plain = dict.fromkeys(chunks, 1.0)
        assert_alike(*both(ChunkCase(sites, jobs, chunks, dict.fromkeys(chunks, 0.5), plain), POLICIES[number]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whole_nodes_of_one_kind_give_the_schedule_of_sites_without_kinds(data: st.DataObject) -> None:
    case = data.draw(grid_cases())
    options = data.draw(grid_options(MODES, orders=ORDERS, heads=HEAD_RESERVATIONS))
    policy = GridPolicy(**options | {"max_fragments": tuple(options.get("max_fragments") or ())})
    workload = to_workload(case.jobs)
    draws = [case.draws[job_id] for job_id in workload.job_id.tolist()]
    cores = [data.draw(st.integers(1, 9)) for _ in case.nodes]
    kinds = [[NodeKind(name="node", count=nodes, cores=each)] for nodes, each in zip(case.nodes, cores, strict=True)]
    counted, today = (
        simulate(workload, sites, policy, rng=SameDraws(draws))
        for sites in (kinds, list(case.nodes))  # type: ignore[arg-type]
    )
    assert counted.start_ms.tolist() == today.start_ms.tolist()
    assert counted.end_ms.tolist() == today.end_ms.tolist()
    rows = range(len(workload))
    assert [counted.fragments_of(row) for row in rows] == [today.fragments_of(row) for row in rows]
    assert counted.refused == today.refused


@pytest.mark.parametrize("split", ["fewest", "earliest-end"])
@pytest.mark.parametrize("mode", MODES)
def test_with_a_network_whole_nodes_give_the_schedule_of_sites_without_kinds(mode: str, split: str) -> None:
    rng = np.random.default_rng(12)
    for _ in range(6):
        nodes = rng.integers(1, 9, int(rng.integers(2, 6))).tolist()
        workload = with_columns(rng, to_workload(random_jobs(rng, 40, sum(nodes), load=1.2)), len(nodes))
        net = GridNet(drawn_model(rng, len(nodes)), split=split)
        kinds = [[NodeKind(name="node", count=count, cores=5)] for count in nodes]
        counted, today = (simulate_grid(workload, sites, GridPolicy(mode=mode), net=net) for sites in (kinds, nodes))
        assert counted.start_ms.tolist() == today.start_ms.tolist()
        assert counted.end_ms.tolist() == today.end_ms.tolist()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_node_is_overbooked_and_the_head_starts_by_its_shadow_time(data: st.DataObject) -> None:
    """Checked on the nodes of the reference, whose schedule is that of the loop."""
    case = data.draw(chunk_cases())
    options = data.draw(grid_options(("sharing", "multi-site"))) | {"backfill": "easy", "head_reservation": "anywhere"}
    got, outcome = both(case, options)
    assert_alike(got, outcome)
    assert all(outcome.start[head] <= shadow for _, head, shadow in outcome.shadows)
    sites = [reference_site(site) for site in case.sites]
    jobs = {job.id: job for job in case.jobs}
    for instant in set(outcome.start.values()):
        used: dict[tuple[int, int, str], int] = {}
        for job_id, start in outcome.start.items():
            if start <= instant < outcome.end[job_id]:
                need = jobs[job_id].need
                for site, node, chunks in outcome.held[job_id]:
                    there = dict(sites[site].nodes[node].amounts)
                    takes = there if need is None or need.exclusive else {k: chunks * v for k, v in need.amounts}
                    for name, amount in takes.items():
                        used[site, node, name] = used.get((site, node, name), 0) + amount
        for (site, node, name), amount in used.items():
            assert amount <= dict(sites[site].nodes[node].amounts).get(name, 0)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (GridPolicy(backfill="conservative"), "backfill: conservative plans whole nodes"),
        (GridPolicy(mode="local"), "mode: local does not work with kinds of nodes"),
    ],
)
def test_options_that_count_only_nodes_are_refused(policy: GridPolicy, message: str) -> None:
    case = workload_of([Job(1, 0, 1, 1, 1)], {1: None})
    with pytest.raises(OptionError, match=message):
        simulate_grid(case, [[KINDS[0]]], policy)


def test_a_job_whose_chunk_fits_nowhere_is_refused_with_the_reason() -> None:
    jobs = workload_of([Job(1, 0, 2, 1, 1), Job(2, 0, 9, 1, 1)], {1: CHUNKS[3], 2: CHUNKS[1]})
    refused = dict(simulate_grid(jobs, [[KINDS[1]], 4], GridPolicy(mode="sharing")).refused)
    assert refused[1] == "a chunk of it fits on no node of any site"
    assert refused[2].startswith("it needs 9 chunks, the largest site has room for 2, and mode sharing splits no job")
    assert set(dict(simulate_grid(jobs, [4, 4], GridPolicy()).refused)) == {1, 2}
