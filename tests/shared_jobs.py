"""Random workloads for shared nodes, and their conversion for the slow reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.sharing.policy import VARIANTS, NodeKind, SharingPolicy
from gridweave.site.disciplines.sharing.slowdown_tables import TABLE_3, SlowdownModel, rows_of
from reference.lomarc import Job, Kind, Options

MINUTE, HOUR = 60_000, 3_600_000


def workload_of(jobs: Sequence[dict[str, Any]]) -> Workload:
    """Return jobs as a workload; defaults: ids in order, submit 0, width 1, one hour, half of the memory.

    Parameters
    ----------
    jobs : sequence of dict
        Keys ``submit``, ``width``, ``estimate``, ``run``, ``cpu``, ``network``, ``disk``, ``memory``, ``kind``.
    """
    full = [{"submit": 0, "width": 1, "estimate": HOUR, "memory": 0.5, "kind": 0, "network": 0.0} | job for job in jobs]
    return Workload(
        job_id=np.arange(1, len(full) + 1),
        submit_ms=np.array([job["submit"] for job in full], np.int64),
        width=np.array([job["width"] for job in full], np.int64),
        estimate_ms=np.array([job["estimate"] for job in full], np.int64),
        run_ms=np.array([job.get("run", job["estimate"]) for job in full], np.int64),
        columns={
            "cpu_fraction": np.array([job["cpu"] for job in full], np.float64),
            "network_fraction": np.array([job["network"] for job in full], np.float64),
            "disk_fraction": np.array([job["disk"] for job in full], np.float64),
            "memory_fraction": np.array([job["memory"] for job in full], np.float64),
            "cpu_kind": np.array([job["kind"] for job in full], np.int64),
        },
    )


def random_workload(rng: np.random.Generator, nodes: int, *, coarse: bool) -> Workload:
    """Draw a small workload of any load; with `coarse`, ties and simultaneous events are frequent."""
    n = int(rng.integers(5, 60))
    parts = rng.dirichlet([1, 1, 1], n)
    memory = rng.uniform(0.05, 1, n)
    if coarse:
        parts = np.round(parts * 4)
        parts[:, 2] = 4 - parts[:, 0] - parts[:, 1]
        parts = np.clip(parts, 0, 4)
        parts /= parts.sum(1, keepdims=True)
        memory = np.round(memory, 1)
    spans = np.array([(1, MINUTE), (MINUTE + 1, HOUR), (HOUR + 1, 6 * HOUR)])
    low, high = spans[rng.choice(3, n, p=[0.2, 0.4, 0.4])].T
    estimate = rng.integers(low, high + 1)
    if coarse:
        estimate = np.maximum(MINUTE // 2, estimate // (10 * MINUTE) * (10 * MINUTE))
    run = np.where(rng.random(n) < 0.6, estimate, (estimate * rng.uniform(0.1, 1, n)).astype(np.int64))
    width = np.minimum(nodes, rng.integers(1, nodes + 1, n) // rng.integers(1, 4, n) + 1)
    lasts = int(n * float(np.mean(estimate * width)) / nodes / rng.uniform(0.5, 2.5)) + 1
    submit = np.sort(rng.integers(0, lasts, n))
    if coarse:
        submit = submit // (10 * MINUTE) * (10 * MINUTE)
    return Workload(
        job_id=np.arange(1, n + 1),
        submit_ms=submit,
        width=width,
        estimate_ms=estimate,
        run_ms=np.maximum(1, run),
        columns={
            "cpu_fraction": parts[:, 0],
            "network_fraction": parts[:, 1],
            "disk_fraction": parts[:, 2],
            "memory_fraction": memory,
            "cpu_kind": rng.integers(0, 2, n),
        },
    )


def random_policy(rng: np.random.Generator, variant: str, backfills: Sequence[str]) -> SharingPolicy:
    """Draw a policy of a variant, with some of its numbers changed."""
    changes: dict[str, Any] = {"backfill": str(rng.choice(list(backfills)))}
    if rng.random() < 0.5:
        changes["aging_ms"] = [None, 10.0 * MINUTE, float("inf")][rng.integers(3)]
    if rng.random() < 0.5:
        changes["max_slowdown"] = float(rng.choice([1.2, 1.6, 2.5]))
    if rng.random() < 0.3:
        changes["load_threshold"] = float(rng.choice([0, 0.5, 1]))
    if rng.random() < 0.3:
        changes["joins_behind"] = False
    return msgspec.structs.replace(VARIANTS[variant], **changes)


def random_kinds(rng: np.random.Generator, nodes: int, cpu: str, *, alike: bool) -> list[NodeKind]:
    """Draw the kinds of a site's nodes, with random cores and threads; with `alike`, all nodes are of one kind."""
    shape = rng.integers(3 if alike else 4)
    if shape == 0:
        return [NodeKind(count=nodes, cpu=cpu)]
    if shape == 1:
        return [NodeKind(count=nodes, threads=int(rng.integers(1, 5)), cpu=cpu)]
    if shape == 2:
        return [NodeKind(count=nodes, cores=int(rng.integers(1, 4)), threads=int(rng.integers(1, 4)), cpu=cpu)]
    first = int(rng.integers(1, nodes))
    return [
        NodeKind(count=first, cpu="standard", memory=0.6),
        NodeKind(count=nodes - first, threads=3, cores=2),
    ]


def random_cores(rng: np.random.Generator, kinds: Sequence[NodeKind], jobs: int) -> npt.NDArray[np.int64]:
    """Draw the number of cores that each job uses on a node."""
    return rng.integers(1, max(kind.cores for kind in kinds) + 1, jobs)


def reference_jobs(workload: Workload, cores: npt.NDArray[np.int64], refused: set[int]) -> list[Job]:
    """Convert the jobs for the reference, without the refused ones."""
    columns, rows = workload.columns, rows_of(TABLE_3, workload.columns)
    return [
        Job(
            id=int(workload.job_id[i]),
            submit=int(workload.submit_ms[i]),
            width=int(workload.width[i]),
            estimate=int(workload.estimate_ms[i]),
            run=int(workload.run_ms[i]),
            cpu=float(columns["cpu_fraction"][i]),
            network=float(columns["network_fraction"][i]),
            disk=float(columns["disk_fraction"][i]),
            memory=float(columns["memory_fraction"][i]),
            cpu_kind=int(columns["cpu_kind"][i]),
            cores=int(cores[i]),
            row=int(rows[i]),
        )
        for i in range(len(workload))
        if int(workload.job_id[i]) not in refused
    ]


def reference_kinds(kinds: Sequence[NodeKind]) -> list[Kind]:
    """Convert kinds of nodes for the reference."""
    return [Kind(kind.count, kind.cores, kind.threads, kind.memory, kind.cpu == "hyperthreaded") for kind in kinds]


def reference_options(policy: SharingPolicy, model: SlowdownModel) -> Options:
    """Convert a policy and a slowdown model for the reference."""
    return Options(
        coscheduling=policy.coscheduling,
        heuristic=policy.heuristic,
        max_slowdown=policy.max_slowdown,
        short_up_to=policy.short_up_to_ms,
        medium_up_to=policy.medium_up_to_ms,
        aging=policy.aging_ms,
        load_threshold=policy.load_threshold,
        partners=policy.partners,
        backfill=policy.backfill,
        joins_behind=policy.joins_behind,
        formula=model.formula,
        cpu_factors=tuple(tuple(row) for row in model.cpu_factors.slowdown.tolist()),
        measured=tuple(tuple(row) for row in model.table.slowdown.tolist()),
        paging=model.paging,
    )
