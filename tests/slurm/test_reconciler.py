"""What keeps a batch system asked, step by step on one in memory: nothing is asked for twice, nobody waits in vain."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from gridweave.errors import InputError, UnavailableError
from gridweave.site.launch import MachineRules
from gridweave.site.messages import ENCODER, RunEnded, RunStarted
from gridweave.site.times import LONGEST_PAUSE_MS
from gridweave.slurm.cluster.asking import refusal
from gridweave.slurm.policy import BatchPolicy, PilotRules
from gridweave.slurm.service import reconciler
from gridweave.slurm.service.folder import Owner, Ticket
from gridweave.slurm.service.hub import SILENT_S
from gridweave.slurm.system import Allocation, AllocationEnd, AllocationRequest, BatchUser
from support.slurm import KeptSite, kept_site

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
AWAY = UnavailableError("squeue fails: nobody answers")


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[KeptSite]:
    """Return a site on a batch system in memory, that has looked at it once."""
    async with kept_site(tmp_path) as found:
        await found.round()
        yield found


@pytest.mark.asyncio
async def test_looks_that_fail_ask_for_nothing_twice(site: KeptSite) -> None:
    """What was asked for since the last look is known until one succeeds; then it is seen, and runs."""
    job = await site.submit()
    await site.reconciler.follow()
    site.batch.fails["view"] = AWAY
    for _ in range(3):
        await site.round()
    assert site.why(job) == "squeue fails: nobody answers"
    assert len(site.batch.asked) == 1
    del site.batch.fails["view"]
    await site.round()
    assert site.why(job) == "as 1 there: others go first"
    assert len(site.batch.asked) == 1


@pytest.mark.asyncio
async def test_what_was_seen_and_has_vanished_is_asked_for_later_under_another_name(site: KeptSite) -> None:
    """It counts as lost, so that there is a pause, and an end of asking; its name is never used again."""
    job = await site.submit()
    await site.round()
    await site.round()
    assert site.why(job) == "as 1 there: others go first"
    site.batch.queue.clear()
    await site.round()
    await site.round()
    assert len(site.batch.asked) == 1
    assert site.why(job).startswith(
        "its nodes were lost before it began: it is no longer in the queue of the batch system"
    )


@pytest.mark.asyncio
async def test_what_cannot_be_given_back_keeps_nothing_else(tmp_path: Path) -> None:
    """An account that the machine knows no more ends nothing; what others have is given back, and it is tried again."""
    users = {user: BatchUser(runs_as=user) for user in ("anna", "bert")}
    async with kept_site(tmp_path, users=users) as site:
        for number, user in enumerate(users):
            name = f"{site.shared.prefix}7-{number}"
            site.shared.note(name, Owner(user, user))
            one = Allocation(name=name, number=str(number), state="waiting", runs_as=user)
            site.batch.queue[one.number] = one
        site.batch.fails["cancel anna"] = InputError("this machine has no Unix account 'anna'")
        await site.round()
        assert list(site.batch.queue) == ["0"]
        del site.batch.fails["cancel anna"]
        await site.round()
        assert not site.batch.queue


@pytest.mark.asyncio
async def test_a_folder_that_cannot_be_written_ends_nothing(site: KeptSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waits, says why, and is asked for when the folder is well again."""

    def full(_name: str) -> Ticket:
        raise OSError(errno.ENOSPC, "No space left on device", "/shared/gridweave")

    with monkeypatch.context() as patch:
        patch.setattr(site.shared, "ticket", full)
        job = await site.submit()
        await site.round()
        assert site.why(job) == "/shared/gridweave: No space left on device"
    await site.round()
    assert len(site.batch.asked) == 1


