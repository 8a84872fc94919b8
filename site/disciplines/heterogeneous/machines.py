"""Clusters and job forms of a heterogeneous site, and the speeds of jobs on its machines.

A class of machines is a `NodeKind`, of which this discipline reads `CLASS_FIELDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from gridweave.site.disciplines.heterogeneous.kernels.greedy import MachineArrays
from gridweave.site.disciplines.heterogeneous.mapping import machine_arrays
from gridweave.site.job import MOST_SPEED, Job, JobForm
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.known_times import name_text
from gridweave.site.resources.chunks import NodeKind, fields_set

MOST_KINDS = 10_000
"""Maximum number of job kinds in each cache of a site; a full cache is emptied."""

CLASS_FIELDS = ("name", "count", "speed", "cores", "memory_mb", "labels")
"""The fields of `NodeKind` that this discipline reads."""

_MOST_ARRAYS = 100
"""Maximum number of team sets in the cache of `Inventory.arrays`; a full cache is emptied."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Machines on which a job can run in parallel; a job can also use a single machine of a cluster.

    Attributes
    ----------
    name : str
    nodes : str
        Numbers of the cluster's machines, e.g. ``0-7`` or ``0-3,8``.
    minimum : int, optional
        Number of machines that must be in service for a job to run on the cluster in parallel; None: all of them.
    """

    name: str
    nodes: str
    minimum: int | None = None


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A way to run the jobs of a class: the machines on which they can run, and their speed on these machines.

    Attributes
    ----------
    job_class : int or str, optional
        Class of the jobs; None: every class that has no form of its own.
    on : tuple of str
        Names or labels of suitable machine classes; empty: all classes.
    width : int or "all"
        Number of machines, all in one cluster; ``all``: all of the cluster's machines in service; 1: any machine.
    speed : float
        Speed on machines of speed 1, relative to the speed in the workload.
    cores, memory_mb : int
        Cores and memory that each machine must have.
    """

    job_class: int | str | None = None
    on: tuple[str, ...] = ()
    width: int | Literal["all"] = 1
    speed: Annotated[float, Meta(description="Times as fast as in the workload, on machines of speed 1.")] = 1.0
    cores: int = 1
    memory_mb: int = 0


Team = tuple[int, int]
"""A cluster's number, and the number of the cluster's machines that form the team."""


_FormsKey = tuple[str | None, int, tuple[JobForm, ...], bool]
"""The fields of a job that determine its speeds: its class if the class has forms, width, own forms, and in_step."""


class Speeds(msgspec.Struct, frozen=True):
    """A job's rate on each machine class (0 if it cannot run on the class), and on each team on which it can run.

    Rates are in units of `gridweave.site.kernels.work.RATE_ONE`.
    """

    alone: tuple[int, ...]
    teams: dict[Team, int]


