"""What slurmrestd answers is understood: recorded from 22.05, 24.11 and 26.05, beside what the commands printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridweave.errors import InputError
from gridweave.slurm.cluster.answers import (
    Answer,
    JobsAnswer,
    NodesAnswer,
    PartitionsAnswer,
    has_hidden_jobs,
    partition_named,
    queue_from,
)
from gridweave.slurm.cluster.look import check_version
from gridweave.slurm.cluster.parse import read_sinfo, read_squeue, view_of
from gridweave.slurm.cluster.slurmrestd import VERSIONS
from support.slurm import view_in

DATA = Path(__file__).parents[1] / "data" / "slurm"
RECORDED = {
    path.stem.removeprefix("seen-"): msgspec.json.decode(path.read_bytes()) for path in sorted(DATA.glob("seen-*.json"))
}
"""By version of Slurm: the lines of ``squeue`` and ``sinfo``, and the answers of each version of the interface."""

CASES = [(slurm, version) for slurm, told in RECORDED.items() for version in told if version.startswith("v")]


def recorded(slurm: str, version: str) -> tuple[JobsAnswer, NodesAnswer, PartitionsAnswer]:
    """Return the recorded answers of a version of the interface."""
    told = RECORDED[slurm][version]
    return (
        msgspec.convert(told["jobs"], JobsAnswer),
        msgspec.convert(told["nodes"], NodesAnswer),
        msgspec.convert(told["partition"], PartitionsAnswer),
    )


@pytest.mark.parametrize(("slurm", "version"), CASES)
def test_either_way_sees_the_same(slurm: str, version: str) -> None:
    """At one moment the commands and each version of the interface tell of the same cluster, to the last word."""
    assert version in VERSIONS
    jobs, nodes, partitions = recorded(slurm, version)
    printed = "\n".join(RECORDED[slurm]["sinfo"]), "\n".join(RECORDED[slurm]["squeue"])
    want = view_in(*printed, "gw-", "root")
    seen = partition_named(partitions.partitions, nodes.nodes, "main")
    # The lines were recorded for one partition, and without the names of nodes.
    queue = [job for job in queue_from(jobs.jobs) if job.partition == "main"]
    seen = msgspec.structs.replace(seen, taken=frozenset())
    assert view_of(seen, queue, "main", "gw-", "root") == want
    assert {"running", "ended"} <= {each.state for each in want.allocations}
    assert jobs.release.startswith(slurm)
    check_version(jobs.release)
    assert not has_hidden_jobs(queue_from(jobs.jobs), nodes.nodes)
    assert has_hidden_jobs([], nodes.nodes)


@pytest.mark.parametrize("answers", ["named-22.05", "named-made-up"])
def test_jobs_of_other_partitions_are_counted_by_the_names_of_their_nodes(answers: str) -> None:
    """A partition has a node that a job of another one has: slurmrestd tells of it as the commands do."""
    printed, given = (msgspec.json.decode((DATA / f"{name}.json").read_bytes()) for name in ("named-22.05", answers))
    queue = queue_from(msgspec.convert(given["jobs"], JobsAnswer).jobs)
    nodes = msgspec.convert(given["nodes"], NodesAnswer).nodes
    partitions = msgspec.convert(given["partition"], PartitionsAnswer).partitions
    view = view_of(partition_named(partitions, nodes, "main"), queue, "main", "gw-", "root")
    by_commands = read_squeue("\n".join(printed["squeue"]))[0]
    assert view == view_of(read_sinfo("\n".join(printed["sinfo"]), "main"), by_commands, "main", "gw-", "root")
    assert [each[2] for each in view.busy] == [2, 1, 3]
    (other,) = (job for job in queue if job.partition == "wide")
    assert (other.start_ms, other.end_ms, 1) == view.busy[1]


def told(kind: type[Any], **given: object) -> Any:
    """Return an answer as it would be read."""
    return msgspec.convert(given, kind)


@pytest.mark.parametrize(("told_by", "longest_ms"), [
    ({"max_time_limit": 60}, 3_600_000), ({"max_time_limit": None}, None), ({"max_time_limit": -1}, None),
    ({"maximums": {"time": {"set": True, "infinite": False, "number": 60}}}, 3_600_000),
    ({"maximums": {"time": {"set": False, "infinite": True, "number": 0}}}, None),
    ({"maximums": {"time": 60}}, 3_600_000),
])  # fmt: skip
def test_the_limit_of_a_partition(told_by: dict[str, object], longest_ms: int | None) -> None:
    """A number may be plain, or an object; what is not set or has no end is no limit."""
    partitions = told(PartitionsAnswer, partitions=[{"name": "main", **told_by}]).partitions
    assert partition_named(partitions, [], "main").longest_ms == longest_ms


@pytest.mark.parametrize(("state", "flags", "counted"), [
    ("idle", [], (1, 1)), ("idle", ["PLANNED"], (1, 1)), ("idle", ["POWERED_DOWN"], (1, 1)),
    ("allocated", [], (1, 0)), (["MIXED", "PLANNED"], [], (1, 0)), (["IDLE", "COMPLETING"], [], (1, 0)),
    ("idle", ["RESERVED"], (1, 0)), (["IDLE", "POWERING_DOWN"], [], (1, 0)), (["IDLE", "BLOCKED"], [], (1, 0)),
    ("idle", ["DRAIN"], (0, 0)), (["ALLOCATED", "DRAIN"], [], (0, 0)), (["IDLE", "NOT_RESPONDING"], [], (0, 0)),
    (["IDLE", "MAINTENANCE"], [], (0, 0)), (["DOWN"], [], (0, 0)), (["IDLE", "REBOOT_ISSUED"], [], (0, 0)),
])  # fmt: skip
def test_states_of_nodes(state: object, flags: list[str], counted: tuple[int, int]) -> None:
    """How many nodes run jobs or could, and how many nobody has."""
    nodes = told(
        NodesAnswer, nodes=[{"state": state, "state_flags": flags, "partitions": ["main"]}, {"state": "idle"}]
    ).nodes
    partition = partition_named(told(PartitionsAnswer, partitions=[{"name": "main"}]).partitions, nodes, "main")
    assert (partition.nodes, partition.idle) == counted


@pytest.mark.parametrize(("state", "shown"), [
    (["RUNNING", "CONFIGURING"], "CONFIGURING"), (["COMPLETED", "COMPLETING"], "COMPLETING"), ("RUNNING", "RUNNING"),
    (["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"), (["FAILED", "LAUNCH_FAILED"], "FAILED"), ([], ""),
])  # fmt: skip
def test_the_state_that_counts_of_several(state: object, shown: str) -> None:
    """That which squeue shows; what is not known of a job is nothing that stops the others from being seen."""
    (job,) = queue_from(told(JobsAnswer, jobs=[{"job_id": 7, "job_state": state, "user_id": 1000}]).jobs)
    assert (job.number, job.state, job.user, job.nodes, job.start_ms) == ("7", shown, "1000", 1, None)


@pytest.mark.parametrize("error", [
    {"error": "Invalid partition name specified", "errno": 2000},
    {"description": "Unable to find partition nope", "error_number": 9000, "error": "Query empty"},
])  # fmt: skip
def test_a_partition_that_is_not_there(error: dict[str, object]) -> None:
    """Slurm 22.05 and 24.11 have an error for it, 26.05 has none; one line either way."""
    said = told(PartitionsAnswer, partitions=[], errors=[error])
    assert said.errors[0].number in (2000, 9000)
    with pytest.raises(InputError, match=r"^partition 'nope': this cluster has none of that name$"):
        partition_named(said.partitions, [], "nope")


def test_what_slurmrestd_says_is_wrong() -> None:
    """One line, each thing once, whatever the errors are called."""
    errors = [{"error": "Access/permission\ndenied", "description": "no", "error_number": 2002}, {"error_code": 7}]
    assert told(Answer, errors=[*errors, errors[0]]).error_text == "no: Access/permission denied"
    assert told(Answer, errors=[{}]).error_text == "it says nothing"
    assert [each.number for each in told(Answer, errors=errors).errors] == [2002, 7]
