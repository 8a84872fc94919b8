"""Jobs mapped to machines that differ: the kernels against a slow reference, and what no mapping may break."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, Mapped, machine_arrays, map_to
from gridweave.site.disciplines.heterogeneous.optimum import best_mapping
from gridweave.site.kernels.state import NEVER_MS
from reference import heterogeneous as reference


class Case(NamedTuple):
    """Jobs by kinds, machines by classes."""

    classes: list[int]
    clusters: list[list[int]]
    teams: list[tuple[int, int]]
    ready: list[int]
    kind: list[int]
    alone: np.ndarray
    team: np.ndarray
    trouble: list[int]

    def mapped(self, algorithm: str, profit: str = "end") -> Mapped:
        """Return what the kernels make of it."""
        machines = machine_arrays(self.classes, self.clusters, self.teams)
        rng = np.random.default_rng(5) if algorithm == "gsa" else None
        options = {"algorithm": algorithm, "profit": profit, "rng": rng, "trouble": self.trouble}
        return map_to(machines, self.ready, self.kind, self.alone, self.team, **options)

    @property
    def plain(self) -> tuple[reference.Times, reference.Times, reference.Teams]:
        """The same job by job and machine by machine."""
        alone = [[self.alone[kind][c] for c in self.classes] for kind in self.kind]
        team = [list(self.team[kind]) for kind in self.kind]
        none = [[[None if time == NEVER_MS else int(time) for time in row] for row in rows] for rows in (alone, team)]
        return none[0], none[1], [(self.clusters[cluster], width) for cluster, width in self.teams]


def random_case(rng: np.random.Generator, most_jobs: int = 14, most_machines: int = 7) -> Case:
    """Draw few different times, so that ties are met, and jobs that cannot run everywhere, or nowhere."""
    n_machines, n_jobs, n_kinds = rng.integers(1, most_machines + 1), rng.integers(0, most_jobs + 1), rng.integers(1, 6)
    classes = np.unique(rng.integers(0, 4, n_machines), return_inverse=True)[1].tolist()
    clusters = [
        sorted(rng.choice(n_machines, rng.integers(1, n_machines + 1), replace=False).tolist())
        for _ in range(rng.integers(0, 4))
    ]
    teams = [(c, int(rng.integers(1, len(members) + 1))) for c, members in enumerate(clusters) for _ in range(2)]
    alone = rng.integers(1, 12, (n_kinds, max(classes) + 1))
    team = rng.integers(1, 6, (n_kinds, len(teams)))
    alone[rng.random(alone.shape) < 0.2] = NEVER_MS
    team[rng.random(team.shape) < 0.3] = NEVER_MS
    ready, kind = rng.integers(0, 6, n_machines).tolist(), rng.integers(0, n_kinds, n_jobs).tolist()
    trouble = rng.integers(0, 3, n_machines).tolist()
    return Case(classes, clusters, teams, ready, kind, alone, team, trouble)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "gsa"])
def test_the_kernels_map_as_the_reference_does(algorithm: str) -> None:
    """On random jobs and machines each job has the machines and the end that the rules of the page give it."""
    rng = np.random.default_rng(31)
    on_teams = 0
    for _ in range(300):
        case = random_case(rng)
        for profit in ("end", "length"):
            found = case.mapped(algorithm, profit)
            expected = reference.mapped(algorithm, case.ready, *case.plain, profit, case.trouble)
            rows = range(len(case.kind))
            assert [found.machines[row] for row in rows] == [expected.places.get(row, ()) for row in rows]
            assert [found.end_ms[row] for row in rows] == [expected.ends.get(row, NEVER_MS) for row in rows]
            assert found.ready_ms.tolist() == expected.ready
            on_teams += (found.team >= 0).sum()
    assert on_teams > 100


def test_no_machine_has_two_jobs_and_a_team_starts_when_all_its_machines_are_free() -> None:
    """Under every algorithm the jobs of a machine follow one another, the first after the machine is ready."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        case = random_case(rng)
        for algorithm in ALGORITHMS:
            found = case.mapped(algorithm)
            spans = [
                (machine, start, end)
                for start, end, machines in zip(found.start_ms, found.end_ms, found.machines, strict=True)
                for machine in machines
            ]
            free_at = dict(enumerate(case.ready))
            for machine, start, end in sorted(spans):
                assert free_at[machine] <= start < end
                free_at[machine] = end


