"""Full control over sites with hyperthreaded nodes: which jobs start beside others, and which wait or are split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.control.queue import GridQueue
from gridweave.grid.control.sharing import AcceptedOffer, SharedOffers
from gridweave.grid.messages import FromSite, GridJobSubmitted, SiteShares, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Job, Resources
from gridweave.site.messages import JobFinished, Quoted, Refused, RequestQuote, ReserveNodes, RunsLate, Started, ToGrid
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.state import dump_state, read_state
from gridweave.site.users.owner import OwnerPolicy
from reference.full_sharing import Running, Waiting, taken
from support.builders import random_workload, workload_of

MINUTE = 60_000
ON_CPU = {"cpu": 0.6, "network": 0.3, "disk": 0.1}
ON_DISK = {"cpu": 0.2, "network": 0.1, "disk": 0.7}
SLOWDOWN = 1 + 0.4 * 0.2 + 0.1 + 0.1
NEEDS = Resources(**ON_DISK, memory=0.5)
RETRY_MS = 5_000


def play(workload: Workload, *nodes: int, shared: int = 1, **options: Any) -> SimulationResult:
    """Play jobs of the grid on sites, the first of which have hyperthreaded nodes, without delay; all is checked."""
    policies = [SharedNodes() if number < shared else SitePolicy() for number in range(len(nodes))]
    network = options.pop("network", None)
    policy = GridPolicy(**{"mode": "sharing", "control": "full"} | options)
    return simulate_world(workload, list(nodes), policy, site_policies=policies, network=network, check=True)


def job(submit: int, width: int, estimate: int, needs: dict[str, float], **more: float) -> dict[str, Any]:
    """Return a job that runs as long as it may, in minutes."""
    return {"submit": submit * MINUTE, "width": width, "estimate": estimate * MINUTE} | needs | more


def test_a_job_starts_beside_another_where_that_ends_before_waiting() -> None:
    """The second site is busy for 20 minutes: ten minutes times 1.28 beside a job end before any start alone."""
    jobs = [job(0, 4, 20, ON_CPU), job(0, 4, 20, ON_CPU), job(1, 4, 10, ON_DISK)]
    result = play(workload_of(jobs), 4, 4)
    assert (result.start_ms / MINUTE).tolist() == [0, 0, 1]
    assert result.fragments_of(2) == [(0, 4)]
    # Its partner has 2.8 minutes less of its work done in the 12.8 minutes that they shared.
    assert (result.end_ms / MINUTE).round(3).tolist() == [22.8, 20.0, 13.8]


def test_a_job_waits_where_that_ends_no_later() -> None:
    """The other site is free again after a minute: alone there the job ends first, by the rule of limited control."""
    jobs = [job(0, 4, 20, ON_CPU), job(0, 4, 2, ON_CPU), job(1, 4, 10, ON_DISK)]
    result = play(workload_of(jobs), 4, 4)
    assert (result.start_ms / MINUTE).tolist() == [0, 0, 2]
    assert result.fragments_of(2) == [(1, 4)]


@pytest.mark.parametrize(("overhead", "start", "fragments"), [(0.2, 1, [(1, 2), (2, 2)]), (0.3, 1, [(0, 4)])])
def test_a_split_is_made_only_if_it_ends_before_shared_nodes_would(
    overhead: float, start: int, fragments: list[tuple[int, int]]
) -> None:
    """Beside a job it takes 1.28 times as long: a split by 1.2 times is made, one by 1.3 times is not."""
    jobs = [job(0, 4, 60, ON_CPU), job(0, 2, 60, ON_CPU), job(0, 2, 60, ON_CPU), job(1, 4, 20, ON_DISK)]
    result = play(workload_of(jobs), 4, 4, 4, mode="adaptive", overhead=overhead, selection="biggest-free")
    assert result.start_ms[3] == start * MINUTE
    assert sorted(result.fragments_of(3)) == fragments


def test_who_is_behind_the_head_joins_nobody_whose_nodes_are_reserved_for_that() -> None:
    """The head waits for the nodes of a job, which a partner would slow; so it starts when it would have."""
    jobs = [job(0, 4, 20, ON_CPU), job(1, 4, 30, ON_CPU), job(2, 2, 15, ON_DISK)]
    result = play(workload_of(jobs), 4)
    assert (result.start_ms / MINUTE).tolist() == [0, 20, 20]


def test_who_does_not_say_what_it_needs_is_asked_for_by_nobody() -> None:
    """The sites are asked for no quote, and nothing is shared."""
    core = MetaCore([4, 4], GridPolicy(mode="sharing"), shared=[0])
    jobs = [Job(job_id=number, width=4, estimate_ms=20 * MINUTE) for number in (1, 2, 3)]
    commands = core.handle(0, *(GridJobSubmitted(each) for each in jobs))
    assert [type(command.request) for command in commands if isinstance(command, ToSite)] == [ReserveNodes] * 2


@pytest.mark.parametrize("backfill", ["easy", "conservative", "none"])
@pytest.mark.parametrize("latency_ms", [0, 40])
def test_jobs_share_nodes_with_any_backfilling_and_with_delay(backfill: str, latency_ms: int) -> None:
    """A pair shares nodes however the grid backfills, also where messages take their time."""
    jobs = [job(0, 4, 20, ON_CPU), job(0, 4, 20, ON_CPU), job(1, 4, 10, ON_DISK)]
    network = Network(latency_ms=latency_ms) if latency_ms else None
    result = play(workload_of(jobs), 4, 4, backfill=backfill, network=network)
    assert result.fragments_of(2) == [(0, 4)]
    assert result.start_ms[2] < 2 * MINUTE


def busy_core(**policy: Any) -> MetaCore:
    """Return a grid of two sites that are busy for an hour; jobs share the nodes of the first, as it has said."""
    core = MetaCore([4, 4], GridPolicy(**{"mode": "sharing"} | policy), retry_ms=RETRY_MS)
    core.handle(0, SiteShares(0))
    core.handle(0, *(GridJobSubmitted(Job(job_id=number, width=4, estimate_ms=60 * MINUTE)) for number in (1, 2)))
    core.handle(0, *(FromSite(site, Started(site + 1, 1, 0)) for site in (0, 1)))
    return core


def asked_for(commands: list[Any]) -> list[RequestQuote]:
    """Return the questions what a site offers."""
    return [one.request for one in commands if isinstance(one, ToSite) and isinstance(one.request, RequestQuote)]


def reserved(commands: list[Any]) -> list[ReserveNodes]:
    """Return the requests for nodes."""
    return [one.request for one in commands if isinstance(one, ToSite) and isinstance(one.request, ReserveNodes)]


WAITS = GridJobSubmitted(Job(job_id=3, width=4, estimate_ms=10 * MINUTE, resources=NEEDS))


def test_an_offer_that_is_refused_is_not_taken_again_before_the_site_changes() -> None:
    """A site that quotes what it then refuses, for whatever reason, does not keep the grid busy with that."""
    core = busy_core()
    (asked,) = asked_for(core.handle(1, WAITS))
    (request,) = reserved(core.handle(1, FromSite(0, Quoted(asked.quote_id, 0, None, slowdown=1.2))))
    assert (request.beside, request.length_ms, request.job) == (1.2, 10 * MINUTE, WAITS.job)
    commands = core.handle(2, FromSite(0, Refused(3, request.attempt, "no running job matches it now")))
    assert (asked_for(commands), reserved(commands)) == ([], [])
    core.check_invariants()
    commands = core.handle(3, FromSite(0, Started(1, 1, 3)))
    (again,) = asked_for(commands)
    assert reserved(core.handle(3, FromSite(0, Quoted(again.quote_id, 0, None, slowdown=1.2))))[0].attempt == 2


def test_an_offer_that_is_not_taken_is_explained() -> None:
    """Beside the job of an hour it would take longer than it has to wait for the other site; explain says both."""
    core = MetaCore([4, 4], GridPolicy(mode="sharing"), names=["north", "south"], shared=[0])
    lengths = {1: 60, 2: 2}
    jobs = [Job(job_id=number, width=4, estimate_ms=lengths[number] * MINUTE) for number in lengths]
    core.handle(0, *(GridJobSubmitted(each) for each in jobs))
    core.handle(0, *(FromSite(site, Started(site + 1, 1, 0)) for site in (0, 1)))
    (asked,) = asked_for(core.handle(1, WAITS))
    assert reserved(core.handle(1, FromSite(0, Quoted(asked.quote_id, 0, None, slowdown=1.3, beside=(1,))))) == []
    found = core.forecast(1, 3)
    assert found is not None
    assert found.start_ms == 2 * MINUTE
    north, south = found.sites
    assert north.reason.endswith("; or it could start now beside job 1, and take 1.30 times as long")
    assert "beside" not in south.reason


def test_a_quote_names_the_sites_that_could_offer_shared_nodes() -> None:
    """They know beside whom; for a job that says nothing none is named."""
    core = busy_core()
    for resources, offers in ((NEEDS, ("site 0",)), (None, ())):
        asked = Job(job_id=9, width=4, estimate_ms=MINUTE, resources=resources)
        assert core.quote(1, asked).offers == offers


def test_a_site_that_is_silent_keeps_no_job_from_its_split() -> None:
    """Until it is known what sites offer, a job is not split; after a while it is all the same."""
    core = busy_core(mode="adaptive", overhead=0.1)
    core.handle(0, FromSite(1, Started(2, 1, 0)))
    commands = core.handle(1, WAITS)
    assert len(asked_for(commands)) == 1
    assert core.next_wakeup_ms() == 1 + RETRY_MS
    assert asked_for(core.handle(1 + RETRY_MS)) == []


def test_an_offer_that_comes_late_is_taken() -> None:
    """The grid decides without a silent site only until it answers; it is not asked a second time meanwhile."""
    core = busy_core()
    (asked,) = asked_for(core.handle(1, WAITS))
    assert asked_for(core.handle(1 + RETRY_MS)) == []
    assert core.next_wakeup_ms() is None
    late = core.handle(2 + RETRY_MS, FromSite(0, Quoted(asked.quote_id, 0, None, slowdown=1.2)))
    assert [request.beside for request in reserved(late)] == [1.2]


def test_what_is_known_of_offers_outlives_a_restart() -> None:
    """The state has what sites were asked, and what they said."""
    core = busy_core()
    (asked,) = asked_for(core.handle(1, WAITS))
    again = MetaCore([4, 4], GridPolicy(mode="sharing"), retry_ms=RETRY_MS)
    again.restore(read_state(again, dump_state(core)))
    answer = FromSite(0, Quoted(asked.quote_id, 0, None, slowdown=1.2))
    assert reserved(again.handle(2, answer)) == reserved(core.handle(2, answer)) != []
    assert dump_state(again) == dump_state(core)


def contract(nodes: int) -> ContractCore:
    """Return a site with hyperthreaded nodes, on two of which a job of the grid works at the CPU."""
    site = ContractCore(nodes, SharedNodes())
    first = Job(job_id=1, width=2, estimate_ms=60 * MINUTE, resources=Resources(**ON_CPU, memory=0.5))
    site.handle(0, ReserveNodes(1, 1, 2, 60 * MINUTE, job=first))
    return site


def answers(commands: list[Any], kind: type) -> list[Any]:
    """Return what the grid is answered of a kind."""
    return [one.answer for one in commands if isinstance(one, ToGrid) and isinstance(one.answer, kind)]


@pytest.mark.parametrize(
    ("nodes", "beside", "needs", "reason"),
    [
        (2, SLOWDOWN, ON_DISK, ""),
        (2, 1.2, ON_DISK, "beside others it would take 1.28 times as long now, and not 1.20"),
        (2, SLOWDOWN, ON_DISK | {"memory": 0.9}, "no running job matches it now"),
        (3, None, ON_DISK, "it needs 2 nodes of its own now; 1 are left for it"),
        (4, None, ON_DISK, ""),
    ],
)
def test_a_site_starts_a_job_as_it_was_placed_or_refuses_it(
    nodes: int, beside: float | None, needs: dict[str, Any], reason: str
) -> None:
    """Whoever commits re-checks: what was to have its own nodes does not share any, and none is slowed by more."""
    site = contract(nodes)
    job = Job(job_id=3, width=2, estimate_ms=10 * MINUTE, resources=Resources(**{"memory": 0.5} | needs))
    commands = site.handle(1, ReserveNodes(3, 1, 2, 10 * MINUTE, job=job, beside=beside))
    assert [answer.reason for answer in answers(commands, Refused)] == [reason] * bool(reason)
    assert len(answers(commands, Started)) == (not reason)
    # The grid counts on when the two end, and hears that they are slowed.
    assert {answer.job_id for answer in answers(commands, RunsLate)} == ({1, 3} if beside and not reason else set())
    site.check_invariants()


def test_nodes_that_a_job_leaves_at_an_instant_are_there_for_the_next() -> None:
    """What ends is taken in before it is looked at what is left."""
    site = contract(2)
    job = Job(job_id=3, width=2, estimate_ms=10 * MINUTE, resources=Resources(**ON_CPU, memory=0.5))
    commands = site.handle(5, ReserveNodes(3, 1, 2, 10 * MINUTE, job=job), JobFinished(1))
    assert [(answer.job_id, answer.start_ms) for answer in answers(commands, Started)] == [(3, 5)]
    site.check_invariants()


# -- against the slow second writing


def checked_take(real: Any, seen: list[bool]) -> Any:
    """Return `SharedOffers.take`, which compares what it yields with the slow reference."""

    def take(self: SharedOffers, now_ms: int, queue: GridQueue) -> Iterator[AcceptedOffer]:
        known = {
            job.job_id: {site: offer.slowdown for site, offer in self._offers.get(job.job_id, {}).items()}
            for job in self._thought_of(queue)
        }
        waiting = [
            Waiting(each.job_id, each.width, each.estimate_ms, known[each.job_id])
            for each in queue.waiting
            if each.job_id in known and next(self._lacking(each), None) is None
        ]
        running = [Running(dict(each.fragments), each.end_ms) for each in queue.running]
        free = [queue.free(site) for site in range(len(queue.nodes))]
        ((head, kept),) = queue.kept_sites().items() if queue.n_waiting else [(0, set[int]())]
        expected = taken(waiting, free, running, (head, kept), now_ms)
        found = list(real(self, now_ms, queue))
        assert [(each.job.job_id, each.site) for each in found] == expected
        seen.extend(True for _ in found)
        yield from found

    return take


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), coarse=st.booleans(), mode=st.sampled_from(["sharing", "adaptive"]))
def test_random_jobs_share_as_the_slow_reference_has_it(seed: int, coarse: bool, mode: str) -> None:
    """Job by job, at every pass of the grid."""
    rng = np.random.default_rng(seed)
    workload, seen = random_workload(rng, 8, coarse=coarse), list[bool]()
    nodes = [8, int(rng.integers(2, 9)), int(rng.integers(2, 9))]
    with mock.patch.object(SharedOffers, "take", checked_take(SharedOffers.take, seen)):
        result = play(workload, *nodes, shared=2, mode=mode, overhead=0.2)
    assert result.ran.all()


def test_the_random_workloads_do_share() -> None:
    """The comparison with the slow reference sees offers that are taken."""
    seen = list[bool]()
    with mock.patch.object(SharedOffers, "take", checked_take(SharedOffers.take, seen)):
        for seed in range(6):
            play(random_workload(np.random.default_rng(seed), 8, coarse=False), 8, 4, mode="adaptive", overhead=0.2)
    assert len(seen) > 3


@pytest.mark.parametrize("seed", range(6))
def test_jobs_share_nodes_on_a_bad_network_too(seed: int) -> None:
    """Messages are delayed, lost and doubled, sites crash, and owners have users of their own: every job runs."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, 8, coarse=seed % 2 == 0)
    backfill = ("easy", "conservative", "none")[seed % 3]
    result = simulate_world(
        workload,
        [8, int(rng.integers(2, 9)), 6],
        GridPolicy(mode=("sharing", "adaptive")[seed % 2], overhead=0.2, backfill=backfill),
        site_policies=[SharedNodes(), SharedNodes(), SitePolicy()],
        owners=[OwnerPolicy(), OwnerPolicy(grid_share=0.8), OwnerPolicy(own_users_first=True)],
        to_grid=rng.random(len(workload)) < 0.8,
        network=Network(latency_ms=50, jitter_ms=100, loss=0.1, duplicate=0.1),
        faults=Faults(crash_every_ms=20e6, cut_every_ms=10e6),
        rng=np.random.default_rng(seed),
        check=True,
    )
    assert result.ran.sum() + len(result.refused) == len(workload)
