"""The public functions `simulate`, `simulate_site` and `simulate_grid`: run a workload and return the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.scenarios.batch.one_site import Progress, check_driver, simulate_one_site
from gridweave.scenarios.batch.saving import Saving
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.site_events import NodeEvent, Request
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.dictionary import entry_of, policy_named
from gridweave.site.disciplines.entry import Policy, TakesKinds
from gridweave.site.policy import Limit, SitePolicy
from gridweave.site.resources.chunks import NodeKind

if TYPE_CHECKING:
    from gridweave.grid.policy import GridPolicy
    from gridweave.scenarios.batch.grid_chunks import GridSite
    from gridweave.scenarios.batch.grid_network import GridNet


class PolicyOptions(TypedDict, total=False):
    """The fields of a `gridweave.site.policy.SitePolicy`."""

    discipline: str
    order: str
    backfill: str
    choice: str
    slack: float
    aging_ms: float
    limits: tuple[Limit, ...]
    kinds: tuple[NodeKind, ...]
    placement: str


class SiteInputs(TypedDict, total=False):
    """The keyword arguments of `simulate_site`."""

    reservations: Sequence[Request]
    node_events: Sequence[NodeEvent]
    driver: str
    check: bool
    model: Any
    cores: npt.ArrayLike | None
    rows: npt.ArrayLike | None
    progress: Progress | None
    saving: Saving | None


class GridInputs(TypedDict, total=False):
    """The keyword arguments of `simulate_grid`."""

    home: npt.ArrayLike | None
    rng: np.random.Generator | None
    sensitivity: npt.ArrayLike | None
    net: GridNet | None


class SimulationInputs(SiteInputs, GridInputs, PolicyOptions, total=False):
    """The keyword arguments of `simulate`."""


def simulate(
    workload: Workload | str | Path,
    nodes: int | Sequence[int] | Sequence[Any] | None = None,
    policy: Policy | GridPolicy | TakesKinds | str | None = None,
    **inputs: Unpack[SimulationInputs],
) -> SimulationResult:
    """Simulate one site (`simulate_site`), or a grid of sites if the policy is a `GridPolicy` (`simulate_grid`).

    Parameters
    ----------
    workload : Workload, str or pathlib.Path
        Jobs, or the file or name of a trace.
        nodes : int, sequence of int, or sequence of NodeKind, optional
        Number of nodes of the site, or of each site of a grid; or the kinds of nodes that jobs share.
    policy : Policy, GridPolicy or str, optional
        Scheduling policy of the site or the grid. Defaults to a `gridweave.site.policy.SitePolicy`, whose fields can
        be given as keyword arguments: ``discipline``, ``order``, ``backfill``, ``choice``, ``slack``, ``aging_ms``,
        ``limits``.
    **inputs
        Passed to `simulate_site` or `simulate_grid`; an input that the policy does not use is an error.

    Returns
    -------
    SimulationResult

    Raises
    ------
    InputError
        In the same cases as `simulate_site` and `simulate_grid`.

    Examples
    --------
    >>> import gridweave
    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 1, 2], width=[3, 4, 1], estimate_ms=[100, 50, 90],
    ...                 run_ms=[100, 50, 90])
    >>> gridweave.simulate(jobs, nodes=4).start_ms.tolist()
    [0, 100, 2]
    >>> gridweave.simulate(jobs, nodes=4, backfill="none").start_ms.tolist()
    [0, 100, 150]
    """
    from gridweave.grid.policy import GridPolicy

    remaining: dict[str, Any] = {**inputs}
    options: dict[str, Any] = {name: remaining.pop(name) for name in PolicyOptions.__annotations__ if name in remaining}
    if policy is not None and options:
        raise OptionError(next(iter(options)), "is part of the policy; set it there, or give no policy")
    if isinstance(policy, GridPolicy):
        return simulate_grid(
            workload, cast("Sequence[GridSite]", nodes), policy, **_only(remaining, GridInputs, "a grid")
        )
    policy = SitePolicy(**options) if policy is None else policy
    return simulate_site(workload, nodes, policy, **_only(remaining, SiteInputs, "a site"))


def simulate_site(
    workload: Workload | str | Path,
    nodes: int | Sequence[int] | Sequence[Any] | None = None,
    policy: Policy | TakesKinds | str | None = None,
    *,
    reservations: Sequence[Request] = (),
    node_events: Sequence[NodeEvent] = (),
    driver: str = "batch",
    check: bool = False,
    model: Any = None,
    cores: npt.ArrayLike | None = None,
    rows: npt.ArrayLike | None = None,
    progress: Progress | None = None,
    saving: Saving | None = None,
) -> SimulationResult:
    """Simulate one site.

    Parameters
    ----------
    workload : Workload, str or pathlib.Path
        Jobs, or the file or name of a trace. A job that is still waiting at its ``cancel_ms`` leaves the queue; -1
        means never.
    nodes : int or sequence of NodeKind, optional
        Number of nodes of the site, or the kinds of nodes that jobs share. Defaults to the size of the machine on which
        the workload was recorded.
    policy : Policy or str, optional
        Scheduling policy of any discipline. A string names a variant of node sharing. Defaults to a
        `gridweave.site.policy.SitePolicy`.
    reservations : sequence of (int, ReservationRequested)
        Advance reservations, each with the time in ms at which it is requested; for planning. A reservation that does
        not fit at that time is refused and has no effect; the result's ``reservations`` hold the answers.
    node_events : sequence of NodeEvent
        Nodes that fail, drain or return (docs/disciplines.md, "Nodes that fail"); for the disciplines queue and
        planning. The result's column ``restarts`` counts how often each job was lost and restarted.
    driver : {"batch", "core"}
        The compiled loop, or a `SiteCore` that processes each event. Both give the same schedule; the core is a
        hundred times slower. Reservations, and disciplines without kernels, always use the core.
    check : bool
        Whether to check the core's invariants after every step (slow).
    model : SlowdownModel, optional
        Slowdown of jobs that share nodes; defaults to the published model with its estimates. The workload must have
        the columns that `gridweave.scenarios.workload.columns.assign_resources` draws.
    cores : array_like of int, shape () or (n,), optional
        Number of cores that a job uses on each of its nodes, if jobs share nodes; defaults to 1.
    rows : array_like of int, shape (n,), optional
        Row of each job in the model's table of measured slowdowns; by default, rows are matched by the columns.
    progress : callable, optional
        Called from time to time, and at the end, with the number of jobs submitted so far and the number of jobs that
        are not refused.
    saving : Saving, optional
        Saves the simulation while it is running, and resumes it; for the disciplines queue and planning.

    Returns
    -------
    SimulationResult
        A job that can never run is refused with a reason and does not start.

    Raises
    ------
    InputError
        If the trace cannot be read, the policy does not support an input, the number of nodes is unknown, a
        column has invalid values, or a job could take longer than `gridweave.site.job.MAX_TIME_MS`.

    Examples
    --------
    Jobs that share nodes: one is CPU-bound and one is disk-bound. For a tenth of the time both need the CPU, and then
    each is slowed down by a factor of 1.4. The third job waits for the first one to end:

    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 0, 0], width=[1, 1, 1], estimate_ms=[3_600_000] * 3,
    ...                 run_ms=[3_600_000] * 3, columns={"cpu_fraction": [0.9, 0.1, 0.9],
    ...                 "network_fraction": [0.1, 0, 0.1], "disk_fraction": [0, 0.9, 0],
    ...                 "memory_fraction": [0.5, 0.5, 0.5]})
    >>> (simulate_site(jobs, 1, "L-U1").end_ms / 3_600_000).round(3).tolist()
    [1.04, 1.04, 2.04]
    """
    policy = SitePolicy() if policy is None else policy
    resolved: Any = policy_named(policy) if isinstance(policy, str) else policy
    count, at_site = resolved.on(nodes) if isinstance(resolved, TakesKinds) else (nodes, resolved)
    check_driver(driver, at_site, reservations, node_events, saving)
    inputs = _for_discipline(at_site, {"model": model, "cores": cores, "rows": rows})
    how: dict[str, Any] = {"driver": driver, "check": check, "progress": progress, "saving": saving}
    return simulate_one_site(_loaded(workload, nodes), count, at_site, reservations, node_events, **how, **inputs)


def simulate_grid(
    workload: Workload | str | Path,
    sites: Sequence[GridSite],
    policy: GridPolicy,
    *,
    home: npt.ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    sensitivity: npt.ArrayLike | None = None,
    net: GridNet | None = None,
) -> SimulationResult:
    """Simulate a grid whose scheduler has full control of the sites, with one queue for all sites.

    Parameters
    ----------
    workload : Workload, str or pathlib.Path
        Jobs, or the file or name of a trace.
    sites : sequence of int, sequence of NodeKind, or SitePolicy
        For each site: the number of its nodes, the kinds of its nodes, or a policy with kinds and placement. A site
        that is given as a number does not count resources: it runs only jobs that need whole nodes.
    policy : GridPolicy
        Scheduling policy of the grid.
    home : array_like of int, shape (n,), optional
        Home site of each job, for mode ``local``; defaults to round robin in submit order.
    rng : numpy.random.Generator, optional
        Random generator for selection ``random``; one number is drawn per job.
    sensitivity : array_like of float, shape (n,), optional
        Factor >= 0 that scales the overhead of splitting each job; higher for jobs that communicate more. Defaults
        to 1.
    net : GridNet, optional
        The links between the sites. Together with the workload's columns ``pattern``, ``communication_fraction`` and
        ``message_bytes``, the links determine the overhead of a split; the policy's overhead and the sensitivities are
        then ignored. Jobs' data comes from ``input_bytes``, ``input_site``, ``output_bytes`` and ``output_site``.

    Returns
    -------
    SimulationResult
        A job that can never run is refused with a reason and does not start.

    Raises
    ------
    InputError
        If the trace cannot be read, a column has invalid values, a job could take longer than
        `gridweave.site.job.MAX_TIME_MS`, or a job depends on links that fail and never recover.

    Examples
    --------
    Two sites where the last job is split:

    >>> from gridweave.grid.policy import GridPolicy
    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 1], width=[3, 6], estimate_ms=[100, 50], run_ms=[100, 50])
    >>> result = simulate_grid(jobs, [4, 4], GridPolicy(mode="multi-site", overhead=0.2, lower_bound=4))
    >>> result.start_ms.tolist(), result.end_ms.tolist(), result.fragments_of(1)
    ([0, 100], [100, 160], [(0, 4), (1, 2)])

    A site with GPUs and one without:

    >>> from gridweave.site.resources.chunks import Chunk, NodeKind
    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[6, 6], estimate_ms=[100] * 2, run_ms=[100] * 2,
    ...                 columns={"chunk": [0, 1]}, chunks=(Chunk(cores=4), Chunk(cores=4, gpus=1)))
    >>> sites = [[NodeKind(name="cpu", count=2, cores=16)], [NodeKind(name="gpu", count=2, cores=16, gpus=4)]]
    >>> result = simulate_grid(jobs, sites, GridPolicy(mode="sharing"))
    >>> result.fragments_of(0), result.fragments_of(1)
    ([(0, 6)], [(1, 6)])
    """
    from gridweave.scenarios.batch.grid import simulate_full_control

    return simulate_full_control(
        _loaded(workload, sites), sites, policy, home=home, rng=rng, sensitivity=sensitivity, net=net
    )


def _loaded(workload: Workload | str | Path, nodes: object) -> Workload:
    """Return a workload, loading it first if a file or a name is given."""
    if isinstance(workload, Workload):
        return workload
    machine = nodes if isinstance(nodes, int) else None
    return load_workload(workload, nodes=machine)[0]


def _for_discipline(policy: Policy, inputs: Mapping[str, object]) -> dict[str, Any]:
    """Return the inputs that a policy's discipline accepts; raise OptionError if any other input is given."""
    compiled = entry_of(policy).compiled
    accepted = () if compiled is None else compiled.inputs
    for name, value in inputs.items():
        if name not in accepted and value is not None:
            raise _unused(name, f"the discipline {policy.discipline}")
    return {name: inputs[name] for name in accepted if inputs[name] is not None}


def _only(inputs: Mapping[str, Any], kind: type[Any], what: str) -> dict[str, Any]:
    """Return the inputs of one kind of simulation; raise OptionError if any other input is given."""
    if unknown := inputs.keys() - SimulationInputs.__annotations__.keys():
        raise TypeError(f"simulate() got an unexpected keyword argument {min(unknown)!r}")
    for name, value in inputs.items():
        if name not in kind.__annotations__ and value is not None:
            raise _unused(name, what)
    return {name: value for name, value in inputs.items() if name in kind.__annotations__}


def _unused(option: str, what: str) -> OptionError:
    return OptionError(option, f"is not used by {what}; leave it out, or give another policy")
