"""What would become of the grid: the play of another grid is what that grid does, told the same jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.grid.api import OtherPolicy, Outlook, WhatIf
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import topology_of_graph
from gridweave.netmodel.routing import find_paths
from gridweave.site.job import JobRequest, Program, Traffic
from gridweave.site.messages import (
    Answer,
    CommitNodes,
    Ended,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
    UserSubmitted,
)
from gridweave.site.state import dump_state
from support.builders import AT_ANY_COST

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def grid_of(sites: dict[str, int], **options: Any) -> LiveGrid:
    """Return a live grid without delays."""
    network = options.pop("network", None)
    policy = GridPolicy(**{"mode": "sharing", **options})
    return LiveGrid(GridSettings(sites=tuple(sites.items()), policy=policy, margin_ms=0, network=network))


def request(nodes: int, minutes: int = 60) -> JobRequest:
    """Return a request for some nodes."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=minutes * MINUTE_MS)


def linked() -> GridNetwork:
    """Return two sites with one link."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_edge("north", "south", latency_ms=1.0, bandwidth_bps=1e9)
    topology = topology_of_graph(graph)
    return GridNetwork(NetworkModel(topology, find_paths(topology)), True, int(NO_DATA), 0, AT_ANY_COST)


def hand_in(grid: LiveGrid, now_ms: int, *requests: JobRequest) -> None:
    """Hand jobs in, and have the sites start those that are placed."""
    events = [UserSubmitted(f"{now_ms} {number}", each) for number, each in enumerate(requests)]
    commands = list(grid.handle(now_ms, *events))
    while commands:
        told = [FromLiveSite(each.site, answer) for each in commands if (answer := answer_to(each, now_ms))]
        commands = [command for each in told for command in grid.handle(now_ms, each)]


def answer_to(command: object, now_ms: int) -> Answer | None:
    """Return what a site says that grants all and starts jobs at once."""
    match command:
        case SendToSite(message=ReserveNodes(job_id=job_id, attempt=attempt, start_ms=start_ms)) if (
            start_ms is not None
        ):
            return Reserved(job_id, attempt)
        case SendToSite(
            message=ReserveNodes(job_id=job_id, attempt=attempt) | CommitNodes(job_id=job_id, attempt=attempt)
        ):
            return Started(job_id, attempt, now_ms)
    return None


def outlooks(grid: LiveGrid, now_ms: int, **asked: Any) -> tuple[Outlook, Outlook]:
    """Return what becomes of the grid as it is and as it would be, if each job takes as long as it may."""
    before = dump_state(grid)
    answer = grid.what_if(now_ms, WhatIf(**asked))()
    assert dump_state(grid) == before, "asking has changed the grid"
    return answer.plays[0].now, answer.plays[0].then


@pytest.fixture
def grid() -> LiveGrid:
    """Return two sites of four nodes with a job of an hour on all of each, and two more that wait."""
    found = grid_of({"north": 4, "south": 4})
    hand_in(found, 0, *(request(4) for _ in range(4)))
    return found


def test_a_site_that_is_drained_starts_nothing(grid: LiveGrid) -> None:
    """What runs there ends; what waits, waits for the other site."""
    now, then = outlooks(grid, 0, drain=("south",), again=False, hours=4)
    assert [site.used for site in now.sites] == [0.5, 0.5]
    assert [site.used for site in then.sites] == [0.75, 0.25]
    # Both start after an hour; with one site, after one hour and after two.
    assert (now.started, now.wait_ms, now.longest_ms) == (2, HOUR_MS, HOUR_MS)
    assert (then.started, then.wait_ms, then.longest_ms) == (2, 3 * HOUR_MS // 2, 2 * HOUR_MS)


@pytest.mark.parametrize("mode", ["sharing", "adaptive"])
def test_a_site_that_is_drained_now_stays_drained(mode: str) -> None:
    """What ends there frees nothing, and what runs there keeps no job from nodes elsewhere."""
    grid = grid_of({"north": 4, "south": 4, "west": 4}, mode=mode)
    hand_in(grid, 0, request(4), request(4), request(4, 30), request(4))
    grid.handle(0, FromLiveSite(0, SiteChanged(0, 0, "the site is being drained")))
    for outlook in outlooks(grid, 0, drain=("north",), again=False, hours=4):
        assert [site.used for site in outlook.sites] == [0.25, 0.25, 0.375]


def test_a_new_site_and_more_nodes_start_jobs_at_once(grid: LiveGrid) -> None:
    """A name that the grid does not know is a site, and a number for one that it knows its nodes."""
    _, then = outlooks(grid, 0, nodes={"west": 4}, again=False, hours=4)
    assert (then.started, then.wait_ms) == (2, HOUR_MS // 2)
    assert [(site.site, site.nodes, site.used) for site in then.sites][-1] == ("west", 4, 0.25)
    _, then = outlooks(grid, 0, nodes={"north": 12}, again=False, hours=4)
    assert (then.started, then.wait_ms) == (2, 0)


def test_fewer_nodes_take_nothing_from_what_runs(grid: LiveGrid) -> None:
    """A job goes on where it runs; jobs that are too wide then could never start, and wait for nothing."""
    _, then = outlooks(grid, 0, nodes={"north": 2, "south": 2}, again=False, hours=2)
    assert (then.jobs, then.never, then.started, then.wait_ms) == (2, 2, 0, 0)
    assert then.used == 1.0  # of four nodes for two hours: eight were had for one


def test_a_moment_is_looked_ahead_too(grid: LiveGrid) -> None:
    """Hours that come to less than a millisecond are one: all nodes are had for that."""
    now, then = outlooks(grid, 0, hours=1e-9)
    assert (now.used, then.used) == (1.0, 1.0)


def test_the_policy_may_be_another() -> None:
    """A job for which no site has the nodes starts on both if it may be split; a name that is not known is refused."""
    grid = grid_of({"north": 4, "south": 4}, selection="biggest-free")
    hand_in(grid, 0, request(2), request(2), request(4))
    now, then = outlooks(grid, 0, policy=OtherPolicy(mode="multi-site"), again=False, hours=2)
    assert (now.wait_ms, then.wait_ms) == (HOUR_MS, 0)
    with pytest.raises(InputError, match="policy: mode: 'both' is not known; one of local, sharing"):
        grid.what_if(0, WhatIf(policy=OtherPolicy(mode="both")))()


def test_what_came_comes_again_and_twice_as_much_of_it() -> None:
    """The jobs of the last hours come at the same instants, so many times; none comes where the load is 0."""
    grid = grid_of({"north": 4})
    for hour in range(4):
        hand_in(grid, hour * HOUR_MS, request(4, 30))
        for record in [each for each in grid.registry.records.values() if each.state == "running"]:
            half = hour * HOUR_MS + HOUR_MS // 2
            grid.handle(half, FromLiveSite(0, Ended(record.job_id, record.attempt, half, "finished")))
    now, then = outlooks(grid, 4 * HOUR_MS, load=2, hours=5)
    assert (now.jobs, now.wait_ms, now.used) == (4, 0, 0.4)
    # Two come at a time: one of them waits for half an hour.
    assert (then.jobs, then.wait_ms, then.used) == (8, HOUR_MS // 4, 0.8)
    assert outlooks(grid, 4 * HOUR_MS, load=0, hours=5)[1].jobs == 0
    assert outlooks(grid, 4 * HOUR_MS, again=False, hours=5)[0].jobs == 0
    assert outlooks(grid, 4 * HOUR_MS, load=1.5, hours=5)[1].jobs == 6


def test_jobs_that_take_less_than_they_may_are_a_second_play() -> None:
    """When enough jobs have ended, it is played with the part of their limits that they took, too."""
    grid = grid_of({"north": 4})
    for number in range(12):
        at_ms = number * MINUTE_MS
        hand_in(grid, at_ms, request(4, 1))
        record = grid.registry.records[number + 1]
        grid.handle(at_ms + 15_000, FromLiveSite(0, Ended(record.job_id, record.attempt, at_ms + 15_000, "finished")))
    hand_in(grid, HOUR_MS, request(4), request(4))
    answer = grid.what_if(HOUR_MS, WhatIf(again=False, drain=(), hours=2))()
    assert [play.length for play in answer.plays] == [1.0, 0.25]
    assert [play.now.wait_ms for play in answer.plays] == [HOUR_MS, HOUR_MS // 4]
    assert answer.sure == "both simulations yield the same waits"
    assert answer.assumed[0] == "no other jobs arrive"


def test_a_link_that_is_cut_joins_no_job() -> None:
    """A job whose parts talk does not start on two sites without the link; a link that there is not is refused."""
    grid = grid_of({"north": 4, "south": 4}, mode="multi-site", network=linked())
    talks = Traffic(pattern="all-to-all", fraction=0.1, message_bytes=1000)
    hand_in(grid, 0, request(4), request(4), msgspec.structs.replace(request(6), traffic=talks))
    now, then = outlooks(grid, 0, cut=(("north", "south"),), again=False, hours=2)
    assert (now.started, then.started) == (1, 0)
    with pytest.raises(InputError, match="there is no node 'east'; there are north, south"):
        grid.what_if(0, WhatIf(cut=(("north", "east"),)))()


@pytest.mark.parametrize(
    ("options", "asked", "problem"),
    [
        ({"control": "limited"}, {}, "under control limited sites decide what starts when"),
        ({}, {"drain": ("east",)}, "drain: there is no site 'east'; the grid has north, south"),
        ({}, {"nodes": {"north": 0, "south": 0}}, "nodes: no site would have any"),
        ({}, {"nodes": {"north": 10**9}}, "nodes: the sites would have 1,000,000,004 together; at most 10,000,000"),
        ({}, {"policy": OtherPolicy(mode="local")}, "policy: mode is 'local', where there is no grid"),
        ({}, {"policy": OtherPolicy(lower_bound=2**63)}, "policy: lower_bound: is 9223372036854775808; nodes, from 0"),
        ({}, {"cut": (("north", "south"),)}, "cut: this grid has no model of the links"),
        (
            {"network": "linked"},
            {"nodes": {"west": 4}},
            "nodes: 'west' would be a new site; the model of this grid's links",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(options: dict[str, Any], asked: dict[str, Any], problem: str) -> None:
    """What a grid cannot be is refused with what would be right."""
    if "network" in options:
        options = {"network": linked()}
    with pytest.raises(InputError) as told:
        grid_of({"north": 4, "south": 4}, **options).what_if(0, WhatIf(**asked))()
    assert problem in str(told.value)


@settings(max_examples=60)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=15),
    backfill=st.sampled_from(["easy", "none", "conservative"]),
    mode=st.sampled_from(["sharing", "multi-site", "adaptive"]),
    others=st.integers(0, 3),
)
def test_the_grid_as_it_is_starts_jobs_when_its_plan_says(
    jobs: list[tuple[int, int, int]], backfill: str, mode: str, others: int
) -> None:
    """Where no more jobs come, the play of the grid as it is has each job wait as long as the grid's own plan says."""
    grid = grid_of({"north": 5, "south": 3}, backfill=backfill, mode=mode)
    grid.handle(0, FromLiveSite(1, SiteChanged(others, 3 - others)))
    now_ms = 0
    for nodes, minutes, later in jobs:
        now_ms += later * 1000
        hand_in(grid, now_ms, request(nodes, minutes))
    plan = {job.job_id: job.start_ms - now_ms for job in grid.planner(now_ms, 100)() if job.start_ms is not None}
    now, then = outlooks(grid, now_ms, again=False, hours=700)
    assert now == then
    assert now.started == len(plan)
    if now.started == now.jobs - now.never:
        assert now.wait_ms == sum(plan.values()) // max(1, len(plan))
        assert now.longest_ms == max(plan.values(), default=0)