class Later:
    """A clock that a test puts forward."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", [BatchPolicy(), BatchPolicy(pilots=PilotRules(size=2))])
async def test_what_runs_with_a_node_that_is_heard_no_more_is_given_back(tmp_path: Path, policy: BatchPolicy) -> None:
    """After a minute and the time of the lease; the job is lost when that has ended, and runs again on other nodes."""
    async with kept_site(tmp_path, policy) as site:
        clock = site.hub.clock = Later()
        await site.round()
        job = await site.submit(nodes=2)
        await site.round()
        await site.starts(job)
        for seconds in (SILENT_S - 1, 2, 599):
            clock.now_s += seconds
            await site.heard("1", 0)
            await site.round()
            assert not site.batch.cancelled
        clock.now_s += 1
        known = site.batch.queue["1"]
        await site.round()
        assert site.batch.cancelled == ["1"]
        assert site.record(job).state == "running"
        site.batch.queue["1"] = msgspec.structs.replace(known, state="ended", end="cancelled", reason="by root")
        await site.round()
        assert site.record(job).state == "waiting"
        await site.round()
        assert site.batch.cancelled == ["1"]
        if policy.pilots is None:
            assert len(site.batch.asked) == 2
        else:
            assert "a pilot failed: its node 1 no longer answers" in site.why(job)


@pytest.mark.asyncio
async def test_a_site_that_hears_nobody_gives_nothing_back(site: KeptSite) -> None:
    """It is the site that is cut off then: its jobs run on. A node that is heard again has lost nothing."""
    clock = site.hub.clock = Later()
    job = await site.submit(nodes=2)
    await site.round()
    await site.starts(job)
    for _ in range(3):
        clock.now_s += 1_000
        await site.round()
    await site.heard("1", 0)
    await site.round()
    clock.now_s += 599
    await site.heard("1", 0)
    await site.heard("1", 1)
    await site.round()
    clock.now_s += SILENT_S + 1
    await site.heard("1", 0)
    await site.round()
    assert not site.batch.cancelled


@pytest.mark.asyncio
async def test_what_ran_and_waits_again_is_over(site: KeptSite) -> None:
    """Slurm has put it back into its queue, and may start it again: the job is lost, and that is taken out there."""
    job = await site.submit()
    await site.round()
    await site.starts(job)
    site.batch.change("1", state="waiting", reason="it was requeued in Slurm, and is held there")
    await site.round()
    assert site.batch.cancelled == ["1"]
    assert site.record(job).state == "waiting"
    await site.round()
    assert len(site.batch.asked) == 2
    assert site.why(job) == "as 2 there: others go first"


TOO_LARGE = "sbatch: error: QOSMaxNodePerJobLimit\nsbatch: error: Batch job submission failed: " + POLICY


@pytest.mark.asyncio
async def test_a_job_that_is_never_taken_keeps_nobody_waiting(tmp_path: Path) -> None:
    """One over a limit of its own size is refused with Slurm's reason; those behind it are asked for at once."""
    users = {"anna": BatchUser(account="small"), "bert": BatchUser()}
    async with kept_site(tmp_path, users=users) as site:
        site.batch.fails["small"] = refusal(TOO_LARGE)
        await site.round()
        never, well = await site.submit("anna"), await site.submit("bert")
        await site.round()
        await site.round()
        record = site.record(never)
        assert (record.outcome, record.reason.partition("; ")[0]) == (
            "failed", "Slurm rejects the job: QOSMaxNodePerJobLimit"
        )  # fmt: skip
        assert site.why(well) == "as 2 there: others go first"


@pytest.mark.asyncio
async def test_a_job_that_is_not_taken_for_a_limit_without_a_word(tmp_path: Path) -> None:
    """It may pass, so it is asked for again, later; meanwhile others are asked for."""
    users = {"anna": BatchUser(account="small"), "bert": BatchUser()}
    async with kept_site(tmp_path, users=users) as site:
        site.batch.fails["small"] = refusal(POLICY)
        await site.round()
        puzzling, well = await site.submit("anna"), await site.submit("bert")
        for _ in range(3):
            await site.round()
        assert "Slurm rejects the job: Job violates accounting/QOS policy" in site.why(puzzling)
        assert "requested again in " in site.why(puzzling)
        assert site.why(well) == "as 2 there: others go first"
        assert len(site.batch.asked) == 2


