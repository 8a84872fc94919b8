"""The plan of a sweep: every combination of the varied values with every seed, checked before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import OptionError, ScenarioError
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.overrides import Overrides
from gridweave.scenarios.scenario.problems import Problem
from gridweave.scenarios.scenario.reader import read_draft
from gridweave.scenarios.scenario.structs import Scenario
from gridweave.scenarios.sweep.identity import InputFile, code_stamp, resolve_files, run_key, workload_key
from gridweave.scenarios.sweep.varying import (
    MAX_RUNS,
    SEED_KEY,
    Axis,
    Seeds,
    Vary,
    derive_seeds,
    read_axes,
    read_seeds,
    toml_text,
)

Progress = Callable[[int, int, str], None]
"""How much is done, how much there is, and what is going on."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep.

    Attributes
    ----------
    number : int
        Its place in the plan, from 0.
    combination : int
        The place of its values in `Plan.combinations`.
    seed : int
    scenario : Scenario
        With all values and the seed in it, and with absolute paths.
    files : tuple of InputFile
        What it reads.
    key : str
        Names it and its result: the same key, the same result.
    """

    number: int
    combination: int
    seed: int
    scenario: Scenario
    files: tuple[InputFile, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs of a sweep.

    Attributes
    ----------
    name : str
        Of the scenario.
    axes : tuple of Axis
        What is varied.
    combinations : tuple of tuple of int
        For each combination, the place of its value on each axis; the last axis varies fastest.
    runs : tuple of PlannedRun
        Combination by combination, and in each seed by seed.
    seeds : tuple of int or None
        The seeds of every combination, where all have the same.
    shown : tuple of str
        The metrics that the scenario shows.
    """

    name: str
    axes: tuple[Axis, ...]
    combinations: tuple[tuple[int, ...], ...]
    runs: tuple[PlannedRun, ...]
    seeds: tuple[int, ...]
    shown: tuple[str, ...]

    def settings(self, combination: int) -> dict[str, Any]:
        """Return the values of a combination, by the names of the axes.

        Parameters
        ----------
        combination : int

        Returns
        -------
        dict
        """
        places = self.combinations[combination]
        return {axis.name: axis.values[place] for axis, place in zip(self.axes, places, strict=True)}

    def label(self, combination: int) -> str:
        """Return a combination for people, such as ``p=0.3, config=m128``.

        Parameters
        ----------
        combination : int

        Returns
        -------
        str
        """
        return _label(self.axes, self.combinations[combination]) or self.name

    def axis(self, over: str) -> Axis:
        """Return the axis that a plot is to be over.

        Parameters
        ----------
        over : str
            Its name or its key.

        Returns
        -------
        Axis

        Raises
        ------
        OptionError
            If there is none.
        """
        for axis in self.axes:
            if over in (axis.name, axis.key):
                return axis
        known = ", ".join(axis.name for axis in self.axes) or "none"
        raise OptionError("--over", f"{over!r} is not varied; varied are {known}")


def make_plan(
    source: str | Path | Scenario, vary: Vary = (), *, overrides: Overrides = (), seeds: Seeds = None
) -> Plan:
    """Plan a sweep, and check every combination as far as that goes without building its workload.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        As for `gridweave.scenarios.scenario.run.run_scenario`.
    vary : mapping or sequence of str, optional
        Lists of values by key, or texts ``key=v1,v2``. Keys are those of ``--set``; ``config`` stands for ``sites`` and
        names machine configurations, ``p`` stands for ``grid.overhead``.
    overrides : mapping or sequence of str, optional
        Changes that hold for every run.
    seeds : int or sequence of int, optional
        How many seeds to derive from the scenario's, or which to use; the scenario's own if left out.

    Returns
    -------
    Plan

    Raises
    ------
    ScenarioError
        With all that is wrong.
    InputError
        If there is no such scenario.

    Examples
    --------
    >>> plan = make_plan("two-sites", {"grid.overhead": [0, 0.3], "grid.mode": ["multi-site", "adaptive"]}, seeds=5)
    >>> len(plan.runs), plan.label(3)
    (20, 'grid.overhead=0.3, grid.mode=adaptive')
    """
    problems: list[str] = []
    axes = read_axes(vary, problems)
    seeds = read_seeds(seeds, problems)
    texts = _texts_of(overrides, problems)
    fixed = {text.partition("=")[0].strip() for text in texts}
    problems += [
        f"--vary {axis.name}: is also set (--set); leave one of the two out" for axis in axes if axis.key in fixed
    ]
    combinations = tuple(itertools.product(*(range(len(axis.values)) for axis in axes)))
    drafts = _Drafts(source, axes, texts)
    scenarios = [drafts.read(places) for places in combinations]
    problems += drafts.problems()
    if seeds is not None and not isinstance(seeds, int) and drafts.seed_is_set:
        problems.append(f"--set {SEED_KEY}: has no effect beside a list of seeds; leave one of the two out")
    count = seeds if isinstance(seeds, int) else len(seeds or (0,))
    if len(combinations) * count > MAX_RUNS:
        problems.append(f"--seeds: makes {len(combinations) * count:,} runs in all; at most {MAX_RUNS:,}")
    if problems:
        raise ScenarioError(problems)
    first, _ = scenarios[0]
    listed = _seeds_of(first, seeds)
    return Plan(
        name=first.header.name or "scenario",
        axes=axes,
        combinations=combinations,
        runs=tuple(_runs(scenarios, listed)),
        seeds=listed,
        shown=tuple(first.output.metrics),
    )


