"""Limited control over batch systems that are looked at now and then: what was seen last may be so no more."""

from __future__ import annotations

from collections import deque

from gridweave.grid.messages import FromSite, GridEvent, GridJobSubmitted, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    BatchSnapshot,
    EnqueueJob,
    JobFinished,
    RequestQuote,
    RequestStatus,
    StartJob,
    ToGrid,
)
from gridweave.site.nodes.source import NodeRequest
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from gridweave.slurm.outlook import free_steps
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.system import BatchView

RETRY_MS = 60_000
HOUR_MS = 3_600_000


class OldLooks:
    """A meta-scheduler over sites whose batch systems have other users, and are looked at when a test says so.

    A batch system gives a job its nodes as soon as so many are free and it likes to; of that the site hears at once, of
    all else when it looks.
    """

    def __init__(self, *nodes: int) -> None:
        self.core = MetaCore(nodes, GridPolicy(mode="sharing", control="limited"), retry_ms=RETRY_MS)
        self.nodes = nodes
        self.sites = [ContractCore(count, BatchPolicy()) for count in nodes]
        self.others = [0] * len(nodes)  # nodes that other users have
        self.busy_ms = [HOUR_MS] * len(nodes)  # for how long what is not idle is taken
        self.unwilling: set[int] = set()  # sites whose batch systems give nothing, though nodes are free
        self.undecided: set[int] = set()  # sites whose batch systems have not looked at what they were asked for
        self.expected_ms: int | None = None  # when nodes are expected, where jobs wait
        self.now_ms = 0
        self.running: dict[int, int] = {}  # at which site each job runs
        self.sent: list[tuple[int, int]] = []  # which job was sent to which site, in this order
        self.quotes = 0
        self._steps: dict[int, tuple[tuple[int, int], ...]] = {}
        self._mail: deque[tuple[int, ContractEvent | GridEvent]] = deque()
        for site in range(len(nodes)):
            self.look(site)

    def submit(self, job_id: int, width: int) -> None:
        """Hand in a job of an hour."""
        self._deliver(-1, GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=HOUR_MS)))

    def finish(self, job_id: int) -> None:
        """Have a job end."""
        self._deliver(self.running.pop(job_id), JobFinished(job_id))

    def look(self, site: int) -> None:
        """Have a site look at its batch system."""
        idle, has_looked = self._idle(site), site not in self.undecided
        busy = ((0, self.now_ms + self.busy_ms[site], self.nodes[site] - idle),)
        self._steps[site] = free_steps(BatchView(nodes=self.nodes[site], idle=idle, busy=busy), self.now_ms)
        expected_ms = self.expected_ms if has_looked else None
        seen = [
            RequestStatus(each.job.job_id, each.ask, "waiting", expected_ms, "others have them", has_looked)
            for each in self._asked(site)
        ]
        self._deliver(site, BatchSnapshot(self.nodes[site], None, self._steps[site], tuple(seen)))

    def silence(self, site: int) -> None:
        """Have the batch system of a site not answer."""
        self._deliver(site, BatchSnapshot(0, None, (), (), "nobody answers"))

    def give(self) -> None:
        """Have the batch systems give what they can."""
        for site in range(len(self.nodes)):
            self._give(site)
        self._deliver()

    def wait(self, for_ms: int) -> None:
        """Let time pass."""
        until_ms = self.now_ms + for_ms
        while (next_ms := self.core.next_wakeup_ms()) is not None and next_ms <= until_ms:
            self.now_ms = next_ms
            self._tell_grid()
            self._deliver()
        self.now_ms = until_ms

    def _asked(self, site: int) -> list[NodeRequest]:
        return [each for each in self.sites[site].site.source.requests(self.now_ms) if not each.has_started]

    def _idle(self, site: int) -> int:
        held = sum(running.job.width for running in self.sites[site].site.running())
        return self.nodes[site] - self.others[site] - held

    def _give(self, site: int) -> None:
        """Have a batch system give nodes, one job's at a time; what is told of the others is what was seen last."""
        for each in self._asked(site):
            if site not in self.unwilling | self.undecided and each.job.width <= self._idle(site):
                ready = RequestStatus(each.job.job_id, each.ask, "ready")
                self._mail.append((site, BatchSnapshot(self.nodes[site], None, self._steps[site], (ready,))))
                return

    def _deliver(self, to: int = -1, *events: ContractEvent | GridEvent) -> None:
        """Have something happen at a site, or at the meta-scheduler (-1), and all that follows from it."""
        self._mail.extend((to, event) for event in events)
        while self._mail:
            site, event = self._mail.popleft()
            if site < 0:
                self._tell_grid(event)  # type: ignore[arg-type]
                continue
            for said in self.sites[site].handle(self.now_ms, event):  # type: ignore[arg-type]
                if isinstance(said, StartJob):
                    assert said.job_id not in self.running, "a job runs twice"
                    self.running[said.job_id] = site
                if isinstance(said, ToGrid):
                    self._mail.append((-1, FromSite(site, said.answer)))
            self.sites[site].check_invariants()
            self._give(site)

    def _tell_grid(self, *events: GridEvent) -> None:
        commands = self.core.handle(self.now_ms, *events)
        self.core.check_invariants()
        for command in commands:
            if isinstance(command, ToSite):
                self._mail.append((command.site, command.request))
                self.quotes += isinstance(command.request, RequestQuote)
                if isinstance(command.request, EnqueueJob):
                    self.sent.append((command.request.job.job_id, command.site))


