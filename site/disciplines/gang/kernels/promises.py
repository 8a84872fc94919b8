"""What is free in each row of the matrix from when on, by estimates: running jobs, and what waiting jobs are promised.

A job may work in a single slice of each cycle, so it is thought to take as many times its estimate as the matrix has
rows (Zhang, section 6.2): what is left of its estimate, from now on.
"""

from __future__ import annotations

from gridweave.jit import Int, Record, kernel, kernel_part
from gridweave.site.disciplines.gang.kernels.state import GangSite, open_width
from gridweave.site.kernels.profile import clear, earliest_fit, occupy
from gridweave.site.kernels.state import NEVER_MS, UNPLACED_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

PROMISED, RUNNING_ALONE = 1, 2
"""What stands in the profiles: running jobs with the promises of the last decision, or running jobs alone."""


@kernel_part
def longest_ms(state: GangSite, job: Record) -> Int:
    """Return how long a job may take from now on, by its estimate."""
    left_ms = job.estimate_ms
    if job.rows:
        left_ms += job.owed_ms - job.worked_ms
    return left_ms * state.counters[0].rows


@kernel
def fill_profiles(state: GangSite, now_ms: Int, what: Int) -> None:
    """Make the profiles of all rows anew; ``what`` is `PROMISED` or `RUNNING_ALONE`."""
    counters = state.counters[0]
    for row in range(counters.rows):
        state.n_steps[row] = clear(state.step_ms[row], state.step_free[row], now_ms, counters.nodes)
    for i in range(counters.n_placed):
        job = state.jobs[state.placed[i]]
        for row in range(counters.rows):
            if (job.rows >> row) & 1:
                occupy_row(state, row, now_ms, longest_ms(state, job), open_width(state, job))
    if what == PROMISED:
        for place in range(counters.n_waiting):
            job = state.jobs[state.waiting[place]]
            if job.promised_ms not in (UNPLACED_MS, NEVER_MS):
                occupy_row(state, job.promised_row, max(now_ms, job.promised_ms), longest_ms(state, job), job.width)
    counters.has_profiles = what


@kernel_part
def occupy_row(state: GangSite, row: Int, from_ms: Int, length_ms: Int, width: Int) -> None:
    """Enter nodes of a row into its profile; a negative width gives them back."""
    steps = state.n_steps[row]
    state.n_steps[row] = occupy(state.step_ms[row], state.step_free[row], steps, from_ms, from_ms + length_ms, width)


@kernel_part
def row_start_ms(state: GangSite, row: Int, now_ms: Int, width: Int, length_ms: Int) -> Int:
    """Return when so many nodes of a row are free for so long, by the profile."""
    return earliest_fit(state.step_ms[row], state.step_free[row], state.n_steps[row], now_ms, width, length_ms)
