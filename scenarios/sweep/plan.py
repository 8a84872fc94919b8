"""The plan of a sweep: every combination of the varied values with every seed, checked before anything runs.

Keys and their values are given on the command line (``--vary key=v1,v2``) or in Python.
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.config.toml import FileProblem
from gridweave.scenarios.scenario.build import build_scenario, draws_at_random
from gridweave.scenarios.scenario.read import Overrides, read_draft
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.sweep.identity import InputFile, code_stamp, resolve_files, run_key, workload_key

ALIASES = {"config": "sites", "p": "grid.overhead"}
"""Short names for the machine configurations in Streit, Table 7.1, and for his overhead parameter."""

MAX_RUNS = 100_000
MAX_SEED = 2**63 - 1
SEED_KEY = "scenario.seed"

_OPEN, _CLOSE = "[{", "]}"

Vary = Mapping[str, Iterable[object]] | Sequence[str]
"""Lists of values by key, or texts ``key=v1,v2``."""

Seeds = int | Sequence[int] | None
"""Number of seeds to derive from the scenario's seed, or a list of seeds; None for only the scenario's seed."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A varied key: the name as typed, the full key, and the values, also as texts for ``--set``."""

    name: str
    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as texts to show to the user."""
        return tuple(value if isinstance(value, str) else toml_text(value) for value in self.values)

    @property
    def column(self) -> tuple[Any, ...]:
        """The values as a table column: numbers, booleans, or otherwise texts."""
        if self.is_numeric:
            return self.values if all(isinstance(v, int) for v in self.values) else tuple(map(float, self.values))
        return self.values if all(isinstance(value, bool) for value in self.values) else self.labels


def read_axes(vary: Vary, problems: list[str]) -> tuple[Axis, ...]:
    """Return the varied keys in the given order; report invalid keys and leave them out.

    Examples
    --------
    >>> [(axis.key, axis.values) for axis in read_axes(["p=0,0.3", "config=m128,m256"], [])]
    [('grid.overhead', (0, 0.3)), ('sites', ('m128', 'm256'))]
    """
    axes: list[Axis] = []
    pairs = _pairs_of(vary) if isinstance(vary, Mapping) else (_parsed(text, problems) for text in vary)
    for pair in pairs:
        if pair is None:
            continue
        name, values = pair
        n_before = len(problems)
        texts = tuple(_text_of(name, value, problems) for value in values)
        key = ALIASES.get(name, name)
        if not values:
            problems.append(f"--vary {name}: has no values; write {name}=a,b")
        if key == SEED_KEY:
            problems.append(f"--vary {name}: seeds are not varied this way; write --seeds 10, or --seeds 1,2,3")
        if any(axis.key == key for axis in axes):
            problems.append(f"--vary {name}: is varied twice; give all of its values at once")
        alike = [_text_of_number(value, text) for value, text in zip(values, texts, strict=True)]
        twice = next((text for place, text in enumerate(texts) if alike[place] in alike[:place]), None)
        if twice is not None:
            problems.append(f"--vary {name}: has the value {twice} twice")
        if len(problems) == n_before:
            axes.append(Axis(name, key, tuple(values), texts))
    # Check before the combinations are enumerated.
    if math.prod(len(axis.values) for axis in axes) > MAX_RUNS:
        problems.append(f"--vary: makes more than {MAX_RUNS:,} combinations; vary less at once")
        return ()
    return tuple(axes)


def read_seeds(seeds: Seeds, problems: list[str]) -> Seeds:
    """Return the seeds if they are valid; otherwise add a problem to ``problems`` and return None."""
    if seeds is None:
        return None
    if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_RUNS:
            problems.append(
                f"--seeds: is {seeds}; expected a number of seeds from 1 to {MAX_RUNS:,}, or a list such as 1,2,3"
            )
            return None
        return int(seeds)
    listed = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not listed:
        problems.append("--seeds: is empty; give a number of seeds, or a list such as 1,2,3")
        return None
    wrong = next((seed for seed in listed if not _is_seed(seed)), None)
    if wrong is not None:
        problems.append(f"--seeds: {wrong!r} is not a seed; a seed is a whole number from 0 to {MAX_SEED}")
        return None
    if len(set(listed)) < len(listed):
        problems.append("--seeds: has a seed twice; give each seed once")
        return None
    return tuple(int(seed) for seed in listed)


def _is_seed(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= MAX_SEED


def parse_seeds(text: str, problems: list[str]) -> Seeds:
    """Parse ``--seeds``: ``10`` means ten derived seeds; ``1,2,3`` or ``7,`` means these seeds."""
    words = [word.strip() for word in text.split(",")]
    is_list = len(words) > 1
    if is_list and not words[-1]:
        words.pop()
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) <= 19)]
    if wrong:
        problems.append(
            f"--seeds: {wrong[0]!r} is not a whole number; write 10 for ten seeds, 1,2,3 for these, 7, for one"
        )
        return None
    numbers = [int(word) for word in words]
    return read_seeds(numbers if is_list else numbers[0], problems)


def derive_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Derive seeds for independent repetitions; they have 53 bits, which every JSON and CSV reader preserves.

    A longer list starts with the same seeds, so a sweep extended from 10 to 20 seeds reuses its finished runs.

    Examples
    --------
    >>> derive_seeds(1, 3) == derive_seeds(1, 5)[:3]
    True
    """
    children = np.random.SeedSequence(seed).spawn(count)
    return tuple(int(child.generate_state(1, np.uint64)[0]) >> 11 for child in children)


