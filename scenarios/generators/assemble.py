"""The last step that all generators share: from drawn columns to a workload of the wanted load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.scenarios.generators.moments import check_positive
from gridweave.scenarios.traces.convert import check_nodes
from gridweave.scenarios.workload.table import MAX_TIME_MS, BoolArray, IntArray, Workload

FloatArray = npt.NDArray[np.float64]

# A table of this many jobs takes gigabytes; more is a slip of the hand.
MAX_JOBS = 10**8


def check_request(jobs: int, nodes: int, load: float | None, run_factor: float, interarrival_factor: float) -> None:
    """Refuse what no generator can do."""
    if not 1 <= jobs <= MAX_JOBS:
        raise OptionError("jobs", f"{jobs} is not within 1 to {MAX_JOBS}")
    check_nodes(nodes)
    check_positive("run_factor", run_factor)
    check_positive("interarrival_factor", interarrival_factor)
    if load is not None:
        check_positive("load", load)
        if jobs < 2:
            raise OptionError("load", "a single job offers no load; ask for two jobs at least")


def assemble(
    name: str,
    *,
    submit_ms: FloatArray,
    width: IntArray,
    estimate_ms: FloatArray,
    run_ms: FloatArray,
    overran: BoolArray,
    nodes: int,
    resolution_ms: int,
    load: float | None,
    run_factor: float,
    interarrival_factor: float,
) -> Workload:
    """Scale drawn jobs, round their times to the clock's tick and number them from 1.

    Parameters
    ----------
    name : str
        Name of the model; the workload is called after it.
    submit_ms : numpy.ndarray of float64, shape (n,)
        Submit times as drawn, ascending. The first becomes time zero.
    width : numpy.ndarray of int64, shape (n,)
    estimate_ms, run_ms : numpy.ndarray of float64, shape (n,)
        As drawn.
    overran : numpy.ndarray of bool, shape (n,)
    nodes : int
        Size of the machine.
    resolution_ms : int
        Tick of the clock; run times and estimates are at least one tick.
    load : float or None
        Offered load that the jobs shall have before the two factors: all gaps between submissions are multiplied by one
        number to reach it. None leaves them as they are.
    run_factor : float
        Run times and estimates are multiplied by it (Streit, section 3.7: run time extension).
    interarrival_factor : float
        Gaps between submissions are multiplied by it (Streit, section 3.7: shrinking factor).

    Raises
    ------
    OptionError
        If a factor or the load would carry times beyond `MAX_TIME_MS`, or the load all submissions to one instant.
    """
    run, estimate = _rounded(run_ms, resolution_ms), _rounded(estimate_ms, resolution_ms)
    longest_ms = int(estimate.max())
    if longest_ms * run_factor > MAX_TIME_MS:
        raise OptionError(
            "run_factor", f"{run_factor} makes an estimate of {longest_ms} ms longer than {MAX_TIME_MS} ms"
        )
    submit_ms = submit_ms - submit_ms[0]
    span_ms = float(submit_ms[-1])
    factor = interarrival_factor
    if load is not None and span_ms > 0:
        factor *= float(np.dot(width.astype(np.float64), run)) / (nodes * span_ms) / load
    if span_ms * factor > MAX_TIME_MS:
        option = "interarrival_factor" if load is None else "load"
        raise OptionError(option, f"the last job would be submitted later than {MAX_TIME_MS} ms")
    submit = (np.rint(submit_ms * factor / resolution_ms) * resolution_ms).astype(np.int64)
    if load is not None and submit[-1] == 0:
        raise OptionError("load", f"{load} is too much: all jobs would be submitted at one instant")
    run = _rounded(run * run_factor, resolution_ms)
    return Workload(
        job_id=np.arange(1, len(submit_ms) + 1),
        submit_ms=submit,
        width=width,
        estimate_ms=np.maximum(_rounded(estimate * run_factor, resolution_ms), run),
        run_ms=run,
        overran=overran,
        nodes=nodes,
        name=f"generated from {name}",
    )


def _rounded(times_ms: npt.NDArray[np.floating], resolution_ms: int) -> IntArray:
    """Round to whole ticks, at least one, at most the greatest time that a workload holds."""
    ticks = np.clip(np.rint(times_ms / resolution_ms), 1, MAX_TIME_MS // resolution_ms)
    return ticks.astype(np.int64) * resolution_ms
