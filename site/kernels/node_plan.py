"""Plans for single nodes: what is free on each node, and when (docs/resources.md, rule 6).

Each node has a list of *steps*: from the start of a step until the next step, the same amounts are free. The last step
has no end, and the first step starts at the time to which the plan was last advanced. A waiting job with a promised
start holds entries in `NodeArrays`, which are its planned nodes.

While every job at the site takes whole nodes of any kind, the plan counts nodes (profile.py), and there are no steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridweave.jit import Int, Ints, Records, kernel, kernel_part
from gridweave.site.kernels.chunks import (
    CORES,
    MANY,
    NO_ENTRY,
    Amounts,
    NodeArrays,
    amount,
    choose,
    hold_chosen,
    units_in_row,
)
from gridweave.site.kernels.state import NEVER_MS

# The fields of records have no types.
# mypy: disable-error-code="no-any-return"

NO_STEP = np.int64(-1)
"""Ends a list of steps."""

RESERVATION = np.int64(-1)
"""Stands for the slot of a job if a reservation occupies a node."""

STEP = np.dtype([("start_ms", np.int64), ("next", np.int64)], align=True)
"""A step of a node, and its next step; or an unused step, and the next unused step."""


class NodePlan(NamedTuple):
    """A plan for each node.

    Attributes
    ----------
    nodes : NodeArrays
    every_kind : int
        Bit mask of all kinds of nodes.
    is_used : numpy.ndarray of bool, shape (1,)
        Whether the plan is kept for each node; otherwise, it counts nodes, and waiting jobs have no entries.
    steps : numpy.ndarray of STEP, shape (capacity,)
    amounts : numpy.ndarray of int64, shape (capacity, resources)
        How much of each resource is free in each step.
    first : numpy.ndarray of int64, shape (nodes,)
        First step of each node.
    unused : numpy.ndarray of int64, shape (2,)
        First step in the list of unused steps, or `NO_STEP`; and the first step that was never used.
    reserved : numpy.ndarray of bool, shape (reservations, nodes)
        Nodes of each entry of `Plan.reservations`; none if the reservation has not begun and the plan counts nodes.
    has_begun : numpy.ndarray of bool, shape (reservations,)
        Whether each of these reservations has begun.
    least : numpy.ndarray of int64, shape (nodes, resources)
        Scratch: the least of each resource that is free throughout a time.
    units, until_ms : numpy.ndarray of int64, shape (nodes,)
        Scratch: how many units of a job fit on each node at some start, and the next start at which that changes.
    missing : numpy.ndarray of int64, shape (slots,)
        How many more units of a job with a planned start must become free before the job can start earlier: a lower
        bound, which has no meaning unless ``is_used``.
    """

    nodes: NodeArrays
    every_kind: int
    is_used: npt.NDArray[np.bool_]
    steps: npt.NDArray[np.void]
    amounts: Amounts
    first: Ints
    unused: Ints
    reserved: npt.NDArray[np.bool_]
    has_begun: npt.NDArray[np.bool_]
    least: Amounts
    units: Ints
    until_ms: Ints
    missing: Ints


def empty_node_plan(nodes: NodeArrays, *, kinds: int, reservations: int = 0) -> NodePlan:
    """Return the plan of an idle site, which counts nodes.

    Parameters
    ----------
    nodes : NodeArrays
        Must have an entry for each node of each job that runs or waits, and of each reservation.
    kinds : int
        Number of kinds of nodes.
    reservations : int
        Maximum number of reservations at any time.
    """
    count, columns = nodes.total.shape
    # Each entry adds at most two steps to its node. A job that has just ended early may leave one more.
    capacity = 2 * (count + len(nodes.entries))
    return NodePlan(
        nodes=nodes,
        every_kind=(1 << kinds) - 1,
        is_used=np.zeros(1, np.bool_),
        steps=np.zeros(capacity, STEP),
        amounts=np.zeros((capacity, columns), np.int64),
        first=np.zeros(count, np.int64),
        unused=np.zeros(2, np.int64),
        reserved=np.zeros((reservations, count), np.bool_),
        has_begun=np.zeros(reservations, np.bool_),
        least=np.zeros((count, columns), np.int64),
        units=np.zeros(count, np.int64),
        until_ms=np.zeros(count, np.int64),
        missing=np.zeros(len(nodes.first), np.int64),
    )


@kernel_part
def takes_any_node(plan: NodePlan, slot: Int) -> bool:
    """Whether a job takes whole nodes of any kind, so that it is enough to count nodes for it."""
    return plan.nodes.request[slot, CORES] == 0 and plan.nodes.kinds[slot] == plan.every_kind


@kernel
def clear_nodes(plan: NodePlan, now_ms: Int) -> None:
    """Reset the plan: all nodes are idle from now on."""
    plan.unused[0] = NO_STEP
    plan.unused[1] = len(plan.first)
    for node in range(len(plan.first)):
        plan.first[node] = node
        plan.steps[node].start_ms = now_ms
        plan.steps[node].next = NO_STEP
        for column in range(plan.amounts.shape[1]):
            plan.amounts[node, column] = plan.nodes.total[node, column]


@kernel
def advance_nodes(plan: NodePlan, now_ms: Int) -> None:
    """Drop the steps that ended before now."""
    for node in range(len(plan.first)):
        number = plan.first[node]
        after = plan.steps[number].next
        while after != NO_STEP and plan.steps[after].start_ms <= now_ms:
            _drop_step(plan, number)
            number = after
            after = plan.steps[number].next
        plan.first[node] = number
        plan.steps[number].start_ms = max(plan.steps[number].start_ms, now_ms)


@kernel_part
def _drop_step(plan: NodePlan, number: Int) -> None:
    plan.steps[number].next = plan.unused[0]
    plan.unused[0] = number


@kernel_part
def _step_after(plan: NodePlan, number: Int, start_ms: Int) -> Int:
    """Insert a step after the step ``number``, with the same amounts; return the new step."""
    new = plan.unused[0]
    if new == NO_STEP:
        new = plan.unused[1]
        plan.unused[1] += 1
    else:
        plan.unused[0] = plan.steps[new].next
    plan.steps[new].start_ms = start_ms
    plan.steps[new].next = plan.steps[number].next
    plan.steps[number].next = new
    for column in range(plan.amounts.shape[1]):
        plan.amounts[new, column] = plan.amounts[number, column]
    return new


@kernel_part
def _step_before(plan: NodePlan, node: Int, when_ms: Int) -> Int:
    """Return the step of a node at a time; its first step for earlier times."""
    number = plan.first[node]
    after = plan.steps[number].next
    while after != NO_STEP and plan.steps[after].start_ms <= when_ms:
        number = after
        after = plan.steps[number].next
    return number


@kernel_part
def _step_at(plan: NodePlan, node: Int, when_ms: Int) -> Int:
    """Return a node's step that starts at this time, or its first step if that starts later; insert it if necessary."""
    number = _step_before(plan, node, when_ms)
    return number if plan.steps[number].start_ms >= when_ms else _step_after(plan, number, when_ms)


