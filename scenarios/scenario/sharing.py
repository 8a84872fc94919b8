"""Sites whose nodes are shared, and what their jobs need: the tables of a scenario that docs/lomarc.md is behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.resource_files import read_resources
from gridweave.scenarios.resources import assign_resources
from gridweave.scenarios.scenario.problems import Report
from gridweave.scenarios.scenario.structs import SharingTable
from gridweave.scenarios.workload import Workload
from gridweave.site.disciplines.lomarc import VARIANTS, LomarcPolicy, NodeKind, SharedNodes


def shared_nodes(table: SharingTable, nodes: int, backfill: str) -> SharedNodes:
    """Return how a site schedules on nodes that are shared.

    Parameters
    ----------
    table : SharingTable
    nodes : int
        Nodes of the site.
    backfill : str
        Of the site.

    Returns
    -------
    SharedNodes

    Raises
    ------
    OptionError
        If a name is not known, or an option does not go with another.
    """
    if table.variant not in VARIANTS:
        raise OptionError("variant", f"{table.variant!r} is not known; one of {', '.join(VARIANTS)}")
    plain = VARIANTS[table.variant]
    policy: LomarcPolicy = msgspec.structs.replace(
        plain, backfill=backfill, max_slowdown=table.max_slowdown, cpu=table.cpu or plain.cpu
    )
    kind = NodeKind(count=nodes, cores=table.cores, threads=table.threads, memory=table.memory, cpu=policy.cpu)
    return SharedNodes(sharing=policy, kinds=(kind,), formula=table.formula)


def with_resources(
    workload: Workload, resources: str, file: Path | None, rng: np.random.Generator, report: Report
) -> Workload:
    """Return a workload whose jobs say what they need beside nodes.

    Parameters
    ----------
    workload : Workload
    resources : str
        A mix, or a file as ``gridweave trace resources`` writes one.
    file : pathlib.Path or None
        The file that is meant, if it lies beside the scenario.
    rng : numpy.random.Generator
    report : Report
        Takes what is wrong, at ``workload.resources``; the workload is unchanged then.

    Returns
    -------
    Workload
    """
    try:
        if Path(resources).suffix:
            return read_resources(file or resources, workload)
        return assign_resources(workload, resources, rng)
    except OptionError as error:
        report.add(("workload", "resources"), error.problem)
    except InputError as error:
        report.add(("workload", "resources"), str(error))
    return workload
