"""What Slurm's commands print is understood: texts recorded from 22.05, 24.11 and 26.05 (tests/data/slurm)."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.slurm.cluster.answers import NodesAnswer, PartitionsAnswer, partition_named
from gridweave.slurm.cluster.asking import error_text, refusal
from gridweave.slurm.cluster.parse import read_names, read_sinfo, read_span_ms, read_squeue, read_version, view_of
from gridweave.slurm.cluster.reasons import ENDED, WAITING, end_from_output, why_waiting
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.cluster.size import size_of
from gridweave.slurm.cluster.submit import job_of
from gridweave.slurm.outlook import SOON_MS, UNKNOWN_MS, free_steps
from gridweave.slurm.system import AllocationRequest, BatchView, check_request
from support.slurm import partition_in, view_in

VERSIONS = ("22.05", "24.11", "26.05")
SAMPLES = Path(__file__).parents[1] / "data" / "slurm"
"""For each version what was printed while the same was done: 22.05.8, 24.11.5 and 26.05.5, under slurmdbd."""

_DOWN = (
    "waiting",
    "nodes that it needs are down, drained or reserved for jobs that go first (Nodes_required_for_job_are_DOWN)",
)
_FREE = (
    "waiting",
    "it is held in Slurm by the account that submitted it; scontrol release releases it (JobHeldUser)",
)
TOLD = {
    "completing": {
        "gw-x-1-1": ("ended", "its nodes were given back (COMPLETED)"),
        "gw-x-5-1": ("running", ""),
        "gw-x-6-1": ("running", ""),
    },
    "work": {
        "gw-x-2-1": ("ended", "its script in Slurm failed (FAILED)"),
        "gw-x-3-1": ("ended", "it reached its time limit in Slurm (TIMEOUT)"),
        "gw-x-4-1": ("ended", "it was cancelled in Slurm (CANCELLED)"),
        "gw-x-5-1": ("ended", "Slurm took its nodes for a job that goes first (PREEMPTED)"),
        "gw-x-8-1": _DOWN,
        "gw-x-11-1": _FREE,
        "gw-x-12-1": ("waiting", "it is held by an administrator of Slurm (JobHeldAdmin)"),
        "gw-x-13-1": ("waiting", "Slurm holds it back until jobs that it depends on have ended (Dependency)"),
        "gw-x-15-1": ("waiting", "other jobs in Slurm's queue have a higher priority (Priority)"),
        "gw-x-18-1": ("waiting", "its time limit is above that of the partition (PartitionTimeLimit)"),
        "gw-x-24-1": ("waiting", "its account has reached a limit (AssocGrpJobsLimit)"),
        "gw-x-81-1": ("waiting", "its begin time in Slurm has not come (BeginTime)"),
    },
    "ends": {
        "gw-x-3-1": ("ended", "a node failed under it (NODE_FAIL)"),
        "gw-x-4-1": ("waiting", "it was requeued in Slurm, and is held there (job_requeued_in_held_state)"),
        "gw-x-5-1": ("waiting", "it was requeued in Slurm, and is held there (job_requeued_in_held_state)"),
        "gw-x-8-1": _DOWN,
    },
    "reserved": {
        "gw-x-8-1": ("waiting", "Slurm has no nodes free for it now (Resources)"),
        "gw-x-12-1": ("waiting", "nodes that it needs are reserved for maintenance (ReqNodeNotAvail)"),
        "gw-x-13-1": ("waiting", "it waits for a reservation in Slurm to begin (Reservation)"),
        "gw-x-16-1": ("waiting", "its quality of service (QOS) has reached a limit (QOSMaxJobsPerUserLimit)"),
    },
}
"""Of each look what is told of some jobs."""

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
# Made up after the manual: states of nodes with their marks.
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
    view = view_in(SINFO_22_05, SQUEUE_22_05, "gw-x-")
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
    (waits,) = view_in(SINFO_22_05, f"6|PENDING|N/A|N/A|2|anna|{reason}|gw-x-3-1", "gw-x-").allocations
    assert (waits.state, waits.is_put_off) == ("waiting", False)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_told_alike(version: str) -> None:
    """The same jobs on the same cluster of four nodes, under each version: what is told of them, and what is not."""

    def seen(look: str) -> BatchView:
        texts = [(SAMPLES / version / f"{command}-{look}.txt").read_text() for command in ("sinfo", "squeue")]
        return view_in(*texts, "gw-x-", "site")

    found = {look: seen(look) for look in TOLD}
    assert [view.nodes for view in found.values()] == [4, 3, 3, 4]
    assert [len(found[look].busy) for look in ("completing", "ends", "reserved")] == [3, 4, 8]
    assert {view.longest_ms for view in found.values()} == {86_400_000}
    for look, told in TOLD.items():
        allocations = {each.name: each for each in found[look].allocations if each.name in told}
        assert {name: (each.state, each.reason) for name, each in allocations.items()} == told
        assert all(each.is_put_off == (each.state == "waiting") for each in allocations.values())
    ends = {each.name: each.end for each in found["work"].allocations if each.state == "ended"}
    assert [ends[f"gw-x-{number}-1"] for number in range(1, 7)] == [
        "given back", "failed", "limit", "cancelled", "lost", "cancelled"
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_refusals_of_each_version(version: str) -> None:
    """All but a limit that others' ends lift are forever; none is taken for the other."""
    said = (SAMPLES / version / "sbatch.txt").read_text().splitlines()
    assert len(said) >= 12
    passing = {error_text(line) for line in said if isinstance(refusal(line), UnavailableError)}
    assert {each.partition(" (")[0] for each in passing} == {
        "QOSMaxSubmitJobPerUserLimit", "Batch job submission failed: Job violates accounting/QOS policy"
    }  # fmt: skip
    full = (SAMPLES / version / "sbatch-full.txt").read_text()
    away = (SAMPLES / version / "sbatch-away.txt").read_text()
    assert [type(refusal(each)) for each in (full, away)] == [UnavailableError] * 2