@kernel_part
def _are_equal(plan: NodePlan, a: Int, b: Int) -> bool:
    for column in range(plan.amounts.shape[1]):  # noqa: SIM110  # kernels have no generators
        if plan.amounts[a, column] != plan.amounts[b, column]:
            return False
    return True


@kernel_part
def _join_equal(plan: NodePlan, node: Int, until_ms: Int) -> None:
    """Join steps with the same amounts, up to the step that starts at ``until_ms``."""
    number = plan.first[node]
    after = plan.steps[number].next
    while after != NO_STEP and plan.steps[after].start_ms <= until_ms:
        if _are_equal(plan, number, after):
            plan.steps[number].next = plan.steps[after].next
            _drop_step(plan, after)
        else:
            number = after
        after = plan.steps[number].next


@kernel
def occupy_entries(plan: NodePlan, slot: Int, start_ms: Int, end_ms: Int, sign: Int) -> None:
    """Subtract what a job's entries take between start and end from the plan, or add it back (``sign`` -1)."""
    number = plan.nodes.first[slot]
    while number != NO_ENTRY:
        entry = plan.nodes.entries[number]
        _occupy_node(plan, entry.node, slot, entry.units, start_ms, end_ms, sign)
        number = entry.next


@kernel
def _occupy_node(plan: NodePlan, node: Int, slot: Int, units: Int, start_ms: Int, end_ms: Int, sign: Int) -> None:
    """Subtract a job's units on a node between start and end from the plan; a `RESERVATION` takes the whole node."""
    step, last = _step_at(plan, node, start_ms), _step_at(plan, node, end_ms)
    while step != last:
        for column in range(plan.amounts.shape[1]):
            if slot == RESERVATION:
                taken = plan.nodes.total[node, column]
            else:
                taken = amount(plan.nodes, slot, node, units, column)
            plan.amounts[step, column] -= sign * taken
        step = plan.steps[step].next
    _join_equal(plan, node, end_ms)


