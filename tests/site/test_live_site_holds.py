"""Held jobs of a site's own users: by a wish, by others that they wait for, by their array."""

from __future__ import annotations

from typing import Any

from gridweave.site.eligibility import Past
from gridweave.site.job import OWN_IDS, After, ArrayPlace, Declined, JobRequest, Noted, Program, RecordEnded
from gridweave.site.messages import (
    JobAction,
    Machine,
    RunEnded,
    RunStarted,
    StartRun,
    UserSubmitted,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from support.stepping import do

FIRST = OWN_IDS + 1


def site() -> LiveSite:
    """Return a site of one machine with two nodes."""
    machine = Machine(name="a", nodes=2, ports=(2000, 2009))
    return LiveSite(SiteSettings(name="north", number=0, machines=(machine,), policy=SitePolicy()))


def own(nodes: int = 1, *, key: str = "key", past: tuple[Past, ...] = (), **more: Any) -> UserSubmitted:
    """Return the submission of a job of anna's."""
    options: dict[str, Any] = {"limit_ms": 1000, "user": "anna"} | more
    return UserSubmitted(key, JobRequest(program=Program(argv=("true",)), nodes=nodes, **options), "anna", past)


def of(commands: list[Any], *kinds: type) -> list[Any]:
    """Return the commands of some kinds."""
    return [command for command in commands if isinstance(command, kinds)]


def states(core: LiveSite) -> list[str]:
    """Return the states of all jobs."""
    return [record.state for record in core.registry.records.values()]


def test_a_held_job_starts_when_it_is_released() -> None:
    """No machine hears of it before; the story says who has asked, what keeps it, and when it goes."""
    core = site()
    commands = do(core, 0, own(hold=True))
    assert of(commands, StartRun) == []
    commands += do(core, 5, JobAction("release", (FIRST,), "bert"))
    assert len(of(commands, StartRun)) == 1
    assert [(note.kind, note.detail) for note in of(commands, Noted)] == [
        ("submitted", "to north, 1 node, by anna"),
        ("kept", "is held by its user"),
        ("release", "on request, by bert"),
        ("queued", ""),
        ("starting", "on a of north"),
    ]


def test_a_waiting_job_is_taken_out_of_the_queue_and_comes_back() -> None:
    """Others start in its stead; one that has nodes is not held; the number of its attempt goes on after a loss."""
    core = site()
    do(core, 0, own(2), own(2, key="b"), own(1, key="c"))
    do(core, 1, JobAction("hold", (FIRST, FIRST + 1, 77)))
    assert states(core) == ["starting", "held", "waiting"]
    assert not core.registry.eligibility.is_wished(FIRST)
    do(core, 2, RunEnded("a", FIRST, 1, "finished"))
    assert states(core) == ["ended", "held", "starting"]
    do(
        core,
        3,
        JobAction("hold", (FIRST + 1,)),
        JobAction("release", (FIRST + 1,)),
        JobAction("hold", (FIRST + 1,)),
        JobAction("release", (FIRST + 1,)),
    )
    assert states(core) == ["ended", "waiting", "starting"]
    do(core, 4, RunEnded("a", FIRST + 2, 1, "lost"))
    do(core, 5, JobAction("hold", (FIRST + 2,)))
    assert states(core)[1:] == ["starting", "held"]
    do(core, 6, RunEnded("a", FIRST + 1, 1, "finished"))
    (start,) = of(do(core, 7, JobAction("release", (FIRST + 2,))), StartRun)
    assert start.launch.attempt == 2


def test_a_job_is_held_and_released_in_one_instant() -> None:
    """What is asked for at last counts, and the queue has the job once."""
    core = site()
    do(core, 0, own(2), own(2, key="b"))
    do(core, 1, JobAction("hold", (FIRST + 1,)), JobAction("release", (FIRST + 1,)))
    assert states(core) == ["starting", "waiting"]
    do(core, 2, JobAction("hold", (FIRST + 1,)), JobAction("release", (FIRST + 1,)), JobAction("cancel", (FIRST + 1,)))
    assert states(core) == ["starting", "ended"]


def test_a_job_waits_for_others_and_in_vain() -> None:
    """It starts when they have started or ended as it wants; if that can be no more it is cancelled, and says why."""
    core = site()
    do(core, 0, own(2, key="before"), own(1))
    other = FIRST + 1
    does = [After(job_id=other, has=has) for has in ("started", "finished", "failed")]  # type: ignore[arg-type]
    do(core, 1, *(own(1, key=after.has, after=(after,)) for after in does))
    assert states(core) == ["starting", "waiting", "held", "held", "held"]
    do(core, 2, RunEnded("a", FIRST, 1, "finished"))
    assert states(core)[1:] == ["starting", "starting", "held", "held"]
    do(core, 3, RunStarted("a", other, 1))
    assert states(core)[1:] == ["running", "starting", "held", "held"]
    commands = do(core, 4, RunEnded("a", other, 1, "failed", "exit code 3"))
    assert states(core)[1:] == ["ended", "starting", "ended", "starting"]
    kept = {ended.record.job_id: ended.record for ended in of(commands, RecordEnded)}
    assert sorted(kept) == [other, FIRST + 3]
    reason = f"it waited until job {other} has finished, but that job has ended: failed"
    assert (kept[FIRST + 3].outcome, kept[FIRST + 3].reason) == ("cancelled", reason)


def test_what_cannot_be_waited_for_and_what_never_fits_is_declined() -> None:
    """Unknown jobs, others' jobs, and held jobs that are too wide; a job that the journal knows is judged by that."""
    core = site()
    do(core, 0, own())
    wrong = [
        own(key="unknown", after=(After(job_id=7),)),
        own(key="foreign", user="bert", after=(After(job_id=FIRST),)),
        own(3, key="wide", hold=True),
    ]
    assert [answer.key for answer in of(do(core, 1, *wrong), Declined)] == ["unknown", "foreign", "wide"]
    old = Past(FIRST + 900, "anna", True, "finished")
    do(core, 2, own(key="old", after=(After(job_id=old.job_id),), past=(old,)))
    assert states(core) == ["starting", "starting"]


def test_ranks_know_their_place_in_the_array() -> None:
    """So many are under way as may be, and each is told its index, whatever its environment says."""
    core = site()
    program = Program(argv=("true",), environment={"A": "b", "GRIDWEAVE_ARRAY_INDEX": "9"})
    sweep = [
        UserSubmitted(
            str(index),
            JobRequest(program=program, limit_ms=9, array=ArrayPlace(name="sweep", index=index, at_once=1)),
        )
        for index in (4, 6)
    ]
    (start,) = of(do(core, 0, *sweep), StartRun)
    assert start.launch.environment == {"A": "b", "GRIDWEAVE_ARRAY": "sweep", "GRIDWEAVE_ARRAY_INDEX": "4"}
    (start,) = of(do(core, 1, RunEnded("a", FIRST, 1, "finished")), StartRun)
    assert start.launch.environment["GRIDWEAVE_ARRAY_INDEX"] == "6"


def test_it_is_known_which_machine_runs_a_rank() -> None:
    """As long as it runs there, of the present attempt."""
    core = site()
    do(core, 0, own(2))
    assert [core.runs.machine_of(FIRST, attempt, rank) for attempt, rank in ((1, 1), (1, 2), (2, 0))] == ["a", "", ""]
    do(core, 1, RunEnded("a", FIRST, 1, "finished"))
    assert core.runs.machine_of(FIRST, 1, 1) == ""