class Inventory:
    """A site's machines and clusters, which machines are in service, and how fast jobs run on them.

    Parameters
    ----------
    classes : sequence of NodeKind
    clusters : sequence of Cluster
    forms : sequence of Form
    out_of_service : str
        Numbers of the machines that are out of service, e.g. ``3,17-20``.
    """

    def __init__(
        self, classes: Sequence[NodeKind], clusters: Sequence[Cluster], forms: Sequence[Form], out_of_service: str
    ) -> None:
        self.classes, self.clusters, self._forms = tuple(classes), tuple(clusters), tuple(forms)
        self.class_of = np.repeat(np.arange(len(classes)), [machine_class.count for machine_class in classes]).astype(
            np.int64
        )
        self.out = frozenset(numbers_of(out_of_service))
        self._all_members = [numbers_of(cluster.nodes) for cluster in clusters]
        self._members = [[node for node in nodes if node not in self.out] for nodes in self._all_members]
        self.free_mb = {node: self.classes[kind].memory_mb for node, kind in enumerate(self.class_of.tolist())}
        """Memory of each machine; None: unlimited."""
        self.is_in_service = ~np.isin(np.arange(len(self.class_of)), sorted(self.out))
        self._classes_in_service: list[int] = np.unique(self.class_of[self.is_in_service]).tolist()
        self._with_own = {name_text(form.job_class) for form in forms if form.job_class is not None}
        self._speeds: dict[_FormsKey, Speeds] = {}
        self._form_at: dict[tuple[_FormsKey, int, Team | None], tuple[int, Form | JobForm]] = {}
        self._arrays: dict[tuple[Team, ...], MachineArrays] = {}

    @property
    def nodes(self) -> int:
        """Number of machines, including machines that are out of service."""
        return len(self.class_of)

    def arrays(self, teams: tuple[Team, ...]) -> MachineArrays:
        """Return the machines as arrays for the kernels; machines that are out of service form an extra last class."""
        if teams not in self._arrays:
            if len(self._arrays) >= _MOST_ARRAYS:
                self._arrays.clear()
            classes = self.class_of.copy()
            classes[sorted(self.out)] = len(self.classes)
            arrays = machine_arrays(classes.tolist(), self._members, teams)
            missing = len(self.classes) + 2 - len(arrays.first)
            self._arrays[teams] = arrays._replace(first=np.append(arrays.first, np.full(missing, self.nodes)))
        return self._arrays[teams]

    def name_of(self, team: Team) -> str:
        """Return the name of a team, e.g. ``west x 8``."""
        cluster, width = team
        return f"{self.clusters[cluster].name} x {width}"

    def speeds_of(self, job: Job) -> Speeds:
        """Return a job's speeds on each class and team.

        A job uses its own forms, else the forms of its class, else the forms without a class. A job without any form
        runs on as many machines of a cluster as its width, or on a single machine if its width is 1.
        """
        key = self._key_of(job)
        if key not in self._speeds:
            if len(self._speeds) >= MOST_KINDS:
                self._speeds.clear()
            speeds = self.speeds_in(self._forms_of(job))
            self._speeds[key] = _in_step(speeds) if job.in_step else speeds
        return self._speeds[key]

    def _key_of(self, job: Job) -> _FormsKey:
        """Return the fields of a job that determine its speeds."""
        kind = class_of(job)
        return (kind if kind in self._with_own else None, job.width, job.forms, job.in_step)

    def why_nowhere(self, job: Job) -> str:
        """Return why a job cannot run on any machine or team at this site."""
        kind = f"forms of job class {class_of(job)}" if self._forms else f"jobs of width {job.width}"
        whose = "" if job.forms else f" ({kind})"
        valid_names = {name for machine_class in self.classes for name in (machine_class.name, *machine_class.labels)}
        unknown = sorted({name for form in job.forms for name in form.on} - valid_names)
        right = (
            f"; {unknown[0]!r} is neither a class nor a label; expected one of {', '.join(sorted(valid_names))}"
            if unknown
            else ""
        )
        return f"none of its forms fits a machine or a cluster in service here{whose}{right}"

    def _forms_of(self, job: Job) -> Sequence[Form | JobForm]:
        kind = class_of(job)
        of_class = [form for form in self._forms if name_text(form.job_class) == kind]
        of_any = [form for form in self._forms if form.job_class is None]
        return job.forms or of_class or of_any or [Form(width=job.width)]

    def form_at(self, job: Job, machine: int, team: Team | None) -> tuple[int, Form | JobForm]:
        """Return the form with which a job runs fastest on a machine or team, and its index; ties go to the first."""
        kind = int(self.class_of[machine])
        key = (self._key_of(job), -1 if team is not None else kind, team)
        if key not in self._form_at:
            if len(self._form_at) >= MOST_KINDS:
                self._form_at.clear()
            forms = self._forms_of(job)
            speeds = [self.speeds_in([form]) for form in forms]
            rates = [
                form_speeds.alone[kind] if team is None else form_speeds.teams.get(team, 0) for form_speeds in speeds
            ]
            number = rates.index(max(rates))
            self._form_at[key] = number, forms[number]
        return self._form_at[key]

    def speeds_in(self, forms: Sequence[Form | JobForm]) -> Speeds:
        """Return a job's speeds with these forms on each class and team; if several forms fit, the fastest counts."""
        alone, teams = [0] * (len(self.classes) + 1), dict[Team, int]()
        for form in forms:
            fits = [self._fits(form, machine_class) for machine_class in self.classes]
            if form.width == 1:
                for number in self._classes_in_service:
                    if fits[number]:
                        alone[number] = max(alone[number], _rate(form.speed * self.classes[number].speed))
                continue
            for cluster, members in enumerate(self._members):
                width = self._width(form, cluster)
                if width is not None and all(fits[self.class_of[node]] for node in members):
                    slowest = min(self.classes[self.class_of[node]].speed for node in members)
                    part = width / len(self._all_members[cluster]) if form.width == "all" else 1.0
                    rate = _rate(form.speed * slowest * part)
                    teams[cluster, width] = max(teams.get((cluster, width), 0), rate)
        return Speeds(tuple(alone), teams)

    def _fits(self, form: Form | JobForm, machine_class: NodeKind) -> bool:
        """Whether a machine class has a name or label that a form requests, and enough cores and memory."""
        named = not form.on or bool({machine_class.name, *machine_class.labels} & set(form.on))
        return (
            named
            and machine_class.cores >= form.cores
            and (machine_class.memory_mb is None or machine_class.memory_mb >= form.memory_mb)
        )

    def _width(self, form: Form | JobForm, cluster: int) -> int | None:
        """Return the number of machines that a form uses in a cluster; None if too few machines are in service."""
        here, least = len(self._members[cluster]), self.clusters[cluster].minimum
        width = here if form.width == "all" else form.width
        enough = here >= (len(self._all_members[cluster]) if least is None else least)
        return width if enough and 1 <= width <= here else None


def class_of(job: Job) -> str | None:
    """Return a job's class name, or its class number as text; None if the job has no class."""
    return job.class_name or name_text(job.job_class)


def numbers_of(text: str) -> list[int]:
    """Return the numbers in a text such as ``0-3,8``, ascending; an empty text has no numbers.

    Raises
    ------
    ValueError
        If any part of the text is neither a number nor a range.
    """
    return sorted({number for low, high in _ranges_of(text) for number in range(low, high + 1)})