@kernel
def keep_reserved(plan: NodePlan, reservations: Records) -> None:
    """Take the nodes of reservations out of the plan, after giving nodes to the reservations that have none.

    Reservations get nodes in the order of their starts (ties: by id): the lowest numbers that are idle throughout.
    There are enough, unless jobs past their time limit hold them.
    """
    for place in range(len(reservations)):
        if _has_nodes(plan, place):
            occupy_reserved(plan, place, reservations[place].start_ms, reservations[place].end_ms)
    for place in range(len(reservations)):
        start_ms, end_ms = reservations[place].start_ms, reservations[place].end_ms
        if not _has_nodes(plan, place):
            choose_reserved(plan, place, reservations[place].width, start_ms, end_ms)
            occupy_reserved(plan, place, start_ms, end_ms)


@kernel
def forget_reserved(plan: NodePlan) -> None:
    """Remove the nodes of the reservations that have not begun, because the plan now counts nodes."""
    for place in range(len(plan.has_begun)):
        if not plan.has_begun[place]:
            plan.reserved[place, :] = False


@kernel_part
def _has_nodes(plan: NodePlan, place: Int) -> bool:
    for node in range(len(plan.first)):  # noqa: SIM110  # kernels have no generators
        if plan.reserved[place, node]:
            return True
    return False


@kernel
def choose_reserved(plan: NodePlan, place: Int, width: Int, start_ms: Int, end_ms: Int) -> None:
    """Choose the idle nodes with the lowest numbers for the reservation at index ``place``; the plan stays as it is."""
    for node in range(len(plan.first)):
        plan.reserved[place, node] = width > 0 and _is_idle(plan, node, start_ms, end_ms)
        width -= plan.reserved[place, node]


@kernel_part
def _is_idle(plan: NodePlan, node: Int, start_ms: Int, end_ms: Int) -> bool:
    """Whether no core of a node is in use between two times."""
    number = _step_before(plan, node, start_ms)
    while number != NO_STEP and plan.steps[number].start_ms < end_ms:
        if plan.amounts[number, CORES] < plan.nodes.total[node, CORES]:
            return False
        number = plan.steps[number].next
    return True


@kernel
def occupy_reserved(plan: NodePlan, place: Int, start_ms: Int, end_ms: Int) -> None:
    """Take a reservation's nodes out of the plan between start and end."""
    for node in range(len(plan.first)):
        if plan.reserved[place, node]:
            _occupy_node(plan, node, RESERVATION, 1, start_ms, end_ms, 1)


@kernel_part
def _look(plan: NodePlan, slot: Int, node: Int, from_ms: Int, length_ms: Int) -> None:
    """Store how many units of a job fit on a node at ``from_ms``, and the next start at which this number changes."""
    plan.units[node], plan.until_ms[node] = 0, NEVER_MS
    if (plan.nodes.kinds[slot] >> plan.nodes.kind[node]) & 1 == 0:
        return
    number = _step_before(plan, node, from_ms)
    after = plan.steps[number].next
    units = units_in_row(plan.nodes, plan.amounts, number, slot, node)
    # More units can fit once the last step with the fewest units has passed.
    until_ms = NEVER_MS if after == NO_STEP else plan.steps[after].start_ms
    while after != NO_STEP:
        number = after
        after = plan.steps[number].next
        here = units_in_row(plan.nodes, plan.amounts, number, slot, node)
        if plan.steps[number].start_ms >= from_ms + length_ms:
            if here < units:
                until_ms = min(until_ms, plan.steps[number].start_ms - length_ms + 1)
                break
            if plan.steps[number].start_ms - length_ms >= until_ms:
                break
        elif here <= units:
            units = here
            until_ms = NEVER_MS if after == NO_STEP else plan.steps[after].start_ms
    plan.units[node] = units
    plan.until_ms[node] = until_ms


