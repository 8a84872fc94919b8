"""Divide the CPU of nodes among their jobs with max-min fairness (Stillwell, sections 4.6 and 4.7).

Yields are rates (`gridweave.site.kernels.work`). They are rounded down, and the CPU used on a node is summed as an
integer, so no node is overloaded. The linear program for OPT=AVG is in
`gridweave.site.disciplines.fractional.averages`.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.fractional.kernels.state import RUNS, SHARE_ONE, FractionalSite
from gridweave.site.kernels.parts import UNIT
from gridweave.site.kernels.work import RATE_ONE

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

_NOT_YET = -1

_FULL = UNIT * RATE_ONE


@kernel
def level_yields(state: FractionalSite) -> None:
    """Give every running job the same yield, 1 / max(1, highest load of any node), if all shares are equal.

    Notes
    -----
    This maximises the minimum yield (Stillwell, section 4.6). If shares differ, yields are proportional to shares, up
    to 1.
    """
    _begin(state)
    level = _lowest_level(state)
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        job.yield_ = _yield_at(job, level) if job.status == RUNS else 0


@kernel
def fair_yields(state: FractionalSite) -> None:
    """Maximise the minimum yield, then the second smallest yield, and so on (OPT=MIN): max-min fairness.

    Notes
    -----
    Source: Stillwell, section 4.6. Each round raises the yields of the unsettled jobs until a node is full or a job
    gets its full CPU need. The round then settles this job, or the jobs on the full node.
    """
    left = _begin(state)
    while left > 0:
        level = _lowest_level(state)
        for place in range(state.counters[0].n_here):
            slot = state.here[place]
            job = state.jobs[slot]
            if job.yield_ == _NOT_YET and (job.share * level >= SHARE_ONE * RATE_ONE or _is_held(state, slot, level)):
                job.new_yield = _yield_at(job, level)
        left -= _keep_found(state)


@kernel_part
def _begin(state: FractionalSite) -> Int:
    """Reset nodes and yields, and add up the CPU needs on each node; return the number of running jobs."""
    for node in range(len(state.nodes)):
        state.nodes[node].sum = 0
        state.nodes[node].frozen = 0
    running = 0
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        job.yield_ = _NOT_YET if job.status == RUNS else 0
        job.new_yield = _NOT_YET
        if job.status == RUNS:
            running += 1
            _add_to_nodes(state, slot, job.share, 0)
    return running


@kernel_part
def _add_to_nodes(state: FractionalSite, slot: Int, asked: Int, granted: Int) -> None:
    """Add each task's CPU need times ``asked`` to its node's ``sum``, and the need times ``granted`` to ``frozen``.

    A node's ``sum`` is the total of its unsettled jobs, and ``frozen`` the total of its settled jobs.
    """
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        sum_of_one, frozen_of_one = group.need * asked, group.need * granted
        for task in range(group.first, group.first + group.count):
            node = state.nodes[state.tasks[task]]
            node.sum += sum_of_one
            node.frozen += frozen_of_one


@kernel_part
def _level_of(node: Record) -> Int:
    """Return the level at which a node is full; the level is the yield of a job with share 1."""
    return (_FULL - node.frozen) * SHARE_ONE // node.sum


@kernel_part
def _lowest_level(state: FractionalSite) -> Int:
    """Return the lowest level at which a node is full or an unsettled job gets its full CPU need."""
    level = RATE_ONE * SHARE_ONE
    for node in range(len(state.nodes)):
        if state.nodes[node].sum > 0:
            level = min(level, _level_of(state.nodes[node]))
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        if job.yield_ == _NOT_YET:
            level = min(level, (RATE_ONE * SHARE_ONE + job.share - 1) // job.share)
    return level


@kernel_part
def _yield_at(job: Record, level: Int) -> Int:
    return min(RATE_ONE, level * job.share // SHARE_ONE)


@kernel_part
def _is_held(state: FractionalSite, slot: Int, level: Int) -> bool:
    """Whether one of a job's nodes is full at this level."""
    job = state.jobs[slot]
    is_held = False
    for task in range(job.first, job.first + job.width):
        is_held = is_held or _level_of(state.nodes[state.tasks[task]]) <= level
    return is_held


