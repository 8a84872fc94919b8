"""Packed arrays at a site and in the grid: what is lost runs again, without what had ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.site.array_tasks import ArrayTask, Ranges
from gridweave.site.job import ArrayPlace, JobRecord, JobRequest, Program, request_problem
from gridweave.site.messages import Machine, MachineForgotten, RunEnded, RunStarted, StartRun, UserSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite

OWN = 1_000_000_000_001


def packed(array_tasks: Ranges, nodes: int = 1) -> JobRequest:
    """Return a request for the job of a packed array."""
    array = ArrayPlace(name="sweep", index=array_tasks[0][0], array_tasks=array_tasks)
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1000, array=array)


def over(index: int, code: int = 0) -> ArrayTask:
    """Return what became of an element."""
    return ArrayTask(index, code, None, 0, 1, 1, 1, 0, (0, 0), (0, 0))


def site() -> LiveSite:
    """Return a site of two machines with two nodes each."""
    machines = (Machine(name="a", nodes=2), Machine(name="b", nodes=2))
    return LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=SitePolicy()))


def starts(core: LiveSite, now_ms: int, *events: Any) -> list[tuple[str, Ranges | None, int]]:
    """Return what the machines are to run: who, which elements, at which attempt."""
    commands = core.handle(now_ms, *events)
    core.check_invariants()
    launched = [command for command in commands if isinstance(command, StartRun)]
    return [(each.machine, each.launch.array_tasks, each.launch.attempt) for each in launched]


def record(core: LiveSite) -> JobRecord:
    """Return what is known of the job."""
    return core.registry.records[OWN]


def ended(machine: str, outcome: Any, *array_tasks: ArrayTask, attempt: int = 1, **more: Any) -> RunEnded:
    """Return that a machine runs nothing of the job any more."""
    return RunEnded(machine, OWN, attempt, outcome, array_tasks=array_tasks, **more)


def test_machines_share_the_elements_and_one_that_fails_ends_nobody() -> None:
    """Each machine has its part by its ranks; the end of the job is that of all elements."""
    core = site()
    assert starts(core, 0, UserSubmitted("key", packed(((1, 10),), 3))) == [("a", ((1, 7),), 1), ("b", ((7, 10),), 1)]
    core.handle(1, ended("b", "failed", over(7), over(8, 2), over(9), reason="1 element failed: 8 (exit code 2)"))
    assert record(core).state == "starting"
    core.handle(2, ended("a", "finished", *map(over, range(1, 7))))
    found = record(core)
    assert (found.outcome, found.reason) == ("failed", "1 element failed: 8 (exit code 2)")
    assert sorted(element.index for element in found.array_tasks) == list(range(1, 10))
    assert found.left() == ()


def test_what_was_lost_runs_again_without_what_had_ended() -> None:
    """The next attempt has the elements that are left; one that failed before still counts at the end."""
    core = site()
    starts(core, 0, UserSubmitted("key", packed(((1, 6),))))
    again = starts(core, 5, ended("a", "lost", over(1), over(2, 1), interrupted=(3,), reason="killed"))
    assert again == [("a", ((3, 6),), 2)]
    assert record(core).interrupted == (3,)
    core.handle(9, ended("a", "finished", over(3), over(4), over(5), attempt=2))
    found = record(core)
    assert (found.outcome, found.reason, found.attempt) == ("failed", "1 element failed: 2 (exit code 1)", 2)


def test_of_a_machine_that_is_gone_for_good_all_elements_may_have_run() -> None:
    """Nothing is known of them, so all run again, and all count as interrupted."""
    core = site()
    starts(core, 0, UserSubmitted("key", packed(((4, 7),))))
    core.handle(1, RunStarted("a", OWN, 1))
    assert starts(core, 2, MachineForgotten("a")) == [("a", ((4, 7),), 2)]
    assert record(core).interrupted == (4, 5, 6)


def test_what_was_lost_after_its_last_element_has_finished() -> None:
    """A job whose elements have all ended does not run again."""
    core = site()
    starts(core, 0, UserSubmitted("key", packed(((1, 3),))))
    assert starts(core, 5, ended("a", "lost", over(1), over(2), reason="killed")) == []
    assert (record(core).state, record(core).outcome) == ("ended", "finished")


@pytest.mark.parametrize("array_tasks", [((3, 3),), ((5, 7), (6, 9)), ((0, 10_001),), ((1, 3), (2**31, 2**31 + 1))])
def test_elements_that_no_job_has_are_refused(array_tasks: Ranges) -> None:
    """Ranges that are empty, overlap or hold too many are named."""
    assert "elements" in (request_problem(packed(array_tasks)) or "")


def test_a_record_is_kept_as_it_is() -> None:
    """What became of the elements is in the record, as it goes into a journal."""
    found = JobRecord(
        job_id=1, request=packed(((1, 3),)), submit_ms=0, array_tasks=(over(1), over(2, 4)), interrupted=(2,)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=JobRecord) == found
