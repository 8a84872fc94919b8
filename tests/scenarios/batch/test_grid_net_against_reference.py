"""The grid queue with a network and the slow reference give the same starts and ends on the same nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.kernels.contention import add_job_flows, lone_rate
from gridweave.netmodel.kernels.state import PART, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import simulate
from reference.grid import Fragments
from reference.grid_net import MOST_FACTOR, Data, Flow, NetRules, simulate_with_net
from reference.model import Job
from support.builders import (
    PATTERN_NAMES,
    assert_alike,
    drawn_model,
    drawn_timetable,
    random_jobs,
    to_workload,
    with_columns,
)

MODES = ("sharing", "multi-site", "adaptive")


@dataclass(frozen=True, eq=False)
class Links:
    """The network of one period, in the form that the reference uses."""

    model: NetworkModel
    talk: dict[int, Communication]
    widths: dict[int, int]
    chosen: dict[object, Fragments | None] = field(default_factory=dict)

    @property
    def capacity(self) -> Sequence[float]:
        """Return the capacity of each link in bits per millisecond."""
        return [float(capacity) for capacity in self.model.arrays.capacity]

    def links(self, origin: int, target: int) -> tuple[int, ...] | None:
        """Return the links from one site to another."""
        reached = self.model.paths.latency_ms[origin, target] < np.inf
        return tuple(self.model.paths.between(origin, target)) if reached else None

    def _nodes(self, fragments: Fragments) -> dict[str, int]:
        return {self.model.topology.sites[site]: width for site, width in fragments}

    def factor(self, job: int, fragments: Fragments) -> float:
        """Return the factor by which a job grows."""
        return self.model.split_factor(self.talk[job], self._nodes(fragments))

    def choose(self, job: int, estimate: int, available: Sequence[int], delays: Sequence[float]) -> Fragments | None:
        """Return the placement with which a job ends first, from a cache if possible."""
        asked = job, estimate, tuple(available), tuple(delays)
        if asked not in self.chosen:
            self.chosen[asked] = self._search(*asked)
        return self.chosen[asked]

    def _search(
        self, job: int, estimate: int, available: tuple[int, ...], delays: tuple[float, ...]
    ) -> Fragments | None:
        width = self.widths[job]
        placement = self.model.choose_sites(
            self.talk[job], width, [max(0, nodes) for nodes in available], length_ms=estimate, delay_ms=delays
        )
        if placement is None:
            return None
        return tuple((self.model.topology.site_number(site), nodes) for site, nodes in placement.nodes.items())

    def transfer(self, origin: int, target: int, n_bytes: int) -> int | None:
        """Return the duration of a transfer."""
        sites = self.model.topology.sites
        return self.model.transfer_ms(sites[origin], sites[target], n_bytes)

    def alone(self, origin: int, target: int) -> float:
        """Return the rate of a single transfer on idle links."""
        return float(lone_rate(self.model.arrays, np.int64(origin), np.int64(target)))

    def flows(self, job: int, fragments: Fragments, factor: float) -> list[Flow]:
        """Return the flows of a job."""
        flows, parts = new_flows(200), np.array(list(fragments), PART)
        record = self.talk[job].records([int(parts["width"].sum())])[0]
        count = add_job_flows(self.model.arrays, flows, np.int64(0), record, parts, len(parts), factor)
        sites = len(self.model.topology.sites)
        return [
            Flow(*divmod(int(path), sites), float(demand))
            for path, demand in zip(flows.path[:count], flows.demand[:count], strict=True)
        ]


class SameDraws:
    """A generator that returns prepared draws."""

    def __init__(self, draws: npt.NDArray[np.float64]) -> None:
        self.draws = draws

    def random(self, count: int) -> npt.NDArray[np.float64]:
        """Return the draws, one per job."""
        assert count == len(self.draws)
        return self.draws


def agree(rng: np.random.Generator, jobs: list[Job], nodes: list[int], rules: dict[str, Any], change: bool) -> float:
    """Run both, compare them, and return the largest slowdown of a job."""
    model = drawn_model(rng, len(nodes))
    timetable = drawn_timetable(rng, model, 1 + max(job.submit for job in jobs)) if change and len(nodes) > 1 else None
    net = GridNet(
        model,
        timetable,
        contention=rules.get("contention", "none"),
        split=rules.get("split", "fewest"),
        data=rules.get("staging", "none"),
        max_split_factor=rules.get("max_split_factor", MOST_FACTOR),
    )
    workload = with_columns(rng, to_workload(jobs), len(nodes))
    columns = {name: values.tolist() for name, values in workload.columns.items()}
    ids = workload.job_id.tolist()
    talk = {
        job_id: Communication(
            fraction=columns["communication_fraction"][row],
            message_bytes=columns["message_bytes"][row],
            pattern=PATTERN_NAMES[columns["pattern"][row]],
        )
        for row, job_id in enumerate(ids)
    }
    widths = dict(zip(ids, workload.width.tolist(), strict=True))
    data = {
        job_id: Data(*(columns[name][row] for name in ("input_bytes", "input_site", "output_bytes", "output_site")))
        for row, job_id in enumerate(ids)
    }
    draws = rng.random(len(ids))
    asked = NetRules(nodes=tuple(nodes), data=data, draws=dict(zip(ids, draws.tolist(), strict=True)), **rules)
    want = simulate_with_net(jobs, asked, [(at_ms, Links(now, talk, widths)) for at_ms, now in net.periods()])
    options = {key: rules[key] for key in rules.keys() - {"contention", "split", "staging", "max_split_factor"}}
    chance: Any = SameDraws(draws)
    got = simulate(workload, nodes, GridPolicy(**options), rng=chance, net=net)
    assert_alike(got, want)
    ran = {job_id: row for row, job_id in enumerate(ids) if got.n_fragments[row]}
    assert {job_id: float(got.columns["factor"][row]) for job_id, row in ran.items()} == want.factor
    for job_id, row in ran.items():
        assert got.columns["slowdown"][row] == (want.end[job_id] - want.start[job_id]) / want.length[job_id]
    assert {job_id: int(got.columns["transfer_ms"][row]) for job_id, row in ran.items()} == want.moved
    assert (got.columns["transfer_ms"].max(initial=0) > 0) <= (net.data != "none")
    return float(got.columns["slowdown"].max(initial=1.0))


CASES: list[tuple[dict[str, Any], bool]] = [
    *(({"mode": mode, "split": split}, False) for mode in MODES[1:] for split in ("fewest", "earliest-end")),
    ({"mode": "multi-site", "lower_bound": 3, "max_fragments": ((6, 2), (12, 3)), "split": "earliest-end"}, False),
    ({"mode": "adaptive", "selection": "biggest-free", "order": "sjf"}, True),
    ({"mode": "adaptive", "head_reservation": "single-site", "contention": "dynamic"}, True),
    ({"mode": "multi-site", "head_reservation": "nothing", "contention": "static"}, False),
    ({"mode": "multi-site", "backfill": "none"}, True),
    *(({"mode": mode, "selection": "random", "contention": "dynamic"}, True) for mode in MODES[1:]),
    *(({"mode": mode, "selection": "random", "staging": "prefetch"}, True) for mode in ("sharing", "adaptive")),
    *(
        ({"mode": mode, "contention": contention, "split": split}, True)
        for mode in MODES[1:]
        for contention in ("none", "static", "dynamic")
        for split in ("fewest", "earliest-end")
    ),
    *(({"mode": mode, "staging": staging}, False) for mode in MODES for staging in ("blocking", "prefetch")),
    *(
        ({"mode": mode, "backfill": "conservative", "split": split, "contention": contention}, change)
        for mode in MODES[1:]
        for split in ("fewest", "earliest-end")
        for contention in ("none", "dynamic")
        for change in (False, True)
    ),
    ({"mode": "sharing", "backfill": "conservative", "selection": "random", "order": "sjf"}, False),
    (
        {"mode": "adaptive", "backfill": "conservative", "contention": "static", "max_fragments": ((6, 2), (12, 3))},
        True,
    ),
    *(
        ({"mode": mode, "staging": staging, "contention": contention}, change)
        for mode in MODES
        for staging in ("blocking", "prefetch")
        for contention in ("static", "dynamic")
        for change in (False, True)
    ),
    ({"mode": "adaptive", "staging": "prefetch", "split": "earliest-end", "contention": "dynamic"}, True),
    ({"mode": "multi-site", "staging": "blocking", "split": "earliest-end", "selection": "equal-util"}, True),
    *(
        ({"mode": mode, "split": split, "max_split_factor": bound, "backfill": backfill}, change)
        for mode in MODES[1:]
        for split, backfill in (("fewest", "easy"), ("earliest-end", "easy"), ("earliest-end", "conservative"))
        for bound, change in ((2.0, False), (1.3, True))
    ),
    ({"mode": "multi-site", "split": "earliest-end", "max_split_factor": 1.5, "staging": "blocking"}, True),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str((sorted(case.items()), at)) for case, at in CASES])
def test_random_workloads_give_the_same_schedule(number: int) -> None:
    """Up to 40 jobs on up to 7 sites, with any links."""
    rng = np.random.default_rng([11, number])
    rules, change = CASES[number]
    slowest = 1.0
    for _ in range(10):
        nodes = rng.integers(1, 7, int(rng.choice((1, 3, 5, 7)))).tolist()
        jobs = random_jobs(rng, int(rng.integers(2, 40)), sum(nodes) // 2 + 1, load=2.5, tick=1000)
        slowest = max(slowest, agree(rng, jobs, nodes, rules, change))
    contention = rules.get("contention", "none")
    assert slowest > 1.0 or contention == "none" or rules["mode"] == "adaptive"
    assert slowest == 1.0 or contention != "none"