def _ranges_of(text: str) -> list[tuple[int, int]]:
    """Return the first and the last number of each range in a text."""
    ranges = []
    for part in text.split(",") if text.strip() else ():
        low, dash, high = (chunk.strip() for chunk in part.partition("-"))
        if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(high) < int(low)):
            raise ValueError(f"{part.strip()!r} is neither a number nor a range such as 0-7")
        ranges.append((int(low), int(high if dash else low)))
    return ranges


def machine_problems(
    nodes: int, classes: Sequence[NodeKind], clusters: Sequence[Cluster], forms: Sequence[Form], out: str
) -> list[str]:
    """Return all problems with a site's machines, clusters and forms, one line per problem."""
    problems = [
        f"class {group.name!r} has {group.count} machines; expected at least 1" for group in classes if group.count < 1
    ]
    problems += [
        f"class {group.name!r} has the speed {group.speed:g}; expected above 0 and up to {MOST_SPEED:g}"
        for group in classes
        if not 0 < group.speed <= MOST_SPEED
    ]
    problems += [
        f"class {group.name!r} has {', '.join(unread)}, which this discipline does not use; leave it out"
        for group in classes
        if (unread := fields_set(group, ignore=CLASS_FIELDS))
    ]
    total = sum(group.count for group in classes)
    if total != nodes:
        problems.append(f"the classes have {total} machines and the site has {nodes} nodes; each machine is a node")
    for cluster in clusters:
        problems += _cluster_problems(cluster, nodes)
    problems += _range_problems("out_of_service", out, nodes)
    valid_names = {name for group in classes for name in (group.name, *group.labels)}
    for number, form in enumerate(forms, start=1):
        problems += _form_problems(number, form, valid_names, clusters)
    problems += _idle_forms(classes, clusters, forms) if not problems else []
    names = [group.name for group in classes] + [group.name for group in clusters]
    problems += ["a class or a cluster has no name; give each a unique name"] if "" in names else []
    problems += [
        f"{name!r} names several classes or clusters; give each a unique name"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    return problems


def _range_problems(what: str, text: str, nodes: int) -> list[str]:
    try:
        unknown = [max(low, nodes) for low, high in _ranges_of(text) if high >= nodes]
    except ValueError as error:
        return [f"{what}: {error}"]
    return [f"{what} names machine {min(unknown)}; the site has machines 0 to {nodes - 1}"] if unknown else []


def _cluster_problems(cluster: Cluster, nodes: int) -> list[str]:
    if problems := _range_problems(f"cluster {cluster.name!r}", cluster.nodes, nodes):
        return problems
    size = len(numbers_of(cluster.nodes))
    if size < 2:
        return [f"cluster {cluster.name!r} has {size} machines; expected at least 2"]
    if cluster.minimum is not None and not 2 <= cluster.minimum <= size:
        return [
            f"cluster {cluster.name!r} has the minimum {cluster.minimum}; expected 2 to {size}, its number of machines"
        ]
    return []


def _form_problems(number: int, form: Form, valid_names: set[str], clusters: Sequence[Cluster]) -> list[str]:
    what = _form_text(number, form)
    problems = [
        f"{what} runs on {name!r}, neither a class nor a label; expected one of {', '.join(sorted(valid_names))}"
        for name in form.on
        if name not in valid_names
    ]
    if form.width != "all" and form.width < 1:
        problems.append(f"{what} has the width {form.width}; expected at least 1, or 'all'")
    if not 0 < form.speed <= MOST_SPEED:
        problems.append(f"{what} has the speed {form.speed:g}; expected above 0 and up to {MOST_SPEED:g}")
    if form.width != 1 and not clusters:
        problems.append(f"{what} runs on several machines, but the site has no cluster")
    return problems


def _idle_forms(classes: Sequence[NodeKind], clusters: Sequence[Cluster], forms: Sequence[Form]) -> list[str]:
    """Return one problem per form that no machine or cluster could run even if all machines were in service."""
    site, problems = Inventory(classes, clusters, (), ""), []
    for number, form in enumerate(forms, start=1):
        speeds = site.speeds_in([form])
        if not any(speeds.alone) and not speeds.teams:
            where = "machine" if form.width == 1 else "cluster"
            problems.append(f"{_form_text(number, form)} runs on no {where} here: none has its width, cores and memory")
    return problems


def _form_text(number: int, form: Form) -> str:
    return f"form {number}" + ("" if form.job_class is None else f" (job class {form.job_class})")


def _in_step(speeds: Speeds) -> Speeds:
    """Convert speeds for a fragment of a multi-site job: rate 1 where the job reaches at least rate 1, else 0."""
    alone = tuple(RATE_ONE if rate >= RATE_ONE else 0 for rate in speeds.alone)
    return Speeds(alone, {team: RATE_ONE for team, rate in speeds.teams.items() if rate >= RATE_ONE})


def _rate(speed: float) -> int:
    """Convert a speed to a rate, which is at least 1."""
    return max(1, round(speed * RATE_ONE))