def toml_text(value: object) -> str:
    """Format a plain value as TOML; raise TypeError if TOML cannot represent its type.

    Examples
    --------
    >>> toml_text({"north": 2, "south": [0.5, True, "x"]})
    '{"north" = 2, "south" = [0.5, true, "x"]}'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return f"{{{', '.join(f'{toml_text(key)} = {toml_text(inner)}' for key, inner in value.items())}}}"
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _pairs_of(vary: Mapping[str, Iterable[object]]) -> Iterable[tuple[str, list[object]]]:
    """Yield (key, list of values); a single text or number becomes a list with one value."""
    for name, values in vary.items():
        single = isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable)
        listed = [values] if single else list(values)
        yield str(name), [value.item() if isinstance(value, np.generic) else value for value in listed]


def _parsed(text: str, problems: list[str]) -> tuple[str, list[object]] | None:
    """Parse ``key=v1,v2``; values that are not valid TOML are taken as texts."""
    name, separator, written = (part.strip() for part in text.partition("="))
    if not separator or not name:
        problems.append(f"--vary {text}: is not key=v1,v2, such as grid.overhead=0,0.1,0.3")
        return None
    values: list[object] = []
    for part in _split(written) if written else []:
        try:
            values.append(tomllib.loads(f"value = {part}\n")["value"])
        except (ValueError, RecursionError):
            if not part or part[0] in "[{\"'" or "\n" in part:
                problems.append(f"--vary {name}: {part!r} is not a value; write it as in TOML, or as a bare word")
                return None
            values.append(part)
    return name, values


def _split(text: str) -> list[str]:
    """Split a text at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
            if letter == "," and depth <= 0:
                parts.append("")
                continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _text_of(name: str, value: object, problems: list[str]) -> str:
    try:
        return toml_text(value)
    except TypeError as error:
        problems.append(f"--vary {name}: {error}, which TOML cannot represent")
        return ""


def _text_of_number(value: object, text: str) -> str:
    """Return a value's text, with 1.0 written as 1, so that equal numbers have equal texts."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else text


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run; its scenario contains the values, the seed and absolute paths. Runs with equal keys have equal results."""

    number: int
    combination: int
    seed: int
    scenario: Scenario
    files: tuple[InputFile, ...]
    key: str


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The runs of a sweep, ordered by combination (the last axis varies fastest) and then by seed.

    A combination is a tuple of indices into the axes' values. Combinations without randomness are run only with the
    first seed. ``shown`` lists the metrics that the scenario shows.
    """

    name: str
    axes: tuple[Axis, ...]
    combinations: tuple[tuple[int, ...], ...]
    runs: tuple[PlannedRun, ...]
    seeds: tuple[int, ...]
    shown: tuple[str, ...]

    def settings(self, combination: int) -> dict[str, Any]:
        """Return a combination's values, by axis name."""
        indices = self.combinations[combination]
        return {axis.name: axis.values[place] for axis, place in zip(self.axes, indices, strict=True)}

    @property
    def without_chance(self) -> tuple[int, ...]:
        """The combinations without randomness, which are run only with the first of several seeds."""
        counts = Counter(run.combination for run in self.runs)
        return tuple(number for number, count in counts.items() if count < len(self.seeds))

    def label(self, combination: int) -> str:
        """Return a combination's label, such as ``p=0.3, config=m128``."""
        return _label(self.axes, self.combinations[combination]) or self.name

    def axis(self, over: str) -> Axis:
        """Return the axis with this name or key; raise OptionError if the key is not varied."""
        for axis in self.axes:
            if over in (axis.name, axis.key):
                return axis
        varied_keys = ", ".join(axis.name for axis in self.axes) or "none"
        raise OptionError("--over", f"{over!r} is not varied; the varied keys are {varied_keys}")


