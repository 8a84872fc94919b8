"""What Slurm's commands print is understood: texts recorded from 22.05, and made up after the manuals of others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.site.batch.slurm.parse import read_sinfo, read_span_ms, read_squeue, read_version, view_of
from gridweave.site.batch.slurm.reasons import ENDED, WAITING, why_waiting
from gridweave.site.batch.slurm.rest import job_of
from gridweave.site.batch.slurm.settings import SlurmSettings
from gridweave.site.batch.system import AllocationRequest, check_request

# Recorded from 22.05.8: squeue -h -a -t all in our format, while a job of four nodes waits for two that are taken.
SQUEUE_22_05 = """\
1|COMPLETED|1795436563|1795436584|2|root|None|wrap
2|COMPLETED|1795436584|1795436604|4|root|None|gw-x-1-1
4|PENDING|1795436673|1795436733|4|root|Resources|gw-x-1-2
5|PENDING|1795436700|1795436760|1|root|Priority|wrap
3|RUNNING|1795436613|1795436673|2|root|None|wrap
"""
SINFO_22_05 = """\
2|planned|infinite
2|allocated|infinite
"""
# Made up after the manuals of newer versions: a reason with nodes, an array, a range of nodes, a name with a bar.
SQUEUE_NEWER = """\
71_[1-9]|PENDING|N/A|N/A|1-4|anna|Priority|sweep
72|PENDING|N/A|N/A|2|bert|ReqNodeNotAvail, UnavailableNodes:n[3-4]|gw-x-7-1
73|NODE_FAIL|1795436613|1795436673|2|bert|None|gw-x-8-1
74|OUT_OF_MEMORY|1795436613|1795436673|1|bert|OutOfMemory|gw-x-9-1
75|RUNNING|1795436613|NONE|1|bert|None|a|b
"""
SINFO_MIXED = """\
3|idle|1-00:00:00
1|down*|1-00:00:00
2|mixed|1-00:00:00
1|drained|1-00:00:00
4|idle~|1-00:00:00
1|idle*|1-00:00:00
"""


def test_a_view_of_a_cluster_at_work() -> None:
    """Ours are told by their names, and the ends and expected starts are those of everybody."""
    view = view_of(read_sinfo(SINFO_22_05, "main"), read_squeue(SQUEUE_22_05), "gw-x-")
    assert (view.nodes, view.idle, view.longest_ms) == (4, 2, None)
    over, waits = view.allocations
    assert (over.name, over.number, over.state) == ("gw-x-1-1", "2", "ended")
    assert (waits.state, waits.start_ms, waits.is_put_off) == ("waiting", 1795436673000, True)
    assert waits.reason == "Slurm has no nodes free for it now (Resources)"
    assert view.busy == (
        (1795436613000, 1795436673000, 2),
        (1795436673000, 1795436733000, 4),
        (1795436700000, 1795436760000, 1),
    )


@pytest.mark.parametrize("reason", ["None", "", "SchedDefer"])
def test_a_job_that_slurm_has_not_looked_at_is_not_put_off(reason: str) -> None:
    """It may start in the next moment."""
    (waits,) = view_of(
        read_sinfo(SINFO_22_05, "main"), read_squeue(f"6|PENDING|N/A|N/A|2|anna|{reason}|gw-x-3-1"), "gw-x-"
    ).allocations
    assert (waits.state, waits.is_put_off) == ("waiting", False)


def test_ends_and_reasons_of_newer_versions() -> None:
    """How a job ended and why one waits is said in plain words, with Slurm's own behind them."""
    partition = read_sinfo(SINFO_MIXED, "main")
    assert (partition.nodes, partition.idle, partition.longest_ms) == (9, 7, 86_400_000)
    view = view_of(partition, read_squeue(SQUEUE_NEWER), "gw-x-")
    said = {allocation.name: (allocation.state, allocation.reason) for allocation in view.allocations}
    assert said == {
        "gw-x-7-1": ("waiting", "nodes that it needs are down, drained or reserved (n[3-4]) (ReqNodeNotAvail)"),
        "gw-x-8-1": ("ended", "a node failed under it (NODE_FAIL)"),
        "gw-x-9-1": ("ended", "it used more memory than Slurm gave it (OUT_OF_MEMORY)"),
    }
    assert [allocation.end for allocation in view.allocations] == ["", "lost", "memory"]
    assert view.busy == ()


