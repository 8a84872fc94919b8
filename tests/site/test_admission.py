"""Who is let into the queue under maxima: as a slow second writing of the rule has it, after anything that happens."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.admission import AdmissionQueue, AdmissionState, Ask, GroupName, GroupSet
from gridweave.site.quotas import Quota, Quotas, node_s_of

HOUR_MS = 3_600_000
SMALL = st.integers(1, 4)


class Slow:
    """The rule as docs/quotas.md says it, over all jobs each time, from lists that are never tidied."""

    def __init__(self) -> None:
        self.quotas = Quotas()
        self.jobs: dict[int, tuple[GroupSet, Ask]] = {}
        self.standing: set[int] = set()
        self.inside: set[int] = set()
        self.used: list[tuple[GroupSet, int, int]] = []

    def room(self, now_ms: int, name: GroupName, ask: Ask) -> bool:
        """Return whether a group has room for a job."""
        mine = [self.jobs[job_id][1] for job_id in self.inside if name in self.jobs[job_id][0]]
        if name[0] == "array":
            return not ask.at_once or len(mine) < ask.at_once
        most = self.quotas.of(name[0], name[1])
        if most.running_jobs is not None and len(mine) >= most.running_jobs:
            return False
        nodes = sum(other.nodes for other in mine)
        if most.running_nodes is not None and mine and nodes + ask.nodes > most.running_nodes:
            return False
        counted = sum(node_s for lane, until_ms, node_s in self.used if name in lane and until_ms > now_ms)
        counted += sum(other.node_s for other in mine)
        return most.node_hours is None or not counted or counted + ask.node_s <= most.node_s

    def move(self, now_ms: int) -> list[int]:
        """Let in who may go in."""
        let_in: list[int] = []
        while True:
            shut: set[GroupName] = set()
            before = len(let_in)
            for job_id in sorted(self.standing):
                lane, ask = self.jobs[job_id]
                shut |= {name for name in lane if not self.room(now_ms, name, ask)}
                if shut.isdisjoint(lane):
                    self.standing.discard(job_id)
                    self.inside.add(job_id)
                    let_in.append(job_id)
            if len(let_in) == before:
                return sorted(let_in)


def maximum(numbers: tuple[int | None, int | None, int | None]) -> Quota:
    """Return a maximum of jobs, nodes and node-hours under way."""
    jobs, nodes, hours = numbers
    return Quota(running_jobs=jobs, running_nodes=nodes, node_hours=hours, window_hours=10)


MAXIMUM = st.tuples(*[st.none() | SMALL] * 3).map(maximum)
MAXIMA = st.builds(
    lambda each, anna, physics: Quotas(each_user=each, users={"anna": anna}, each_account=physics),
    MAXIMUM,
    MAXIMUM,
    MAXIMUM,
)
LANES = st.sampled_from(
    [
        (("user", "anna", ""),),
        (("user", "bert", ""),),
        (("user", "anna", ""), ("account", "physics", "")),
        (("user", "bert", ""), ("account", "physics", "")),
        (("array", "anna", "a"), ("user", "anna", "")),
    ]
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["stand", "stand", "stand", "end", "end", "step out", "wait", "set"]),
        LANES,
        SMALL,
        SMALL,
        SMALL,
        MAXIMA,
    ),
    max_size=40,
)


@given(STEPS)
def test_lines_let_in_whom_the_rule_lets_in(steps: list[Any]) -> None:
    """After each event the same jobs are inside as in the slow writing, also when the state was written and read."""
    lines, slow, now_ms = AdmissionQueue(), Slow(), 0
    for number, (what, lane, nodes, hours, at_once, quotas) in enumerate(steps, 1):
        if what == "stand":
            ask = Ask(nodes, node_s_of(nodes, hours * HOUR_MS), at_once if lane[0][0] == "array" else 0)
            lines.came(lane)
            slow.jobs[number] = lane, ask
            slow.standing.add(number)
            lines.stand(number, lane, ask)
        elif what == "end" and slow.inside:
            job_id = min(slow.inside)
            its, ask = slow.jobs[job_id]
            used_s = node_s_of(ask.nodes, hours * HOUR_MS // 2)
            slow.inside.discard(job_id)
            # A window of 10 h has parts of 6 minutes, of which all these times are multiples.
            counted = tuple(name for name in its if name[0] != "array" and slow.quotas.of(*name[:2]).node_hours)
            slow.used.append((counted, now_ms + 10 * HOUR_MS, used_s))
            lines.leave(its, ask, now_ms, used_s)
            lines.over(job_id, its)
        elif what == "step out" and slow.standing:
            job_id = max(slow.standing)
            slow.standing.discard(job_id)
            lines.step_out(job_id)
            lines.over(job_id, slow.jobs[job_id][0])
        elif what == "wait":
            now_ms += hours * HOUR_MS
        elif what == "set":
            lines.change(quotas)
            slow.quotas = quotas
        assert sorted(lines.move(now_ms)) == slow.move(now_ms)
        assert {job_id for job_id in slow.jobs if job_id in lines} == slow.standing
        lines.check_invariants(now_ms)
        fresh = AdmissionQueue()
        fresh.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(lines.state()), type=AdmissionState))
        lines = fresh


def test_time_alone_lets_jobs_in_when_node_hours_leave_the_window() -> None:
    """Whoever waits for node-hours is to be looked at again when the first that were used count no more."""
    lines, lane, ask = AdmissionQueue(), (("user", "anna", ""),), Ask(2, 2 * 3600, 0)
    lines.change(Quotas(each_user=Quota(node_hours=3, window_hours=10)))
    lines.came(lane)
    lines.enter(lane, ask)
    lines.leave(lane, ask, HOUR_MS, 2 * 3600)
    lines.came(lane)
    lines.stand(2, lane, ask)
    assert lines.move(HOUR_MS) == []
    due_ms = lines.next_wakeup_ms()
    assert due_ms == 11 * HOUR_MS
    assert lines.move(due_ms - 1) == []
    assert lines.move(due_ms) == [2]
    assert lines.next_wakeup_ms() is None
