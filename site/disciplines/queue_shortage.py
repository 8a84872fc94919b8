"""Why a job cannot start at a site that counts resources: which resource is short, where, and until when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.site.job import Job
from gridweave.site.kernels.chunks import CORES, NodeArrays, held_nodes
from gridweave.site.kernels.counted import head_limit_on_nodes, units_that_fit
from gridweave.site.kernels.state import NEVER_MS, SiteState
from gridweave.site.resources.refusals import amount_text
from gridweave.site.resources.text import memory_text
from gridweave.site.times import when_text

_MOST_NAMED = 3
"""Number of running jobs to name in a reason."""


class Shortage(NamedTuple):
    """Why a job does not fit now, and when it will.

    Attributes
    ----------
    fit_ms : int
        First estimated end at which the job fits, if no other job starts; `NEVER_MS` if it never does.
    cause, reason : str
        Texts without and with numbers.
    """

    fit_ms: int
    cause: str
    reason: str


class _Amount(NamedTuple):
    """An amount that a job needs, and the amounts on suitable nodes: in total, free now, and free later."""

    what: str
    needed: str
    total: int
    free: int
    later: int

    def text(self, amount: int) -> str:
        """Return an amount of this resource as a number, or as a size of memory."""
        return memory_text(amount) if self.what == "memory" else f"{amount:,}"


def find_shortage(
    state: SiteState, nodes: NodeArrays, columns: tuple[str, ...], job: Job, slot: int, now_ms: int
) -> Shortage | None:
    """Return why a waiting job does not fit now, or None if it fits; ``nodes.later`` is overwritten."""
    fit_ms = int(head_limit_on_nodes(state, nodes, np.int64(slot), 0.0).shadow_ms)
    if fit_ms == 0:
        return None
    suits = nodes.kinds[slot] >> nodes.kind & 1 == 1
    short = (
        _whole_nodes(nodes, job, suits) if nodes.exclusive[slot] else _short_resource(nodes, columns, job, slot, suits)
    )
    is_free = f"{short.text(short.free)} of {short.text(short.total)} {'is' if short.free == 1 else 'are'} free"
    reason = f"it needs {short.needed}, and on the nodes that suit it {is_free}"
    return Shortage(
        fit_ms, f"too few {short.what} are free", f"{reason}; {_until(state, nodes, slot, short, fit_ms, now_ms)}"
    )


def _whole_nodes(nodes: NodeArrays, job: Job, suits: npt.NDArray[np.bool_]) -> _Amount:
    now, later = (int((free[suits, CORES] == nodes.total[suits, CORES]).sum()) for free in (nodes.free, nodes.later))
    chunk = job.chunk
    if not chunk or chunk.is_whole:
        needed = f"{job.width} node{'s' * (job.width != 1)}"
    else:
        needed = f"nodes without other jobs for {job.width} chunk{'s' * (job.width != 1)}"
    return _Amount("nodes", needed, int(suits.sum()), now, later)


def _short_resource(
    nodes: NodeArrays, columns: tuple[str, ...], job: Job, slot: int, suits: npt.NDArray[np.bool_]
) -> _Amount:
    """Return the scarcest of the resources that are short; if none is short, the numbers of chunks that fit."""
    request, per_unit = nodes.request[slot], int(nodes.chunks[slot])
    needed = request * (job.width // per_unit)
    total, free, later = (amounts[suits].sum(axis=0) for amounts in (nodes.total, nodes.free, nodes.later))
    short = np.flatnonzero(needed > free)
    if len(short):
        column = int(short[np.argmax(needed[short] / np.maximum(total[short], 1))])
        what = {"cores": "cores", "memory_mb": "memory", "gpus": "GPUs"}.get(columns[column], columns[column])
        text = amount_text(columns[column], int(needed[column]))
        return _Amount(what, text, int(total[column]), int(free[column]), int(later[column]))
    amounts_text = " and ".join(
        amount_text(name, int(n) // per_unit) for name, n in zip(columns, request, strict=True) if n
    )
    fitting = (
        int(units_that_fit(nodes, amounts, np.int64(slot))) * per_unit
        for amounts in (nodes.total, nodes.free, nodes.later)
    )
    chunks = f"{job.width} chunks of {amounts_text} each" if job.width > 1 else f"1 chunk of {amounts_text}"
    return _Amount("nodes with enough of everything", chunks, *fitting)


def _until(state: SiteState, nodes: NodeArrays, slot: int, short: _Amount, fit_ms: int, now_ms: int) -> str:
    """Describe which running jobs must end before the waiting job fits, and how much more is then free."""
    if fit_ms == NEVER_MS:
        return "not even the ends of all running jobs would be enough"
    running = state.running[: state.counters[0]["n_running"]]
    ends = running["slot"][running["end_ms"] == fit_ms].tolist()
    suits = nodes.kinds[slot] >> nodes.kind & 1 == 1
    on_them = [other for other in ends if any(suits[node] for node, _ in held_nodes(nodes, other))]
    ids = sorted(int(state.jobs[other]["job_id"]) for other in on_them)
    names = ", ".join(map(str, ids[:_MOST_NAMED])) + (", ..." if len(ids) > _MOST_NAMED else "")
    more = f"{short.text(short.later - short.free)} more"
    return f"{more} when job{'s' * (len(ids) > 1)} {names} end{'s' * (len(ids) == 1)}, {when_text(fit_ms, now_ms)}"