def test_reasons_are_one_plain_line_each() -> None:
    """No reason is empty, ends with a stop, or is Slurm's word alone; those that are not known are told as they are."""
    for word, plain in (WAITING | {word: plain for word, (_, plain) in ENDED.items()}).items():
        assert re.fullmatch(r"[a-zA-Z][^\n]{9,}[^.\s]", plain), word
        assert word not in plain
    assert why_waiting("AssocGrpCpuLimit") == "its account has a limit that is reached (AssocGrpCpuLimit)"


# As job_state_reason_string prints them: the library of 22.05.8, and, from SchedDefer on, what later versions added.
REASONS = """\
None Prolog Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown PartitionInactive
JobHeldAdmin JobHeldUser BeginTime Licenses AssociationJobLimit AssociationResourceLimit AssociationTimeLimit
Reservation ReqNodeNotAvail FrontEndDown NodeDown BadConstraints SystemFailure JobLaunchFailure NonZeroExitCode
RaisedSignal TimeLimit InactiveLimit InvalidAccount InvalidQOS QOSUsageThreshold QOSJobLimit QOSResourceLimit
QOSTimeLimit Cleaning QOSNotAllowed AccountNotAllowed DependencyNeverSatisfied QOSGrpCpuLimit QOSMinCpuNotSatisfied
QOSMaxWallDurationPerJobLimit QOSGrpMemoryRunMinutes AssocGrpGRESRunMinutes AssocMaxJobsLimit AssocMaxBBMinutesPerJob
JobHoldMaxRequeue JobArrayTaskLimit BurstBufferResources BurstBufferStageIn BurstBufferOperation DeadLine
MaxBBPerAccount MaxSubmitJobsPerAccount PartitionConfig AccountingPolicy FedJobLock OutOfMemory MaxMemPerLimit
ReservationDeleted SchedDefer ReservationInvalid Constraints MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser
MaxPoweredUpNodes MpiPortsBusy
"""


def test_every_reason_of_every_version_is_known() -> None:
    """None is told as a word that is not understood; one with a signal and its number is known as well."""
    for word in REASONS.split():
        assert not why_waiting(word).startswith("Slurm gives the reason"), word
    assert why_waiting("MaxBBPerAccount") == "its account has a limit that is reached (MaxBBPerAccount)"
    assert why_waiting("MaxCpuRunMinsPerUser") == "its user has a limit that is reached (MaxCpuRunMinsPerUser)"
    assert why_waiting("RaisedSignal:9(Killed)") == WAITING["RaisedSignal"]
    assert why_waiting("Maximal") == "Slurm gives the reason Maximal"


def test_the_page_has_every_word() -> None:
    """docs/slurm.md lists what is told for each of Slurm's words, as it is told, and drills that are there."""
    page = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()
    for word, plain in (WAITING | {word: plain for word, (_, plain) in ENDED.items()}).items():
        assert f"| `{word}` | {plain} |" in page, word
    drills = re.findall(r"\| `(test_\w+)` \|", page)
    tests = Path(__file__).parents[2]
    texts = [path.read_text() for place in ("site", "grid/control") for path in sorted((tests / place).rglob("*.py"))]
    assert len(drills) >= 20
    assert not [drill for drill in drills if not any(f"def {drill}(" in text for text in texts)]


@pytest.mark.parametrize("text", ["1|idle%|1:00", "1|idle!|1:00", "1|powering_down|1:00", "1|blocked|1:00"])
def test_nodes_that_are_in_between_are_there_and_not_free(text: str) -> None:
    """States of newer versions: a node is powered down, or kept free by Slurm for a job on its neighbours."""
    partition = read_sinfo(text, "main")
    assert (partition.nodes, partition.idle) == (1, 0)