@pytest.mark.asyncio
async def test_a_limit_to_how_many_jobs_there_are_holds_up_its_account(site: KeptSite) -> None:
    """One request tells for all; the first is asked for again at each look, and the others follow."""
    site.batch.fails["submit"] = refusal("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + POLICY)
    jobs = [await site.submit() for _ in range(3)]
    for _ in range(8):
        await site.round()
    assert site.batch.asked == [site.batch.asked[0]] * 8
    del site.batch.fails["submit"]
    await site.round()
    await site.round()
    assert [site.why(job).partition(": ")[2] for job in jobs] == ["others go first"] * 3


@pytest.mark.parametrize(("past", "said"), [
    (Allocation(name="", number="1", state="ended", end="cancelled", reason="it was cancelled in Slurm (CANCELLED)"),
     ("ended", "failed", "it was cancelled in Slurm (CANCELLED)")),
    (Allocation(name="", number="1", state="ended", end="cancelled", runs_as="carl"), ("waiting", "", "")),
    (None, ("waiting", "", "")),
])  # fmt: skip
@pytest.mark.asyncio
async def test_an_end_that_no_look_has_shown(
    site: KeptSite, past: Allocation | None, said: tuple[str, str, str]
) -> None:
    """The batch system's accounting is asked for it; what that does not know of, or is another's, counts as lost."""
    job = await site.submit()
    await site.round()
    await site.starts(job)
    assert site.record(job).state == "running"
    (name,) = site.batch.asked
    site.batch.queue.clear()
    if past is None:
        site.batch.fails["ended"] = UnavailableError("sacct fails: Slurm accounting storage is disabled")
    else:
        site.batch.past = [msgspec.structs.replace(past, name=name)]
    await site.round()
    record = site.record(job)
    assert (record.state, record.outcome or "", record.reason) == said


@pytest.mark.asyncio
async def test_a_job_whose_pilots_end_for_want_of_memory(tmp_path: Path) -> None:
    """It runs again twice, and fails with the third; another that was in the last alone runs again."""
    async with kept_site(tmp_path, BatchPolicy(pilots=PilotRules(size=2))) as site:
        await site.round()
        hungry = await site.submit()
        for pilot in range(3):
            other = await site.submit() if pilot == 2 else hungry
            await site.wait(LONGEST_PAUSE_MS)
            await site.round()
            await site.round()
            await site.starts(hungry)
            assert "waiting" not in (site.record(hungry).state, site.record(other).state)
            number = list(site.batch.queue)[-1]
            site.batch.change(number, state="ended", end="memory", reason="it used too much (OUT_OF_MEMORY)")
            await site.round()
        record = site.record(hungry)
        assert (record.outcome, record.attempt) == ("failed", 3)
        said = "out of memory: it was in 3 pilots that ran out of memory; the last one: it used too much"
        assert record.reason.startswith(said)
        assert site.record(other).state == "waiting"


@pytest.mark.parametrize("policy", [BatchPolicy(), BatchPolicy(pilots=PilotRules())])
@pytest.mark.asyncio
async def test_what_has_vanished_while_the_site_was_away(tmp_path: Path, policy: BatchPolicy) -> None:
    """The site knows by its journal what it had seen: that counts as lost, and its name is not used again."""
    async with kept_site(tmp_path, policy) as site:
        await site.round()
        job = await site.submit()
        for _ in range(3):
            await site.round()
    site.batch.queue.clear()
    async with kept_site(tmp_path, policy, batch=site.batch) as again:
        await again.round()
        await again.round()
        assert len(site.batch.asked) == 1
        assert "it is no longer in the queue of the batch system" in again.why(job)
        await again.wait(LONGEST_PAUSE_MS)
        await again.round()
        assert len(set(site.batch.asked)) == len(site.batch.asked) == 2


@pytest.mark.asyncio
async def test_a_limit_of_one_account_holds_up_nobody_else(tmp_path: Path) -> None:
    """Those of another account are asked for, though the site submits all; when nothing answers, nobody is."""
    users = {"anna": BatchUser(account="physics"), "bert": BatchUser(account="chemistry")}
    async with kept_site(tmp_path, users=users) as site:
        site.batch.fails["physics"] = refusal("sbatch: error: AssocMaxSubmitJobLimit\n" + POLICY)
        await site.round()
        first, _, other = [await site.submit(user) for user in ("anna", "anna", "bert")]
        await site.reconciler.follow()
        assert len(site.batch.asked) == 2
        await site.round()
        assert "AssocMaxSubmitJobLimit" in site.why(first)
        assert site.why(other) == "as 2 there: others go first"
        site.batch.fails["physics"] = AWAY
        last = await site.submit("bert")
        await site.round()
        assert not [name for name in site.batch.asked if f"-{last}-" in name]


@pytest.mark.asyncio
async def test_a_limit_without_a_word_while_others_of_the_account_are_there(site: KeptSite) -> None:
    """It may be that to how many there are: the job waits for them. If it is not, it is the job's own, for all time."""
    await site.submit()
    await site.round()
    site.batch.fails["2 nodes"] = refusal(POLICY)
    large, small = await site.submit(nodes=2), await site.submit()
    for _ in range(3):
        await site.round()
    assert site.why(large).startswith("Slurm rejects the job: Job violates")
    assert not [name for name in site.batch.asked if f"-{small}-" in name]
    site.batch.change("1", state="ended", end="given back")
    await site.round()
    await site.round()
    assert site.why(large).startswith("its nodes were lost before it began: Slurm rejects the job")
    assert site.why(small).endswith("there: others go first")
    await site.wait(LONGEST_PAUSE_MS)
    await site.round()
    await site.round()
    assert "lost 2 times before it began, the last time: Slurm rejects the job" in site.why(large)


@pytest.mark.parametrize(("end", "outcome"), [("failed", "failed"), ("lost", "")])
@pytest.mark.asyncio
async def test_what_was_printed_counts_where_the_batch_system_says_no_more(
    site: KeptSite, end: AllocationEnd, outcome: str
) -> None:
    """A script that failed may tell of memory; nodes that were taken for another's sake were not lost for that."""
    job = await site.submit()
    await site.round()
    await site.starts(job)
    site.batch.apply = "memory", "it used more memory than Slurm gave it"
    site.batch.change("1", state="ended", end=end, reason="that is how it ended")
    await site.round()
    assert site.record(job).outcome == outcome


@pytest.mark.asyncio
async def test_an_option_that_is_taken_away_is_passed_on_no_more(tmp_path: Path) -> None:
    """A job that waits with it is refused, and says why, when the operator names it no longer."""
    async with kept_site(tmp_path, rules=MachineRules(options=("gres",))) as site:
        job = await site.submit(options=("gres=gpu:1",))
    async with kept_site(tmp_path) as again:
        await again.round()
        await again.round()
        assert not again.batch.asked
        assert again.record(job).reason.startswith("it does not pass the option gres to a batch system")


@pytest.mark.asyncio
async def test_what_changes_while_the_site_is_told_is_seen_to_at_once(
    site: KeptSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends while the reconciler still acts on the last change has its nodes back before the next look."""
    acted = 0

    async def follow() -> None:
        nonlocal acted
        acted += 1
        if acted == 1:
            site.hub.news.set()

    monkeypatch.setattr(site.reconciler, "follow", follow)
    acting = asyncio.ensure_future(site.reconciler._act_for(1_000.0))
    for _ in range(10):
        await asyncio.sleep(0)
    acting.cancel()
    assert acted == 2


@pytest.mark.asyncio
async def test_what_cannot_be_given_back_is_tried_again_after_the_next_look(
    site: KeptSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not whenever something happens at the site: each try may take half a minute, and the others wait for it."""
    job = await site.submit()
    await site.round()
    await site.round()
    await site.driver.apply_action("cancel", [job])
    tried = []

    async def cancel(allocations: Sequence[Allocation]) -> None:
        tried.append([one.number for one in allocations])
        raise AWAY

    with monkeypatch.context() as patch:
        patch.setattr(site.batch, "cancel", cancel)
        for _ in range(3):
            await site.reconciler.follow()
        assert tried == [["1"]]
        await site.round()
        assert tried == [["1"], ["1"]]
    await site.round()
    assert site.batch.cancelled == ["1"]


@pytest.mark.asyncio
async def test_nodes_that_came_since_the_last_look_give_themselves_back(
    site: KeptSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends before the next look is not cancelled in the batch system, unless its nodes stay too long."""
    job = await site.submit()
    await site.round()
    await site.round()
    assert site.batch.queue["1"].state == "waiting"
    (name,) = site.batch.asked
    await site.hub.hello(site.shared.key(name), name, 0, "1", "host", "")
    await site.reconciler.follow()
    ((machine, attempt, _),) = site.driver.site.runs.unfinished(job)
    await site.driver.apply(RunStarted(machine, job, attempt))
    await site.driver.apply(RunEnded(machine, job, attempt, "finished", "", (), has_run=True))
    await site.reconciler.follow()
    await site.reconciler.follow()
    assert (site.record(job).outcome, site.batch.cancelled) == ("finished", [])
    monkeypatch.setattr("gridweave.slurm.service.reconciler.LEAVE_S", 0.0)
    await site.reconciler.follow()
    assert site.batch.cancelled == ["1"]


@pytest.mark.asyncio
async def test_the_number_that_a_look_shows_wins_over_the_one_of_the_submission(site: KeptSite) -> None:
    """What is given back is what the batch system lists under the name, whatever the submission printed."""

    async def submit(request: AllocationRequest) -> str:
        await take(request)
        return "Welcome"

    take, site.batch.submit = site.batch.submit, submit  # type: ignore[method-assign]
    job = await site.submit()
    await site.round()
    await site.round()
    assert site.why(job) == "as 1 there: others go first"
    await site.driver.apply_action("cancel", [job])
    await site.reconciler.follow()
    assert site.batch.cancelled == ["1"]


@pytest.mark.asyncio
async def test_of_two_allocations_of_one_name_that_is_kept_which_was_heard(site: KeptSite) -> None:
    """The job runs on it; the other is given back, whichever was asked for first."""
    await site.submit()
    await site.round()
    (name,) = site.batch.asked
    site.batch.change("1", state="running", reason="")
    site.batch.queue["2"] = msgspec.structs.replace(site.batch.queue["1"], number="2")
    await site.hub.hello(site.shared.key(name), name, 0, "2", "host", "")
    assert site.hub.number_of(name) == "2"
    await site.round()
    assert site.batch.cancelled == ["1"]
    site.hub.want({}, {}, ())
    assert site.hub.number_of(name) is None


@pytest.mark.asyncio
async def test_a_site_that_is_started_anew_knows_which_node_is_which_machine(tmp_path: Path) -> None:
    """Its journal says it: the machines that the nodes name themselves are only compared with that."""
    async with kept_site(tmp_path) as site:
        await site.round()
        job = await site.submit(nodes=2)
        await site.round()
        await site.starts(job)
        runs = site.driver.site.runs.unfinished(job)
        (name,) = site.batch.asked
    async with kept_site(tmp_path, batch=site.batch) as again:
        await again.reconciler.follow()
        key = again.shared.key(name)
        for machine, _, node in runs:
            await again.hub.hello(key, name, node, "1", "host", machine)
        for machine, attempt, _ in runs:
            await again.hub.report(key, name, ENCODER.encode([RunEnded(machine, job, attempt, "finished")]))
        assert again.record(job).outcome == "finished"


@pytest.mark.asyncio
async def test_a_pilot_that_was_not_taken_says_nothing_of_the_next(tmp_path: Path) -> None:
    """When there was no other it came to nothing; while others are there the next one is asked for again."""
    async with kept_site(tmp_path, BatchPolicy(pilots=PilotRules())) as site:
        site.batch.fails["submit"] = refusal(POLICY)
        await site.round()
        await site.submit()
        await site.round()
        await site.round()
        await site.wait(LONGEST_PAUSE_MS)
        del site.batch.fails["submit"]
        await site.round()
        assert len(site.batch.queue) == 1
        site.batch.fails["submit"] = refusal(POLICY)
        await site.submit()
        for _ in range(3):
            await site.round()
        assert site.batch.asked[2:] == [site.batch.asked[2]] * 3


@pytest.mark.asyncio
async def test_what_a_script_prints_stands_in_one_place(site: KeptSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch system is told where to write it; there it is read, and removed when nothing wants it any more."""
    monkeypatch.setattr(reconciler, "TIDY_EVERY", 1)
    job = await site.submit()
    await site.round()
    (request,) = site.batch.requests
    Path(request.output).write_text("srun: error")
    assert site.shared.printed(request.name) == "srun: error"
    site.shared.node(request.name, 0).mkdir(parents=True)
    await site.round()
    assert Path(request.output).exists()
    await site.driver.apply_action("cancel", [job])
    await site.round()
    await site.round()
    assert not Path(request.output).exists()