# As slurm_strerror of 22.05.8 words these errors.
@pytest.mark.parametrize("said", [
    "Required partition not available (inactive or drain)", "I/O error writing script/environment to file",
    "Unable to create job record, try again", "Invalid user id",
])  # fmt: skip
def test_what_slurm_refuses_for_a_while_is_waited_for(said: str) -> None:
    """A partition that is drained, a full disk, a list of users that is away: none of it is the job's own."""
    assert type(refusal(f"sbatch: error: Batch job submission failed: {said}")) is UnavailableError


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["killed", "over"])
def test_what_each_version_prints_for_want_of_memory(version: str, how: str) -> None:
    """By control groups (task/cgroup), and by OverMemoryKill; the state of such a job is FAILED alone."""
    assert end_from_output((SAMPLES / version / f"log-{how}.txt").read_text()) == ENDED["OUT_OF_MEMORY"]
    assert end_from_output("srun: error: n1: task 0: Exited with exit code 1") is None


def test_anybody_may_give_an_array_such_a_name() -> None:
    """Its numbers are no numbers of ours, and are told all the same."""
    line = "{}|PENDING|N/A|N/A|1|anna|JobArrayTaskLimit|gw-x-80-1"
    text = "\n".join(line.format(number) for number in ("115_[3-9%2]", "99", "115_2"))
    view = view_in(SINFO_22_05, text, "gw-x-")
    assert [each.number for each in view.allocations] == ["99", "115_[3-9%2]", "115_2"]


# Recorded from 22.05.8: a partition of two nodes, beside one of three. On the first node two jobs of one processor; the
# second is taken by a job of the other partition, which has no limit there. A name has a line in it, another a U+2028,
# a vertical tab and a bar.
SINFO_TWO = "2|allocated|1-00:00:00|viewtest[1-2]\n"
SQUEUE_TWO = """\
5f1e|main|viewtest[1-3]|3|COMPLETED|1795523928|1795524028|3|root|None|wide
5f1e|main||8|PENDING|1827060110|1827061910|2|root|Resources|gw-x-1-1
5f1e|main||9|PENDING|1795527709|1795529509|1|root|BeginTime|a\u2028b\x0bc|d
5f1e|main|viewtest1|6|RUNNING|1795524110|1795524170|1|root|None|short
5f1e|main|viewtest1|7|RUNNING|1795524110|1795524230|1|root|None|line
9|CANCELLED
5f1e|other|viewtest3|4|RUNNING|1795524110|1795525310|1|root|None|far
5f1e|other|viewtest2|5|RUNNING|1795524110|1827060110|1|root|None|near
"""


def test_jobs_of_other_partitions_on_the_same_nodes_are_seen() -> None:
    """A node is taken until the last job on it ends, of whichever partition; others' nodes are not counted."""
    jobs, strange = read_squeue(SQUEUE_TWO, "5f1e")
    view = view_of(read_sinfo(SINFO_TWO, "main"), jobs, "main", "gw-x-", "root")
    assert (view.nodes, view.idle, strange) == (2, 0, [])
    assert view.busy == (
        (1795524110000, 1795524230000, 1),
        (1795524110000, 1827060110000, 1),
        (1795527709000, 1795529509000, 1),
        (1827060110000, 1827061910000, 2),
    )
    steps = free_steps(view, 1795524118000)
    assert steps[:3] == ((1795524118000, 0), (1795524230000, 1), (1795527709000, 0))