@kernel_part
def _keep_found(state: FractionalSite) -> Int:
    """Settle the jobs that were given a yield in this round; return the number of these jobs."""
    n_settled = 0
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        if job.new_yield != _NOT_YET:
            job.yield_ = job.new_yield
            job.new_yield = _NOT_YET
            _add_to_nodes(state, slot, -job.share, job.yield_)
            n_settled += 1
    return n_settled


INVERSE_ONE = 1 << 20
"""The integer that represents the inverse of a stretch of 1; half of it represents the inverse of a stretch of 2."""


@kernel
def yield_for_stretch(job: Record, inverse: Int, horizon_ms: Int, now_ms: Int) -> Int:
    """Return the yield with which a job reaches an expected stretch (flow time / virtual time, at the horizon).

    Parameters
    ----------
    job : record of FRACTIONAL_JOB
    inverse : int
        Inverse of the stretch, in units of 1 / `INVERSE_ONE`.
    horizon_ms : int
        Time from now until the next rescheduling.
    now_ms : int

    Returns
    -------
    int
        0 if the stretch is lower even without any CPU, `RATE_ONE` if no yield is high enough, otherwise in between.
    """
    flow_ms = float(now_ms - job.submit_ms + horizon_ms)
    target = (inverse / INVERSE_ONE * flow_ms - job.virtual / 65536.0) / horizon_ms * RATE_ONE
    return int(min(float(RATE_ONE), max(0.0, target)))


@kernel
def stretch_yields(state: FractionalSite, horizon_ms: Int, now_ms: Int, rounds: Int) -> None:
    """Minimise the maximum expected stretch, then the second largest, and so on (OPT=MAX).

    Parameters
    ----------
    state : FractionalSite
    horizon_ms : int
        Time from now until the next rescheduling.
    now_ms : int
    rounds : int
        Maximum number of rounds; jobs that are still unsettled after them get the yield of the last round. With 1, all
        jobs get the yield that minimises the maximum stretch.

    Notes
    -----
    Source: Stillwell, section 4.7. Each round finds the largest inverse stretch at which no node is overloaded.
    """
    left = _begin(state)
    inverse = 0
    for _ in range(rounds):
        if left == 0:
            return
        inverse = _best_inverse(state, inverse, horizon_ms, now_ms)
        _nodes_give(state, inverse + 1, horizon_ms, now_ms)
        for place in range(state.counters[0].n_here):
            slot = state.here[place]
            job = state.jobs[slot]
            if job.yield_ == _NOT_YET and (inverse == INVERSE_ONE or _is_overfull(state, slot)):
                job.new_yield = yield_for_stretch(job, inverse, horizon_ms, now_ms)
        left -= _keep_found(state)
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        if job.yield_ == _NOT_YET:
            job.yield_ = yield_for_stretch(job, inverse, horizon_ms, now_ms)


@kernel_part
def _best_inverse(state: FractionalSite, low: Int, horizon_ms: Int, now_ms: Int) -> Int:
    """Return the largest inverse stretch, at least ``low``, at which no node is overloaded."""
    high = INVERSE_ONE
    if _nodes_give(state, high, horizon_ms, now_ms):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if _nodes_give(state, middle, horizon_ms, now_ms):
            low = middle
        else:
            high = middle
    return low


@kernel
def _nodes_give(state: FractionalSite, inverse: Int, horizon_ms: Int, now_ms: Int) -> bool:
    """Sum the CPU that unsettled jobs need on each node to reach an inverse stretch; return whether all nodes have it.

    For the inverse stretch 0, no job needs any CPU, so there is always a value that works.
    """
    for node in range(len(state.nodes)):
        state.nodes[node].sum = 0
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        if job.yield_ == _NOT_YET:
            _add_to_nodes(state, slot, yield_for_stretch(job, inverse, horizon_ms, now_ms), 0)
    most = 0
    for node in range(len(state.nodes)):
        most = max(most, state.nodes[node].sum + state.nodes[node].frozen)
    return most <= _FULL


@kernel_part
def _is_overfull(state: FractionalSite, slot: Int) -> bool:
    """Whether one of a job's nodes was overloaded in the last call to `_nodes_give`."""
    job = state.jobs[slot]
    for task in range(job.first, job.first + job.width):
        node = state.nodes[state.tasks[task]]
        if node.sum + node.frozen > _FULL:
            return True
    return False