def test_a_job_whose_nodes_are_powered_up_has_them() -> None:
    """As one that is being configured; one that Slurm has put back waits, whatever it calls that."""
    lines = [f"{number}|{state}|N/A|N/A|1|anna|None|gw-x-{number}-1" for number, state in enumerate(
        ["POWER_UP_NODE", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "LAUNCH_FAILED", "EXPEDITING"], start=1
    )]  # fmt: skip
    view = view_of(read_sinfo("1|idle|1:00", "main"), read_squeue("\n".join(lines)), "gw-x-")
    assert [each.state for each in view.allocations] == ["running"] * 2 + ["waiting"] * 4


@pytest.mark.parametrize(("text", "span_ms"), [
    ("30", 1_800_000), ("1:00", 60_000), ("2:03:04", 7_384_000), ("1-2", 93_600_000), ("1-02:03", 93_780_000),
    ("3-00:00:01", 259_201_000), ("UNLIMITED", None), ("infinite", None), ("N/A", None), ("", None),
])  # fmt: skip
def test_time_limits_are_read(text: str, span_ms: int | None) -> None:
    """Slurm's ways to write a span, as its manual lists them."""
    assert read_span_ms(text) == span_ms


@pytest.mark.parametrize(("read", "kind", "said"), [
    (lambda: read_sinfo("", "gpu"), InputError, "partition 'gpu': this cluster has none of that name"),
    (lambda: read_sinfo("x|idle|1:00", "gpu"), UnavailableError, "sinfo printed what is not understood: 'x|idle|1:00'"),
    (lambda: read_squeue("slurm_load_jobs error"), UnavailableError, "squeue printed what is not understood"),
    (lambda: read_version("bash: sinfo"), InputError, "which is not a version of Slurm"),
    (lambda: SlurmSettings(partition="a b"), OptionError, "partition: 'a b' is the name of none"),
    (lambda: SlurmSettings(partition="p", options=("--wrap=rm",)), OptionError, "options: 'wrap' is not an option"),
    (lambda: check_request(AllocationRequest(name="a b", nodes=1, length_ms=1, script="")), OptionError, "'a b'"),
    (lambda: check_request(AllocationRequest(name="a", nodes=0, length_ms=1, script="")), OptionError, "at least 1"),
])  # fmt: skip
def test_what_is_not_understood_is_said_in_one_line(read: object, kind: type[GridweaveError], said: str) -> None:
    """One line, and the error tells whether it may pass."""
    assert callable(read)
    with pytest.raises(kind, match=re.escape(said)) as caught:
        read()
    assert "\n" not in str(caught.value)


def test_whose_allocations_are() -> None:
    """Those of the account of the site are its own; others are told by their accounts."""
    view = view_of(read_sinfo(SINFO_22_05, "main"), read_squeue(SQUEUE_22_05), "gw-x-", "root")
    assert {each.runs_as for each in view.allocations} == {""}
    view = view_of(read_sinfo(SINFO_22_05, "main"), read_squeue(SQUEUE_22_05), "gw-x-", "site")
    assert {each.runs_as for each in view.allocations} == {"root"}


def test_the_shapes_of_a_job_over_slurmrestd() -> None:
    """Plain values up to v0.0.38; from v0.0.39 on numbers that may be unset, and a list of variables."""
    settings = SlurmSettings(
        partition="main", qos="low", submit="rest", rest="unix:/x", tokens="/t", options=("nice=5",)
    )
    request = AllocationRequest(
        name="gw-1", nodes=3, length_ms=90_000, script="x", folder="/f", comment="c", options=("constraint=fast",)
    )
    old, new = (job_of(request, settings, version, {"A": "b"}) for version in ("v0.0.38", "v0.0.40"))
    both = {"name": "gw-1", "partition": "main", "tasks_per_node": 1, "requeue": False, "comment": "c", "qos": "low"}
    both |= {"current_working_directory": "/f", "standard_output": "/f/gw-1.log", "nice": 5, "constraints": "fast"}
    plain = {"nodes": 3, "exclusive": "exclusive", "time_limit": 2, "environment": {"A": "b"}}
    assert old == {"script": "x", "job": both | plain}
    limit = {"set": True, "infinite": False, "number": 2}
    kept = {"minimum_nodes": 3, "maximum_nodes": 3, "shared": ["none"], "time_limit": limit, "environment": ["A=b"]}
    assert new == {"script": "x", "job": both | kept}
