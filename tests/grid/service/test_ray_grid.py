"""A live grid as actors on Ray: what users and operators do with it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest, Program
from gridweave.site.journal.records import Note
from gridweave.site.machine.agent import OutputRead
from gridweave.site.machine.processes import process_stat
from gridweave.site.service.calls import answer_of, question
from support.machine import PATIENCE_S, the_end, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def a_plan(folder: Path, **changes: Any) -> Any:
    """Return a grid of two sites, four and two nodes, anywhere on the cluster."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan

    plan = GridPlan(
        folder=str(folder),
        sites=(SitePlan(name="north", nodes=4, machines=2), SitePlan(name="south", nodes=2)),
        policy=GridPolicy(mode="multi-site"),
        namespace=folder.name,
        labelled=False,
    )
    return msgspec.structs.replace(plan, **changes)


@pytest.fixture(scope="module")
def grid(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a grid that runs, and take it down after the tests."""
    from gridweave.grid.service.cluster import start_grid

    running = start_grid(a_plan(tmp_path_factory.mktemp("live-grid")), timeout_s=PATIENCE_S)
    yield running
    running.stop()


def shell(text: str, nodes: int = 1, **changes: Any) -> JobRequest:
    """Return a job that runs a line of shell."""
    request = JobRequest(program=Program(argv=("sh", "-c", text), grace_ms=200), nodes=nodes, limit_ms=3_600_000)
    return msgspec.structs.replace(request, **changes)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process hang."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def process_of(grid: Any, actor: str) -> int | None:
    """Return the process of an actor; None: it does not say."""
    try:
        return int(grid.call(actor, "process"))
    except UnavailableError:
        return None


def output(grid: Any, record: JobRecord, machine: str, rank: int) -> str:
    """Return what a rank has printed."""
    data = grid.call(f"agent:{machine}", "ask", "part", question(record.job_id, record.attempt, rank, "out", 0, 10_000))
    part: OutputRead = answer_of(data, msgspec.msgpack.Decoder(OutputRead))
    return part.data.decode()


def test_a_job_wider_than_every_site_runs_on_both(grid: Any) -> None:
    """Its ranks are numbered through, know all sites and one place to meet, and start at one agreed instant."""
    line = "echo $GRIDWEAVE_RANK of $GRIDWEAVE_SIZE at $GRIDWEAVE_SITES via $GRIDWEAVE_RENDEZVOUS"
    (answer,) = grid.submit([("wide", shell(line, nodes=6))])
    record = the_end(grid, answer.job_id)
    assert (record.outcome, record.places) == ("finished", (("north", 4), ("south", 2)))
    machines = {0: "north/m0", 1: "north/m0", 2: "north/m1", 3: "north/m1", 4: "south/m0", 5: "south/m0"}
    lines = [output(grid, record, machine, rank) for rank, machine in machines.items()]
    meeting = {line.split()[-1] for line in lines}
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3", "4", "5"]
    assert all("of 6 at north,south via " in line for line in lines)
    assert len(meeting) == 1
    assert ":" in meeting.pop()


def test_a_repeated_submission_gets_its_first_answer(grid: Any) -> None:
    """Jobs handed in again under the same keys are not doubled."""
    named = [(f"key {number}", shell("true")) for number in range(3)]
    assert grid.submit(named) == grid.submit(named)


def test_the_story_of_a_job_is_told(grid: Any) -> None:
    """What happened to a job can be read: submitted, waited, ran where, ended how."""
    (first, second) = grid.submit([("first", shell("sleep 0.3", nodes=6)), ("second", shell("exit 3", nodes=6))])
    record = the_end(grid, second.job_id)
    assert record.outcome == "failed"
    # The first to fail has that code; the others may have been ended for it.
    assert 3 in {code for _, code, _ in record.exit_codes}
    data = grid.call("grid", "ask", "history", question(second.job_id))
    kinds = [note.kind for note in answer_of(data, msgspec.msgpack.Decoder(list[Note]))]
    assert kinds[:2] == ["submitted", "waits"]
    assert kinds.count("reserved") >= 2
    assert kinds[-1] == "ended"
    assert the_end(grid, first.job_id).outcome == "finished"


def test_a_running_job_is_cancelled_and_its_nodes_are_free(grid: Any) -> None:
    """A cancelled job ends on all its sites, also one that ignores TERM."""
    (answer,) = grid.submit([("stubborn", shell("trap '' TERM; while :; do sleep 1; done", nodes=6))])
    until(lambda: grid.records([answer.job_id])[0].state == "running")
    done = grid.call("grid", "ask", "apply_action", question("cancel", [answer.job_id], "", None))
    assert answer_of(done, msgspec.msgpack.Decoder(list[int])) == [answer.job_id]
    assert the_end(grid, answer.job_id).outcome == "cancelled"
    (after,) = grid.submit([("after", shell("true", nodes=6))])
    assert the_end(grid, after.job_id).outcome == "finished"


def test_a_job_is_ended_at_its_limit(grid: Any) -> None:
    """A job that runs longer than it may is ended, and says so."""
    (answer,) = grid.submit([("long", shell("sleep 100000", limit_ms=300))])
    assert the_end(grid, answer.job_id).outcome == "limit"


def test_what_can_never_run_is_declined_with_a_reason(grid: Any) -> None:
    """A job wider than the grid, or without a command, is declined in one line; the rest of its batch is taken in."""
    nothing = JobRequest(program=Program(), limit_ms=1000)
    answers = grid.submit([("too wide", shell("true", nodes=7)), ("nothing", nothing), ("good", shell("true"))])
    assert [type(answer) for answer in answers] == [Declined, Declined, Accepted]
    assert answers[0].reason == "it needs 7 nodes and all sites together have 6"
    assert "command is empty" in answers[1].reason


def test_a_second_start_finds_the_grid_that_runs(grid: Any) -> None:
    """Whoever starts the same grid again gets the actors that are there, and loses nothing."""
    from gridweave.grid.service.cluster import start_grid

    (answer,) = grid.submit([("before", shell("true"))])
    again = start_grid(grid.plan, timeout_s=PATIENCE_S)
    assert the_end(again, answer.job_id).outcome == "finished"


def test_a_site_without_a_ray_node_is_named(ray_cluster: None, tmp_path: Path) -> None:
    """Where no Ray node carries the label of a site, the error names the actor that has no place."""
    from gridweave.grid.service.cluster import start_grid

    with pytest.raises(UnavailableError, match="is not ready"):
        start_grid(a_plan(tmp_path, labelled=True), timeout_s=2.0)


def test_a_sites_own_users_need_no_grid(grid: Any) -> None:
    """While the meta-scheduler hangs, jobs of a site's own users run."""
    with stopped(grid.call("grid", "process")):
        (answer,) = grid.submit([("own", shell("true", nodes=2))], site="north")

        def ended() -> list[JobRecord]:
            return [record for record in grid.records([answer.job_id], site="north") if record.state == "ended"]

        assert until(ended)[0].outcome == "finished"


def test_each_site_agent_and_meta_scheduler_is_an_actor_of_ray(grid: Any) -> None:
    """Ray's own list has one line for each of them, by its name."""
    from ray.util import list_named_actors

    listed = {each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == grid.namespace}
    assert listed == {"grid", "site:north", "site:south", "agent:north/m0", "agent:north/m1", "agent:south/m0"}


def test_a_killed_actor_is_restarted_by_ray(grid: Any) -> None:
    """An actor fails by itself: Ray restarts it, and the others go on as they are."""
    before = {name: until(lambda name=name: process_of(grid, name)) for name in grid.actors}
    assert len(set(before.values())) == len(before), "each is a process of its own"
    for killed in ("grid", "site:north", "agent:north/m1"):
        os.kill(before[killed], signal.SIGKILL)
        until(lambda name=killed: process_of(grid, name) not in (None, before[name]))
    now = {name: until(lambda name=name: process_of(grid, name)) for name in grid.actors}
    assert {name for name in now if now[name] != before[name]} == {"grid", "site:north", "agent:north/m1"}
    (answer,) = grid.submit([("after all of it", shell("true", nodes=6))])
    assert the_end(grid, answer.job_id).outcome == "finished"


def test_an_actor_that_ray_kills_leaves_its_journal_free(grid: Any) -> None:
    """Nothing of it is left, so that the one in its place opens the journal and continues."""
    import ray

    before = until(lambda: process_of(grid, "site:south"))
    ray.kill(grid.actors["site:south"], no_restart=False)
    until(lambda: process_of(grid, "site:south") not in (None, before))
    left = process_stat(before)
    assert left is None or left.state == "Z", "it runs on"  # one that has ended waits for Ray to take note
    (answer,) = grid.submit([("with the new one", shell("true", nodes=6))])
    assert the_end(grid, answer.job_id).outcome == "finished"


def test_an_actor_that_was_removed_from_ray_is_made_again_by_the_next_start(grid: Any) -> None:
    """Nobody else restarts it then; it continues from its journal, and the others stay."""
    import ray

    from gridweave.grid.service.cluster import start_grid

    (answer,) = grid.submit([("before it", shell("true", nodes=6))])
    ray.kill(grid.actors["site:south"])
    until(lambda: process_of(grid, "site:south") is None)
    again = start_grid(grid.plan, timeout_s=PATIENCE_S)
    assert again.created == {"site:south"}
    assert the_end(again, answer.job_id).outcome == "finished"
    grid.actors = again.actors