def test_pjs_is_never_worse_than_sjs() -> None:
    """By the sum of execution and delay times PJS is at most SJS, SJS at most min-min and min-max; often less."""
    rng = np.random.default_rng(8)
    better = 0
    for _ in range(300):
        case = random_case(rng)
        totals = {name: case.mapped(name).total_ms(0) for name in ("pjs", "sjs", "min-min", "min-max")}
        assert totals["pjs"] <= totals["sjs"] == min(totals["min-min"], totals["min-max"])
        assert case.mapped("pjs", "length").total_ms(0) <= totals["sjs"]
        better += totals["pjs"] < totals["sjs"]
    assert better > 20


def test_no_algorithm_beats_the_optimum_and_pjs_often_finds_it() -> None:
    """Of a handful of jobs every mapping is tried: CP-SAT proves the same sum, and no algorithm has a smaller one."""
    rng = np.random.default_rng(13)
    hits = annealed = cases = 0
    while cases < 40:
        case = random_case(rng, most_jobs=4, most_machines=3)
        if any(not machines for machines in case.mapped("pjs").machines):
            continue
        best = reference.optimum(case.ready, *case.plain)
        totals = [case.mapped(name).total_ms(0) for name in ALGORITHMS]
        exact = best_mapping(
            machine_arrays(case.classes, case.clusters, case.teams), case.ready, case.kind, case.alone, case.team
        )
        assert exact.bound_ms == exact.total_ms == best
        assert min(totals) >= best
        found = dict(zip(ALGORITHMS, totals, strict=True))
        assert found["gsa"] <= found["pjs"]
        hits += found["pjs"] == best
        annealed += found["gsa"] == best
        cases += 1
    assert hits >= cases // 2
    assert annealed == cases


def test_an_algorithm_that_is_not_known_is_refused_in_one_line() -> None:
    """The error names what there is."""
    with pytest.raises(OptionError, match="'smart' is not known; one of olb, best-assignment, min-min"):
        map_to(machine_arrays([0]), [0], [0], [[1]], algorithm="smart")


def test_annealing_is_never_worse_than_pjs_and_says_the_same_again() -> None:
    """Of larger cases, with jobs that run nowhere: no machine has two jobs at once, each time is one of its job's."""
    better = 0
    for seed in range(30):
        case = random_case(np.random.default_rng(seed), most_jobs=30, most_machines=9)
        pjs, gsa, again = (case.mapped(name) for name in ("pjs", "gsa", "gsa"))
        assert gsa.total_ms(0) <= pjs.total_ms(0)
        assert (gsa.end_ms.tolist(), gsa.machines) == (again.end_ms.tolist(), again.machines)
        assert [bool(machines) for machines in gsa.machines] == [bool(machines) for machines in pjs.machines]
        better += gsa.total_ms(0) < pjs.total_ms(0)
        free = dict(enumerate(case.ready))
        for row in np.argsort(gsa.start_ms, kind="stable").tolist():
            for machine in gsa.machines[row]:
                assert gsa.start_ms[row] >= free[machine]
                free[machine] = int(gsa.end_ms[row])
        assert [free[machine] for machine in range(len(free))] == gsa.ready_ms.tolist()
    assert better > 10


def test_annealing_needs_a_generator() -> None:
    """Without one there is no telling what it would draw."""
    with pytest.raises(OptionError, match="rng: is missing; the algorithm gsa needs a seeded generator"):
        map_to(machine_arrays([0]), [0], [0], [[1]], algorithm="gsa")