@kernel
def earliest_on_nodes(plan: NodePlan, slot: Int, width: Int, from_ms: Int, length_ms: Int, before_ms: Int) -> Int:
    """Return a job's earliest start from ``from_ms`` on, or ``before_ms`` if the job does not fit earlier.

    Also set the job's ``missing``.

    Parameters
    ----------
    plan : NodePlan
    slot : int
        The row of `NodeArrays` that says what the job asks for.
    width : int
        Number of chunks.
    from_ms, length_ms : int
    before_ms : int
        `NEVER_MS` for no bound.
    """
    missing, least_missing = width // plan.nodes.chunks[slot], MANY
    plan.missing[slot] = MANY
    start_ms, next_ms = from_ms, before_ms
    for node in range(len(plan.first)):
        _look(plan, slot, node, from_ms, length_ms)
        missing -= plan.units[node]
        if missing <= 0:
            return from_ms
        next_ms = min(next_ms, plan.until_ms[node])
    while missing > 0:
        least_missing = min(least_missing, missing)
        if next_ms >= before_ms:
            start_ms = before_ms
            break
        start_ms, next_ms = next_ms, before_ms
        for node in range(len(plan.first)):
            if plan.until_ms[node] == start_ms:
                missing += plan.units[node]
                _look(plan, slot, node, start_ms, length_ms)
                missing -= plan.units[node]
            next_ms = min(next_ms, plan.until_ms[node])
    plan.missing[slot] = least_missing
    return start_ms


@kernel
def most_gained(plan: NodePlan, slot: Int, leaving: Int, start_ms: Int, end_ms: Int) -> Int:
    """Return an upper bound on how many more units of a job fit at any start once another job has left the plan.

    Parameters
    ----------
    plan : NodePlan
    slot, leaving : int
        The job that may fit, and the job whose entries were added back between ``start_ms`` and ``end_ms``.
    start_ms, end_ms : int
    """
    nodes = plan.nodes
    gained = np.int64(0)
    number, own = nodes.first[leaving], nodes.first[slot]
    while number != NO_ENTRY:
        node = nodes.entries[number].node
        if (nodes.kinds[slot] >> nodes.kind[node]) & 1:
            # The job itself may hold the node for a part of that time, but would leave it in order to start earlier.
            while own != NO_ENTRY and nodes.entries[own].node < node:
                own = nodes.entries[own].next
            held = nodes.entries[own].units if own != NO_ENTRY and nodes.entries[own].node == node else 0
            added = _units_in_amounts(nodes, slot, leaving, node, nodes.entries[number].units)
            gained += min(added, held + _most_units(plan, slot, node, start_ms, end_ms))
        number = nodes.entries[number].next
    return gained


@kernel_part
def _units_in_amounts(nodes: NodeArrays, slot: Int, leaving: Int, node: Int, units: Int) -> Int:
    """Return an upper bound on how many more units of a job fit on a node once units of another job have left."""
    if nodes.exclusive[slot]:
        return nodes.most[slot]
    added = np.int64(0)
    for column in range(nodes.request.shape[1]):
        needed = nodes.request[slot, column]
        if needed > 0:
            taken = amount(nodes, leaving, node, units, column)
            added = max(added, np.int64((taken + needed - 1) // needed))
    return added


@kernel_part
def _most_units(plan: NodePlan, slot: Int, node: Int, start_ms: Int, end_ms: Int) -> Int:
    """Return the largest number of a job's units that fit on a node at any time between start and end."""
    most: Int = 0
    number = _step_before(plan, node, start_ms)
    while number != NO_STEP and plan.steps[number].start_ms < end_ms:
        most = max(most, units_in_row(plan.nodes, plan.amounts, number, slot, node))
        number = plan.steps[number].next
    return most


@kernel
def hold_planned(plan: NodePlan, slot: Int, width: Int, start_ms: Int, length_ms: Int) -> None:
    """Choose a job's nodes by rule 4 for its planned start, when the job must fit, and store them as entries.

    The plan is not changed, and the job must not have entries yet.
    """
    for node in range(len(plan.first)):
        number = _step_before(plan, node, start_ms)
        after = plan.steps[number].next
        for column in range(plan.amounts.shape[1]):
            plan.least[node, column] = plan.amounts[number, column]
        while after != NO_STEP and plan.steps[after].start_ms < start_ms + length_ms:
            for column in range(plan.amounts.shape[1]):
                plan.least[node, column] = min(plan.least[node, column], plan.amounts[after, column])
            after = plan.steps[after].next
    if choose(plan.nodes, plan.least, slot, width):
        hold_chosen(plan.nodes, slot)