def test_a_job_stays_where_it_was_sent_until_the_batch_system_has_it_wait() -> None:
    """That a batch system was asked says nothing yet: the job is offered to nobody else, and starts there."""
    grid = OldLooks(3, 4)
    grid.undecided.add(0)
    grid.submit(1, 2)
    grid.look(0)
    assert grid.sent == [(1, 0)]
    grid.undecided.clear()
    grid.give()
    assert (grid.sent, grid.running) == ([(1, 0)], {1: 0})


def test_a_job_that_was_sent_on_an_old_look_goes_where_nodes_are_free() -> None:
    """Others took the nodes since the last look: the next one shows it, and the job is moved, if it can start there."""
    grid = OldLooks(3, 4)
    grid.others[0] = 3
    grid.submit(1, 2)
    assert (grid.sent, grid.running) == ([(1, 0)], {})
    grid.look(0)
    assert (grid.sent, grid.running) == ([(1, 0), (1, 1)], {1: 1})


def test_a_job_that_finds_old_looks_again_and_again_tries_every_site() -> None:
    """Each site that would start it now is tried, and none twice while nothing has changed."""
    grid = OldLooks(3, 4, 5)
    grid.others = [3, 4, 0]
    grid.submit(1, 2)
    for site in range(3):
        grid.look(site)
    assert (grid.sent, grid.running) == ([(1, 0), (1, 1), (1, 2)], {1: 2})


def test_nodes_that_other_users_leave_are_news() -> None:
    """A job that waits is moved to a cluster as soon as that is seen to have the nodes."""
    grid = OldLooks(3, 4)
    grid.others = [3, 4]
    grid.look(0)
    grid.look(1)
    grid.submit(1, 2)
    ((_, first),) = grid.sent
    grid.look(first)
    grid.others[1 - first] = 0
    grid.look(1 - first)
    assert (grid.sent, grid.running) == ([(1, first), (1, 1 - first)], {1: 1 - first})


def test_nodes_that_a_job_of_the_grid_leaves_are_news_when_they_are_seen_to_be_free() -> None:
    """At its end the batch system has not been looked at again, and the site would start nothing yet."""
    grid = OldLooks(4, 4)
    grid.submit(1, 4)
    grid.others[1], grid.busy_ms[1] = 4, HOUR_MS // 2
    grid.look(0)
    grid.look(1)
    grid.submit(2, 4)
    grid.look(1)
    grid.finish(1)
    assert (grid.sent, grid.running) == ([(1, 0), (2, 1)], {})
    grid.look(0)
    assert (grid.sent, grid.running) == ([(1, 0), (2, 1), (2, 0)], {2: 0})


def test_a_start_that_is_put_off_is_asked_about_once_for_each_time() -> None:
    """Later than the quote by which the site was chosen: the others are asked; later still: again; else nobody."""
    grid = OldLooks(3, 4)
    grid.others = [3, 4]
    grid.look(0)
    grid.look(1)
    grid.submit(1, 2)
    asked = []
    for minutes in (59, 61, 61, 61.5, 61, 90, 80):
        grid.expected_ms = int(minutes * 60_000)
        grid.quotes = 0
        grid.look(grid.sent[-1][1])
        asked.append(grid.quotes)
    assert asked == [0, 1, 0, 0, 0, 1, 0]


def test_clusters_that_have_room_and_give_none_do_not_pass_a_job_to_and_fro() -> None:
    """Each change of either has it tried there once more; then not before a pause that grows, from a minute to ten."""
    grid = OldLooks(3, 4)
    grid.unwilling = {0, 1}
    grid.submit(1, 2)
    for _ in range(600):
        for site in range(2):
            grid.others[site] ^= 1
            grid.look(site)
        grid.wait(6_000)
    assert len(grid.sent) <= 2 * 10, "in an hour"
    grid.unwilling.clear()
    grid.give()
    assert grid.running == {1: grid.sent[-1][1]}


def test_a_site_that_has_put_a_job_off_is_asked_again_though_nothing_has_changed() -> None:
    """After a minute: one whose batch system gives nodes only later may show no change."""
    grid = OldLooks(3, 4)
    grid.unwilling = {0, 1}
    grid.submit(1, 2)
    grid.look(0)
    grid.look(1)
    assert grid.sent == [(1, 0), (1, 1)]
    grid.unwilling = {1}
    grid.wait(RETRY_MS)
    assert (grid.sent[2:], grid.running) == ([(1, 0)], {1: 0})


def test_a_batch_system_that_does_not_answer_keeps_no_job_from_the_others() -> None:
    """A job that was sent there, and that is not known to have been heard of, goes to another site."""
    grid = OldLooks(3, 4)
    grid.unwilling.add(0)
    grid.submit(1, 2)
    grid.silence(0)
    assert grid.running == {1: 1}
