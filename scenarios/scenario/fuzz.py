"""Search for violations by running a scenario in many simulated worlds, each with random networks and faults.

Each run has its own seed, and the first run uses the search's seed, so any run can be reproduced by a one-run search
with that run's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gridweave.errors import GridweaveError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable, random_changes
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.scenarios.world.connections import Faults, Network, check_reach, node_of_grid
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.scenarios.world.traffic import merged
from gridweave.site.disciplines.entry import Policy
from gridweave.site.users.owner import OwnerPolicy

JOBS = 300
"""Jobs per run: enough for queues, splits and faults to coincide, but simulated in a fraction of a second."""

MAX_SEED = 2**63 - 1

_LONGEST_MS = 300_000.0
"""Maximum duration of a fault. Longer faults reveal nothing new, and each second of a fault costs one packet."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WorldInputs:
    """The inputs that all runs share; each run simulates ``jobs`` consecutive jobs of the workload.

    The grid's messages cross the links to and from ``grid_node``, a node of the network.
    """

    workload: Workload
    home: IntArray
    nodes: tuple[int, ...]
    policy: GridPolicy
    site_policies: tuple[Policy, ...]
    jobs: int = JOBS
    net: GridNet | None = None
    grid_node: int | None = None


def world_of(built: Built, *, jobs: int = JOBS) -> WorldInputs:
    """Return the inputs of the simulated world for a scenario, with ``jobs`` jobs per run."""
    if jobs < 1:
        raise OptionError("jobs", f"is {jobs}; expected at least 1")
    grid_node = None
    if built.net is not None and built.policy.mode != "local":
        grid_node = node_of_grid(built.net, built.scenario.grid.at)
        check_reach(built.net, grid_node)
    return WorldInputs(
        workload=built.workload,
        home=built.home,
        nodes=tuple(built.nodes.tolist()),
        policy=built.policy,
        site_policies=built.site_policies,
        jobs=jobs,
        net=None if grid_node is None else built.net,
        grid_node=grid_node,
    )


class LinkFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Random failures that multiply links' bandwidth by ``factor``, in addition to the scenario's link changes."""

    mean_up_ms: float
    mean_down_ms: float
    factor: float


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The random conditions of a run.

    ``first`` is the index of the run's first job, and ``to_grid`` the fraction of jobs submitted to the grid.
    """

    first: int
    network: Network
    faults: Faults
    owners: tuple[OwnerPolicy, ...]
    to_grid: float
    links: LinkFaults | None = None


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Counts from a run without a violation, or sums of these counts over several runs.

    ``lost`` counts lost messages, ``restarts`` jobs restarted after a crash, ``link_changes`` times of link changes.
    """

    runs: int = 0
    jobs: int = 0
    multi_site: int = 0
    messages: int = 0
    lost: int = 0
    crashes: int = 0
    cuts: int = 0
    restarts: int = 0
    link_changes: int = 0

    def __add__(self, other: Tried) -> Tried:
        return Tried(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A violation in a run; a one-run search with this seed reproduces the violation."""

    seed: int
    run: int
    problem: str
    conditions: Conditions


class FuzzReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search: counts from the runs without a violation, and the violation, if any."""

    seed: int
    tried: Tried
    violation: Violation | None = None


def seed_of(seed: int, run: int) -> int:
    """Return the seed of a run; runs are numbered from 0, and run 0 has the search's seed.

    Examples
    --------
    >>> seed_of(7, 0), seed_of(seed_of(7, 3), 0) == seed_of(7, 3)
    (7, True)
    """
    return seed if run == 0 else int(np.random.SeedSequence([seed, run]).generate_state(1)[0])


def fuzz(inputs: WorldInputs, runs: int, seed: int, *, progress: Progress | None = None) -> FuzzReport:
    """Search for a violation in many simulated worlds; stop at the first violation."""
    if runs < 1:
        raise OptionError("runs", f"is {runs}; expected at least 1")
    if not 0 <= seed <= MAX_SEED:
        raise OptionError("seed", f"is {seed}; expected an integer from 0 to {MAX_SEED}")
    tried = Tried()
    for run in range(runs):
        rng = np.random.default_rng(seed_of(seed, run))
        conditions = draw_conditions(inputs, rng)
        try:
            result = run_world(inputs, conditions, rng)
        except GridweaveError:
            raise
        except Exception as error:  # a failed assertion, or any other exception caused by a bug in gridweave
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            violation = Violation(seed=seed_of(seed, run), run=run, problem=f"{kind}{error}", conditions=conditions)
            return FuzzReport(seed=seed, tried=tried, violation=violation)
        tried += _tried(result)
        if progress is not None:
            progress(run + 1, runs, "Searching for a violation")
    return FuzzReport(seed=seed, tried=tried)


def draw_conditions(inputs: WorldInputs, rng: np.random.Generator) -> Conditions:
    """Draw the conditions of a run, from no faults at all to every kind of fault at once."""
    first = int(rng.integers(max(1, len(inputs.workload) - inputs.jobs + 1)))
    submit_ms = inputs.workload.submit_ms[first : first + inputs.jobs]
    span_ms = float(submit_ms[-1] - submit_ms[0]) if len(submit_ms) else 0.0
    network = Network(
        latency_ms=int(rng.choice((0, 5, 100, 2000))),
        jitter_ms=int(rng.choice((0, 0, 50, 1000))),
        loss=float(rng.choice((0.0, 0.0, 0.1, 0.4))),
        duplicate=float(rng.choice((0.0, 0.0, 0.2))),
    )
    faults = Faults(
        crash_every_ms=float(rng.choice((0.0, 0.1, 0.4, 1.0))) * span_ms,
        crash_lasts_ms=min(_LONGEST_MS, float(rng.choice((1e-5, 0.01, 0.1))) * span_ms),
        cut_every_ms=float(rng.choice((0.0, 0.1, 0.4, 1.0))) * span_ms,
        cut_lasts_ms=min(_LONGEST_MS, float(rng.choice((1e-5, 0.01, 0.1))) * span_ms),
    )
    owners = tuple(_draw_owners(inputs.nodes, rng))
    to_grid = float(rng.choice((1.0, 1.0, 0.5, 0.9)))
    links = _draw_links(span_ms, rng) if inputs.net is not None else None
    return Conditions(first=first, network=network, faults=faults, owners=owners, to_grid=to_grid, links=links)


def _draw_links(span_ms: float, rng: np.random.Generator) -> LinkFaults | None:
    """Draw how links fail, or return None if links do not fail."""
    faults = LinkFaults(
        mean_up_ms=float(rng.choice((1.0, 5.0))) * span_ms,
        mean_down_ms=min(_LONGEST_MS, float(rng.choice((1e-4, 0.01, 0.1))) * span_ms),
        factor=float(rng.choice((0.0, 0.0, 0.05))),
    )
    fail = bool(rng.random() < 0.7)
    return faults if fail and faults.mean_up_ms > 0 and faults.mean_down_ms > 0 else None


def _with_failures(net: GridNet, links: LinkFaults, submit_ms: IntArray, rng: np.random.Generator) -> GridNet:
    """Add random failures of cables to a network, from the first submission to the last."""
    first_ms = int(submit_ms[0])
    changes = random_changes(
        net.model.topology,
        mean_up_ms=links.mean_up_ms,
        mean_down_ms=links.mean_down_ms,
        until_ms=int(submit_ms[-1]) - first_ms,
        rng=rng,
        factor=links.factor,
    )
    later = [replace(change, at_ms=change.at_ms + first_ms) for change in changes]
    timetable = Timetable.of(net.model.topology, later)
    return replace(net, timetable=timetable if net.timetable is None else merged(net.timetable, timetable))


def _draw_owners(nodes: tuple[int, ...], rng: np.random.Generator) -> Iterator[OwnerPolicy]:
    """Draw the share that each owner grants the grid: at least one node of every site."""
    some_keep = bool(rng.random() < 0.4)
    for count in nodes:
        share = float(rng.choice((1.0, 0.75, 0.5))) if some_keep else 1.0
        first = bool(rng.random() < 0.5) and some_keep
        yield OwnerPolicy(grid_share=max(share, 1 / count), own_users_first=first)


def run_world(inputs: WorldInputs, conditions: Conditions, rng: np.random.Generator) -> SimulationResult:
    """Simulate one world with all checks; an AssertionError means a violation."""
    rows = np.arange(conditions.first, min(len(inputs.workload), conditions.first + inputs.jobs))
    to_grid = rng.random(len(rows)) < conditions.to_grid
    net = inputs.net
    if net is not None and conditions.links is not None:
        net = _with_failures(net, conditions.links, inputs.workload.submit_ms[rows], rng)
    return simulate_world(
        inputs.workload.take(rows),
        inputs.nodes,
        inputs.policy,
        site_policies=inputs.site_policies,
        owners=conditions.owners,
        home=inputs.home[rows],
        to_grid=to_grid if inputs.policy.mode != "local" else None,
        network=conditions.network,
        faults=conditions.faults,
        rng=rng,
        net=net,
        grid_node=inputs.grid_node,
        check=True,
    )


def _tried(result: SimulationResult) -> Tried:
    use = result.world
    assert use is not None, "a run in the world"
    split = int((result.n_fragments > 1).sum())
    return Tried(runs=1, jobs=len(result.workload), multi_site=split, **msgspec.structs.asdict(use))