@pytest.mark.parametrize("longest_ms", [None, 3_600_000])
def test_nodes_of_which_nobody_knows_who_has_them_are_free_some_time(longest_ms: int | None) -> None:
    """Until the longest time is over, or for a day: so a start is told, and no other job's end stands for theirs."""
    until_ms = 100 + (longest_ms or UNKNOWN_MS)
    view = BatchView(nodes=16, idle=0, longest_ms=longest_ms)
    assert free_steps(view, 100) == ((100, 0), (until_ms, 16))
    view = BatchView(nodes=16, idle=0, longest_ms=longest_ms, busy=((0, 5_000, 1),))
    assert free_steps(view, 100) == ((100, 0), (5_000, 1), (until_ms, 16))


def test_a_job_without_an_end_keeps_its_nodes() -> None:
    """One whose end Slurm does not tell has its node as long as it may; one whose time is up does not for long."""
    lines = [
        "|b|n1|1|RUNNING|10|N/A|1|anna|None|x",
        "|b|n1|2|RUNNING|10|20|1|anna|None|y",
        "|main|n2|3|COMPLETING|10|20|1|anna|None|z",
    ]
    view = view_of(read_sinfo("3|mixed|1:00:00|n[1-3]", "main"), read_squeue("\n".join(lines))[0], "main", "gw-")
    assert view.busy == ((10_000, 20_000, 1),)
    assert free_steps(view, 30_000) == ((30_000, 0), (30_000 + SOON_MS, 1), (3_630_000, 3))


def test_no_name_of_a_job_hides_the_others() -> None:
    """A name may hold what ends lines elsewhere, or lines of its own, which are not taken for jobs."""
    text = SQUEUE_TWO.replace("9|CANCELLED", "|main||3|CANCELLED|1|2|1|root|None|gw-x-1-1")
    jobs, strange = read_squeue(text, "5f1e")
    assert [job.number for job in jobs] == ["3", "8", "9", "6", "7", "4", "5"]
    assert jobs[2].name == "a\u2028b\x0bc|d"
    assert not strange


def test_a_line_that_cannot_be_read_is_passed_over() -> None:
    """The others are read, and it is said which that is."""
    jobs, strange = read_squeue(f"warning\n{SQUEUE_TWO}5f1e|what|is|this\n", "5f1e")
    assert len(jobs) == 7
    assert strange == ["what|is|this\n", "warning"]


def test_nodes_by_their_marks() -> None:
    """Those that are down or do not answer are not there; those that are powered down can be had."""
    partition = partition_in(SINFO_MIXED)
    assert (partition.nodes, partition.idle, partition.longest_ms) == (9, 7, 86_400_000)


def test_reasons_are_one_plain_line_each() -> None:
    """No reason is empty, ends with a stop, or is Slurm's word alone; those that are not known are told as they are."""
    for word, plain in (WAITING | {word: plain for word, (_, plain) in ENDED.items()}).items():
        assert re.fullmatch(r"[a-zA-Z][^\n]{9,}[^.\s]", plain), word
        assert word not in plain
    assert why_waiting("AssocGrpCpuLimit") == "its account has reached a limit (AssocGrpCpuLimit)"


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
MaxPoweredUpNodes MpiPortsBusy NvidiaImexChannels
"""


def test_every_reason_of_every_version_is_known() -> None:
    """None is told as a word that is not understood; one with a signal and its number is known as well."""
    for word in REASONS.split():
        assert not why_waiting(word).startswith("Slurm gives the reason"), word
    assert why_waiting("MaxBBPerAccount") == "its account has reached a limit (MaxBBPerAccount)"
    assert why_waiting("MaxCpuRunMinsPerUser") == "its user has reached a limit (MaxCpuRunMinsPerUser)"
    assert why_waiting("RaisedSignal:9(Killed)") == WAITING["RaisedSignal"]
    assert why_waiting("Maximal") == "Slurm gives the reason Maximal"


def test_the_page_has_every_word() -> None:
    """docs/slurm.md lists what is told for each of Slurm's words, as it is told, and drills that are there."""
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    for word, plain in (WAITING | {word: plain for word, (_, plain) in ENDED.items()}).items():
        assert f"| `{word}` | {plain} |" in page, word
    drills = re.findall(r"\| `(test_\w+)` \|", page)
    tests = Path(__file__).parents[1]
    folders = [tests / "slurm", tests / "site", tests / "grid" / "control"]
    texts = [path.read_text() for place in folders for path in sorted(place.rglob("*.py"))]
    assert len(drills) >= 20
    assert not [drill for drill in drills if not any(f"def {drill}(" in text for text in texts)]


