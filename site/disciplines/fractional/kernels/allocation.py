"""What CPU the jobs get once their tasks are on nodes (Stillwell, sections 4.6 and 4.7): max-min fairness.

Yields are rates (work.py). They are rounded down, and the CPU of a node is summed in whole numbers, so no node gives
more than it has. OPT=AVG is a linear program, in `gridweave.site.disciplines.fractional.averages`.
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
    """Give every running job the yield 1 / max(1, largest load), where all have the same share.

    Notes
    -----
    It maximises the least yield. Source: Stillwell, section 4.6. A job with another share gets that many times as much.
    """
    _begin(state)
    level = _lowest_level(state)
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        job.yield_ = _yield_at(job, level) if job.status == RUNS else 0


@kernel
def fair_yields(state: FractionalSite) -> None:
    """Maximise the least yield, then the next larger one, and so on (OPT=MIN): max-min fairness.

    Notes
    -----
    Source: Stillwell, section 4.6. In a round, the jobs on the nodes that are full first keep what they have then.
    """
    left = _begin(state)
    while left > 0:
        level = _lowest_level(state)
        for place in range(state.counters[0].n_here):
            slot = state.here[place]
            job = state.jobs[slot]
            if job.yield_ == _NOT_YET and (job.share * level >= SHARE_ONE * RATE_ONE or _is_held(state, slot, level)):
                job.found = _yield_at(job, level)
        left -= _keep_found(state)


@kernel_part
def _begin(state: FractionalSite) -> Int:
    """Let no job have a yield; return how many run."""
    for node in range(len(state.nodes)):
        state.nodes[node].sum = 0
        state.nodes[node].frozen = 0
    running = 0
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        job.yield_ = _NOT_YET if job.status == RUNS else 0
        job.found = _NOT_YET
        if job.status == RUNS:
            running += 1
            _add_to_nodes(state, slot, job.share, 0)
    return running


@kernel_part
def _add_to_nodes(state: FractionalSite, slot: Int, asked: Int, given: Int) -> None:
    """Add to what the unsettled tasks of each node ask for, and to what settled ones have; both times their needs."""
    job = state.jobs[slot]
    for number in range(job.first_group, job.end_group):
        group = state.groups[number]
        sum_of_one, frozen_of_one = group.need * asked, group.need * given
        for task in range(group.first, group.first + group.count):
            node = state.nodes[state.tasks[task]]
            node.sum += sum_of_one
            node.frozen += frozen_of_one


@kernel_part
def _level_of(node: Record) -> Int:
    """Return the yield of a job with share 1 at which a node is full."""
    return (_FULL - node.frozen) * SHARE_ONE // node.sum


@kernel_part
def _lowest_level(state: FractionalSite) -> Int:
    """Return at which level the first node is full, or the first job has all that it needs."""
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
    """Whether one of a job's nodes is full at a level."""
    job = state.jobs[slot]
    is_held = False
    for task in range(job.first, job.first + job.width):
        is_held = is_held or _level_of(state.nodes[state.tasks[task]]) <= level
    return is_held


@kernel_part
def _keep_found(state: FractionalSite) -> Int:
    """Settle the jobs whose yield has been found in this round; return how many."""
    found = 0
    for place in range(state.counters[0].n_here):
        slot = state.here[place]
        job = state.jobs[slot]
        if job.found != _NOT_YET:
            job.yield_ = job.found
            job.found = _NOT_YET
            _add_to_nodes(state, slot, -job.share, job.yield_)
            found += 1
    return found


INVERSE_ONE = 1 << 20
"""An expected stretch of 1; half of it is a stretch of 2."""


@kernel
def yield_for_stretch(job: Record, inverse: Int, horizon_ms: Int, now_ms: Int) -> Int:
    """Return the yield with which a job reaches an expected stretch, its flow time by its virtual time at the horizon.

    Parameters
    ----------
    job : record of FRACTIONAL_JOB
    inverse : int
        Of the stretch, as a part of `INVERSE_ONE`.
    horizon_ms, now_ms : int
        From now until the next rescheduling.

    Returns
    -------
    int
        0 to `RATE_ONE`: nothing if it is better off anyway, all if it cannot be reached.
    """
    flow_ms = float(now_ms - job.submit_ms + horizon_ms)
    wanted = (inverse / INVERSE_ONE * flow_ms - job.virtual / 65536.0) / horizon_ms * RATE_ONE
    return int(min(float(RATE_ONE), max(0.0, wanted)))


@kernel
def stretch_yields(state: FractionalSite, horizon_ms: Int, now_ms: Int, rounds: Int) -> None:
    """Minimise the largest expected stretch, then the next smaller one, and so on (OPT=MAX).

    Parameters
    ----------
    state : FractionalSite
    horizon_ms, now_ms : int
        From now until the next rescheduling.
    rounds : int
        After so many, who is not settled has the yield of the last: with 1 all have that of the least largest stretch.

    Notes
    -----
    Source: Stillwell, section 4.7. Each round finds the largest inverse of the stretch that all nodes can give.
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
                job.found = yield_for_stretch(job, inverse, horizon_ms, now_ms)
        left -= _keep_found(state)
    for place in range(state.counters[0].n_here):
        job = state.jobs[state.here[place]]
        if job.yield_ == _NOT_YET:
            job.yield_ = yield_for_stretch(job, inverse, horizon_ms, now_ms)


@kernel_part
def _best_inverse(state: FractionalSite, low: Int, horizon_ms: Int, now_ms: Int) -> Int:
    """Return the largest inverse of the stretch, from ``low`` on, at which no node is overfull."""
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
    """Write what the unsettled tasks of each node want at an inverse of the stretch; return whether no node has less.

    At 0 nobody wants anything; so there always is such an inverse.
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
    """Whether one of a job's nodes cannot give what was asked of it last."""
    job = state.jobs[slot]
    for task in range(job.first, job.first + job.width):
        node = state.nodes[state.tasks[task]]
        if node.sum + node.frozen > _FULL:
            return True
    return False