def check_workloads(plan: Plan, runs: Sequence[PlannedRun], progress: Progress | None = None) -> None:
    """Build each workload that these runs need, with one seed, to find what is wrong with it before any run.

    Parameters
    ----------
    plan : Plan
    runs : sequence of PlannedRun
        Those that are still to be run.
    progress : callable, optional

    Raises
    ------
    ScenarioError
        With all that is wrong.
    """
    first_of = {run.combination: run for run in reversed(runs)}
    groups: dict[str, list[PlannedRun]] = {}
    for run in sorted(first_of.values(), key=lambda run: run.number):
        groups.setdefault(workload_key(run.scenario, run.files), []).append(run)
    found: dict[str, list[int]] = {}
    for number, group in enumerate(groups.values()):
        if progress is not None:
            progress(number, len(groups), "Checking workloads")
        try:
            build_scenario(group[0].scenario)
        except ScenarioError as error:
            for problem in error.problems:
                found.setdefault(str(problem), []).extend(run.combination for run in group)
    if found:
        raise ScenarioError(_located(text, plan.axes, plan.combinations, set(bad)) for text, bad in found.items())


class _Drafts:
    """The scenario of each combination, and what is wrong with them, each thing once."""

    def __init__(self, source: str | Path | Scenario, axes: tuple[Axis, ...], texts: list[str]) -> None:
        self.source, self.axes, self.texts = source, axes, texts
        self.seed_is_set = any(text.partition("=")[0].strip() == SEED_KEY for text in texts)
        self._read: list[tuple[int, ...]] = []
        self._found: dict[Problem, list[int]] = {}

    def read(self, places: tuple[int, ...]) -> tuple[Scenario, tuple[InputFile, ...]]:
        chosen = sorted(zip(self.axes, places, strict=True), key=lambda pair: pair[0].key != "sites")  # sites go first
        changes = [*self.texts, *(f"{axis.key}={axis.texts[place]}" for axis, place in chosen)]
        draft = read_draft(self.source, changes)
        for problem in draft.report.problems:
            self._found.setdefault(problem, []).append(len(self._read))
        self._read.append(places)
        if draft.report.problems:
            return draft.scenario, ()
        return resolve_files(draft.scenario, draft.folder)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong: first the file, by its lines, then what was typed."""
        order = sorted(self._found, key=lambda problem: (problem.source == "--set", problem.line or 0))
        for problem in order:
            text = str(problem)
            for axis in self.axes:
                if problem.source == "--set" and (
                    problem.field == axis.key or problem.field.startswith(f"{axis.key}.")
                ):
                    text = f"--vary {axis.name}{problem.field.removeprefix(axis.key)}: {problem.text}"
            yield _located(text, self.axes, self._read, set(self._found[problem]))


def _located(text: str, axes: tuple[Axis, ...], combinations: Sequence[tuple[int, ...]], bad: set[int]) -> str:
    """Say in which combinations something is wrong: the values that tell them from the others, or else the first."""
    if len(bad) == len(combinations):
        return text
    wrong = [combinations[number] for number in sorted(bad)]
    seen = [sorted({places[axis] for places in wrong}) for axis in range(len(axes))]
    size = 1
    for places in seen:
        size *= len(places)
    if size == len(wrong):
        told = [
            f"{axis.name}={','.join(axis.labels[place] for place in places)}"
            for axis, places in zip(axes, seen, strict=True)
            if len(places) < len(axis.values)
        ]
        return f"{text} (with {', '.join(told)})"
    more = f", and in {len(wrong) - 1} more of the {len(combinations)} combinations" if len(wrong) > 1 else ""
    return f"{text} (with {_label(axes, wrong[0])}{more})"


def _label(axes: tuple[Axis, ...], places: tuple[int, ...]) -> str:
    return ", ".join(f"{axis.name}={axis.labels[place]}" for axis, place in zip(axes, places, strict=True))


def _texts_of(overrides: Overrides, problems: list[str]) -> list[str]:
    """Return changes as texts, so that they and what is varied are one list."""
    if not isinstance(overrides, Mapping):
        return list(overrides)
    texts = []
    for key, value in overrides.items():
        try:
            texts.append(f"{key}={toml_text(value)}")
        except TypeError as error:
            problems.append(f"--set {key}: {error}, which no scenario file can hold")
    return texts


def _seeds_of(scenario: Scenario, seeds: Seeds) -> tuple[int, ...]:
    if seeds is None:
        return (scenario.header.seed,)
    return derive_seeds(scenario.header.seed, seeds) if isinstance(seeds, int) else tuple(seeds)


def _runs(scenarios: Sequence[tuple[Scenario, tuple[InputFile, ...]]], seeds: tuple[int, ...]) -> Iterator[PlannedRun]:
    stamp = code_stamp()
    number = 0
    for combination, (scenario, files) in enumerate(scenarios):
        for seed in seeds:
            header = msgspec.structs.replace(scenario.header, seed=seed)
            seeded = msgspec.structs.replace(scenario, header=header)
            yield PlannedRun(number, combination, seed, seeded, files, run_key(seeded, files, stamp))
            number += 1