@pytest.mark.parametrize("text", ["1|idle%|1:00", "1|idle!|1:00", "1|powering_down|1:00", "1|blocked|1:00"])
def test_nodes_that_are_in_between_are_there_and_not_free(text: str) -> None:
    """States of newer versions: a node is powered down, or kept free by Slurm for a job on its neighbours."""
    partition = partition_in(text)
    assert (partition.nodes, partition.idle) == (1, 0)


def test_names_of_nodes_that_are_no_ranges_of_numbers_stand_for_themselves() -> None:
    """Slurm may write names in other ways, as for machines with coordinates; they are names all the same."""
    assert read_names("bgl[000x133],n[1-2]") == ("bgl000x133", "n1", "n2")


def test_a_node_without_a_state_is_not_there() -> None:
    """A node of which slurmrestd tells no state counts as one whose state is unknown."""
    told = b'{"nodes": [{"name": "n1", "state": [], "partitions": ["main"]}, {"name": "n2", "partitions": ["main"]}]}'
    nodes = msgspec.json.decode(told, type=NodesAnswer).nodes
    partitions = msgspec.json.decode(b'{"partitions": [{"name": "main"}]}', type=PartitionsAnswer).partitions
    partition = partition_named(partitions, nodes, "main")
    assert (partition.nodes, partition.idle, partition.taken) == (0, 0, frozenset())


def test_a_job_whose_nodes_are_powered_up_has_them() -> None:
    """As one that is being configured; one that Slurm has put back waits, whatever it calls that."""
    lines = [f"{number}|{state}|N/A|N/A|1|anna|None|gw-x-{number}-1" for number, state in enumerate(
        ["POWER_UP_NODE", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "LAUNCH_FAILED", "EXPEDITING"], start=1
    )]  # fmt: skip
    view = view_in("1|idle|1:00", "\n".join(lines), "gw-x-")
    assert [each.state for each in view.allocations] == ["running"] * 2 + ["waiting"] * 4


@pytest.mark.parametrize(("text", "span_ms"), [
    ("30", 1_800_000), ("1:00", 60_000), ("2:03:04", 7_384_000), ("1-2", 93_600_000), ("1-02:03", 93_780_000),
    ("3-00:00:01", 259_201_000), ("UNLIMITED", None), ("infinite", None), ("N/A", None), ("", None),
])  # fmt: skip
def test_time_limits_are_read(text: str, span_ms: int | None) -> None:
    """Slurm's ways to write a span, as its manual lists them."""
    assert read_span_ms(text) == span_ms


@pytest.mark.parametrize(("read", "kind", "said"), [
    (lambda: read_sinfo("", "gpu"), InputError, "partition 'gpu' does not exist on this cluster"),
    (lambda: read_sinfo("x|idle|1|n", "gpu"), UnavailableError, "a line of sinfo cannot be parsed: 'x|idle|1|n'"),
    (lambda: read_squeue("slurm_load_jobs error"), UnavailableError, "a line of squeue cannot be parsed"),
    (lambda: read_version("bash: sinfo"), InputError, "is not a version of Slurm"),
    (lambda: SlurmSettings(partition="a b"), OptionError, "partition: is 'a b'; expected letters"),
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
    view = view_in(SINFO_22_05, SQUEUE_22_05, "gw-x-", "root")
    assert {each.runs_as for each in view.allocations} == {""}
    view = view_in(SINFO_22_05, SQUEUE_22_05, "gw-x-", "site")
    assert {each.runs_as for each in view.allocations} == {"root"}


def test_the_shapes_of_a_job_over_slurmrestd() -> None:
    """Plain values up to v0.0.38; from v0.0.39 on numbers that may be unset, and a list of variables."""
    settings = SlurmSettings(
        partition="main", qos="low", submit="rest", rest="unix:/x", tokens="/t", options=("nice=5",)
    )
    request = AllocationRequest(
        name="gw-1",
        nodes=3,
        length_ms=90_000,
        script="x",
        folder="/f",
        output="/f/o",
        comment="c",
        options=("constraint=fast",),
    )
    old, new = (job_of(request, settings, version, {"A": "b"}, size_of(request)) for version in ("v0.0.38", "v0.0.40"))
    both = {"name": "gw-1", "partition": "main", "requeue": False, "comment": "c", "qos": "low"}
    both |= {"current_working_directory": "/f", "standard_output": "/f/o", "nice": 5, "constraints": "fast"}
    plain = {"nodes": 3, "exclusive": "exclusive", "time_limit": 2, "environment": {"A": "b"}}
    assert old == {"script": "x", "job": both | plain}
    limit = {"set": True, "infinite": False, "number": 2}
    kept = {"minimum_nodes": 3, "maximum_nodes": 3, "shared": ["none"], "time_limit": limit, "environment": ["A=b"]}
    assert new == {"script": "x", "job": both | kept}