def make_plan(
    source: str | Path | Scenario, vary: Vary = (), *, overrides: Overrides = (), seeds: Seeds = None
) -> SweepPlan:
    """Plan a sweep, and check every combination without building workloads.

    For the parameters and the errors, see `gridweave.sweep`.

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
        f"--vary {axis.name}: is also set by --set; leave out one of the two" for axis in axes if axis.key in fixed
    ]
    combinations = tuple(itertools.product(*(range(len(axis.values)) for axis in axes)))
    drafts = _Drafts(source, axes, texts)
    scenarios = [drafts.read(indices) for indices in combinations]
    problems += drafts.problems()
    if seeds is not None and not isinstance(seeds, int) and drafts.seed_is_set:
        problems.append(f"--set {SEED_KEY}: has no effect with a list of seeds; leave out one of the two")
    count = seeds if isinstance(seeds, int) else len(seeds or (0,))
    if len(combinations) * count > MAX_RUNS:
        problems.append(f"--seeds: makes {len(combinations) * count:,} runs; expected at most {MAX_RUNS:,}")
    if problems:
        raise ScenarioError(problems)
    first, _ = scenarios[0]
    listed = _seeds_of(first, seeds)
    return SweepPlan(
        name=first.header.name or "scenario",
        axes=axes,
        combinations=combinations,
        runs=tuple(_runs(scenarios, listed)),
        seeds=listed,
        shown=tuple(first.output.metrics),
    )


def check_workloads(plan: SweepPlan, runs: Sequence[PlannedRun], progress: Progress | None = None) -> None:
    """Build each distinct workload of the combinations' first runs; raise ScenarioError with all their problems."""
    first_of = {run.combination: run for run in reversed(runs)}
    groups: dict[str, list[PlannedRun]] = {}
    for run in sorted(first_of.values(), key=lambda run: run.number):
        groups.setdefault(workload_key(run.scenario, run.files), []).append(run)
    combinations_by_problem: dict[str, list[int]] = {}
    for number, group in enumerate(groups.values()):
        if progress is not None:
            progress(number, len(groups), "Checking workloads")
        try:
            build_scenario(group[0].scenario)
        except ScenarioError as error:
            for problem in error.problems:
                combinations_by_problem.setdefault(str(problem), []).extend(run.combination for run in group)
    if combinations_by_problem:
        raise ScenarioError(
            _located(text, plan.axes, plan.combinations, set(bad)) for text, bad in combinations_by_problem.items()
        )


class _Drafts:
    """Reads each combination's scenario, and collects the distinct problems."""

    def __init__(self, source: str | Path | Scenario, axes: tuple[Axis, ...], texts: list[str]) -> None:
        self.source, self.axes, self.texts = source, axes, texts
        self.seed_is_set = any(text.partition("=")[0].strip() == SEED_KEY for text in texts)
        self._read: list[tuple[int, ...]] = []
        self._found: dict[FileProblem, list[int]] = {}

    def read(self, indices: tuple[int, ...]) -> tuple[Scenario, tuple[InputFile, ...]]:
        chosen = sorted(zip(self.axes, indices, strict=True), key=lambda pair: pair[0].key != "sites")  # sites go first
        changes = [*self.texts, *(f"{axis.key}={axis.texts[place]}" for axis, place in chosen)]
        draft = read_draft(self.source, changes)
        for problem in draft.report.problems:
            self._found.setdefault(problem, []).append(len(self._read))
        self._read.append(indices)
        if draft.report.problems:
            return draft.scenario, ()
        return resolve_files(draft.scenario, draft.folder)

    def problems(self) -> Iterator[str]:
        """Yield the problems: first problems in the file, by line, then problems of keys from the command line."""
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
    """Append to a problem the values that define its combinations or, if none do, the first combination."""
    if len(bad) == len(combinations):
        return text
    wrong = [combinations[number] for number in sorted(bad)]
    seen = [sorted({indices[axis] for indices in wrong}) for axis in range(len(axes))]
    size = 1
    for indices in seen:
        size *= len(indices)
    if size == len(wrong):
        parts = [
            f"{axis.name}={','.join(axis.labels[place] for place in indices)}"
            for axis, indices in zip(axes, seen, strict=True)
            if len(indices) < len(axis.values)
        ]
        return f"{text} (with {', '.join(parts)})"
    more = f", and in {len(wrong) - 1} more of the {len(combinations)} combinations" if len(wrong) > 1 else ""
    return f"{text} (with {_label(axes, wrong[0])}{more})"


def _label(axes: tuple[Axis, ...], indices: tuple[int, ...]) -> str:
    return ", ".join(f"{axis.name}={axis.labels[place]}" for axis, place in zip(axes, indices, strict=True))


def _texts_of(overrides: Overrides, problems: list[str]) -> list[str]:
    """Convert overrides to texts ``key=value``, the same form as varied values."""
    if not isinstance(overrides, Mapping):
        return list(overrides)
    texts = []
    for key, value in overrides.items():
        try:
            texts.append(f"{key}={toml_text(value)}")
        except TypeError as error:
            problems.append(f"--set {key}: {error}, which TOML cannot represent")
    return texts


def _seeds_of(scenario: Scenario, seeds: Seeds) -> tuple[int, ...]:
    if seeds is None:
        return (scenario.header.seed,)
    return derive_seeds(scenario.header.seed, seeds) if isinstance(seeds, int) else tuple(seeds)


def _runs(scenarios: Sequence[tuple[Scenario, tuple[InputFile, ...]]], seeds: tuple[int, ...]) -> Iterator[PlannedRun]:
    stamp = code_stamp()
    number = 0
    for combination, (scenario, files) in enumerate(scenarios):
        for seed in seeds if draws_at_random(scenario) else seeds[:1]:
            header = msgspec.structs.replace(scenario.header, seed=seed)
            seeded = msgspec.structs.replace(scenario, header=header)
            yield PlannedRun(number, combination, seed, seeded, files, run_key(seeded, files, stamp))
            number += 1
