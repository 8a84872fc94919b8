"""A grid whose operator has changed settings goes on with its jobs, and decides by the new settings from then on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.messages import FromLiveSite, LiveGridEvent, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.grid.service.driver import identity_of
from gridweave.netmodel.communication import Communication
from gridweave.settings import SettingsChanged, plain, settings_as, settings_changes
from gridweave.site.job import JobRequest, Program
from gridweave.site.journal.records import Codec
from gridweave.site.messages import (
    CommitNodes,
    Ended,
    Enqueued,
    EnqueueJob,
    Quoted,
    RequestQuote,
    Reserved,
    ReserveNodes,
    Started,
    UserSubmitted,
)
from gridweave.site.state import dump_state, read_state
from support.builders import drawn_model
from support.stepping import do

SITES = (("north", 4), ("south", 6))
FILLERS = [(6, 1_500), (4, 1_000)]
WAITING = [(3, 500), (10, 300), (6, 100), (2, 900), (7, 200), (1, 50), (4, 400)]


def settings(network: GridNetwork | None = None, more: dict[str, Any] | None = None, **policy: Any) -> GridSettings:
    """Return the settings of a grid of two sites."""
    options: dict[str, Any] = {"mode": "multi-site", **policy}
    return GridSettings(sites=SITES, policy=GridPolicy(**options), network=network, **more or {})


def submitted(shapes: list[tuple[int, int]], first: int) -> list[UserSubmitted]:
    """Return submissions of jobs of these widths and limits."""
    program = Program(argv=("true",))
    requests = [JobRequest(program=program, nodes=width, limit_ms=limit_ms) for width, limit_ms in shapes]
    return [UserSubmitted(f"job {first + number}", request) for number, request in enumerate(requests)]


def change(now: GridSettings) -> LiveGridEvent:
    """Return the event that an operator's settings are these, as a journal gives it back."""
    event = SettingsChanged(plain(identity_of(now)))
    kept: LiveGridEvent = Codec(LiveGridEvent, "event").keep_all((event,))[1][0]
    return kept


class SiteOutcome:
    """A grid whose sites do at once what they are told, and run each job to its limit."""

    def __init__(self, grid: LiveGrid) -> None:
        self.grid, self.due = grid, dict[int, list[LiveGridEvent]]()
        self.starts: list[tuple[int, int, int]] = []
        self.lengths: dict[tuple[int, int], int] = {}

    def tell(self, now_ms: int, *events: LiveGridEvent) -> None:
        """Tell the grid something, and have its sites answer."""
        for command in do(self.grid, now_ms, *events):
            if isinstance(command, SendToSite):
                for at_ms, answer in self._answers(now_ms, command.site, command.message):
                    self.due.setdefault(at_ms, []).append(FromLiveSite(command.site, answer))

    def _answers(self, now_ms: int, site: int, message: Any) -> list[tuple[int, Any]]:
        match message:
            case ReserveNodes(job_id=job_id, attempt=attempt, start_ms=start_ms, length_ms=length_ms):
                self.lengths[job_id, site] = length_ms
                if start_ms is None:
                    return self._runs(now_ms, site, job_id, attempt)
                self.lengths[job_id, -1 - site] = start_ms
                return [(now_ms + 1, Reserved(job_id, attempt))]
            case CommitNodes(job_id=job_id, attempt=attempt):
                return self._runs(self.lengths[job_id, -1 - site], site, job_id, attempt)
            case EnqueueJob(job=job, attempt=attempt):
                self.lengths[job.job_id, site] = job.estimate_ms
                return [(now_ms + 1, Enqueued(job.job_id, attempt)), *self._runs(now_ms, site, job.job_id, attempt)]
            case RequestQuote(quote_id=quote_id, width=width):
                nodes = SITES[site][1]
                return [(now_ms + 1, Quoted(quote_id, nodes, now_ms if width <= nodes else None))]
        return []

    def _runs(self, start_ms: int, site: int, job_id: int, attempt: int) -> list[tuple[int, Any]]:
        self.starts.append((start_ms, job_id, site))
        end_ms = start_ms + self.lengths[job_id, site]
        return [
            (start_ms + 1, Started(job_id, attempt, start_ms)),
            (end_ms, Ended(job_id, attempt, end_ms, "finished")),
        ]

    def play(self, until_ms: int) -> None:
        """Go on until an instant."""
        while True:
            wakeup_ms = self.grid.next_wakeup_ms()
            times = [*self.due, *([] if wakeup_ms is None else [wakeup_ms])]
            if not times or min(times) > until_ms:
                return
            now_ms = min(times)
            self.tell(now_ms, *self.due.pop(now_ms, ()))


def filled(now: GridSettings) -> SiteOutcome:
    """Return a grid whose sites are full, with jobs that wait."""
    found = SiteOutcome(LiveGrid(now))
    for number, filler in enumerate(FILLERS):
        found.tell(number, *submitted([filler], 1 + number))
        found.play(number)
    found.play(10)
    found.tell(11, *submitted(WAITING, 3))
    return found


OPTIONS: list[dict[str, Any]] = [
    {"order": "sjf"},
    {"order": "ljf"},
    {"head_reservation": "nothing"},
    {"selection": "biggest-free"},
    {"selection": "earliest-end"},
    {"overhead": 0.5},
    {"overhead": (0.1, 0.7)},
    {"lower_bound": 8},
    {"mode": "adaptive"},
    {"more": {"margin_ms": 40}},
    {"more": {"retry_ms": 77}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_jobs_that_wait_start_as_if_the_settings_had_always_been_these(options: dict[str, Any]) -> None:
    """The jobs that ran before are the same; those that waited start where and when they would have."""
    before, now = settings(), settings(**options)
    changed, always = filled(before), filled(now)
    assert sorted(start[1:] for start in changed.starts) == [(1, 1), (2, 0)]
    changed.tell(20, change(now))
    always.tell(20)
    assert changed.grid.settings == now
    for played in (changed, always):
        played.tell(21, *submitted([(2, 100), (5, 100)], 50))
        played.play(50_000)
    assert changed.starts == always.starts
    assert len({job_id for _, job_id, _ in changed.starts}) == len(FILLERS) + len(WAITING) + 2


def test_the_options_make_a_difference() -> None:
    """Most options of the test above lead to another schedule in it: it could fail."""
    starts = {}
    for options in OPTIONS:
        played = filled(settings(**options))
        played.play(50_000)
        starts[str(options)] = tuple(played.starts)
    plain_one = filled(settings())
    plain_one.play(50_000)
    assert sum(found != tuple(plain_one.starts) for found in starts.values()) >= 6


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "sharing"}, "it needs 10 nodes, the largest site has 6, and mode sharing splits no job"),
        ({"max_fragments": ((8, 2), (64, 1))}, "it needs 10 nodes, 2 fragments at least, and 1 are allowed"),
    ],
)
def test_jobs_that_can_never_be_placed_by_the_new_settings_are_refused(options: dict[str, Any], why: str) -> None:
    """Its user hears why at once; the others wait on."""
    played = filled(settings())
    played.tell(20, change(settings(**options)))
    records = played.grid.registry.records
    assert (records[4].state, why in (records[4].reason or "")) == ("refused", True)
    assert [records[number].state for number in (3, 5, 6)] == ["waiting"] * 3


def test_a_grid_with_changed_settings_is_restored_with_them() -> None:
    """Its state says the settings: a grid that was begun with the old ones and takes it in is the same."""
    now = settings(order="sjf", more={"margin_ms": 40, "alone_ms": 9_000})
    played = filled(settings())
    played.tell(20, change(now))
    again = LiveGrid(settings())
    again.restore(read_state(again, dump_state(played.grid)))
    assert again.settings == now
    twin = SiteOutcome(again)
    twin.due, twin.lengths = {at: list(events) for at, events in played.due.items()}, dict(played.lengths)
    twin.starts = list(played.starts)
    for each in (played, twin):
        each.play(50_000)
    assert played.starts == twin.starts


@pytest.mark.parametrize("control", ["limited", "none"])
def test_settings_change_at_every_level_of_control(control: str) -> None:
    """Delegated jobs go on, and the lease is another from then on."""
    before = settings(control=control)
    now = settings(control=control, reserve_after_s=5.0, more={"lease_ms": 60_000, "retry_ms": 1_000})
    played = SiteOutcome(LiveGrid(before))
    shapes = [shape for shape in FILLERS + WAITING if shape[0] <= 6]
    played.tell(0, *submitted(shapes, 1))
    played.play(2)
    played.tell(2, change(now))
    played.play(50_000)
    states = {record.state for record in played.grid.registry.records.values()}
    assert (states, played.grid.settings) == ({"ended"}, now)


def test_the_options_of_links_change() -> None:
    """The bound of splits, and what jobs are taken to send, hold for jobs that wait."""
    model = drawn_model(np.random.default_rng(3), 2)
    loose, strict = GridNetwork(model, False, NO_DATA, 100, 10_000.0), GridNetwork(model, True, NO_DATA, 50, 1.0)
    talks = UsualCommunication(default=Communication(fraction=0.5, message_bytes=1e6))
    played = filled(settings(loose))
    now = settings(strict, {"usual": talks})
    played.tell(20, change(now))
    assert plain(identity_of(played.grid.settings)) == plain(identity_of(now))
    assert (played.grid.core.model, played.grid.settings.usual) == (model, talks)
    played.play(50_000)


def test_what_may_not_change_is_told_from_what_may() -> None:
    """Sites, control, reserved starts, tuning and chance stay; changes between other values are allowed."""
    kept = plain(identity_of(settings()))
    free = [{"order": "sjf"}, {"selection": "equal-util"}, {"overhead": 0.3}, {"more": {"margin_ms": 7}}]
    fixed = [{"control": "limited"}, {"backfill": "conservative"}, {"selection": "random"}, {"more": {"seed": 3}}]
    for options, is_free in [*((each, True) for each in free), *((each, False) for each in fixed)]:
        identity = identity_of(settings(**options))
        changes = list(settings_changes(kept, identity))
        assert [each.is_allowed(identity.changeable) for each in changes] == [is_free], options


def test_settings_that_a_journal_does_not_say_have_their_defaults() -> None:
    """A journal of an older release begins with those, whatever the file says now."""
    kept = plain(identity_of(settings()))
    del kept["alone_ms"], kept["policy"]["reserve_after_s"]
    now = settings(reserve_after_s=7.0, more={"alone_ms": 9})
    found = settings_as(now, kept, now.changeable)
    assert found == settings()


def test_a_value_of_another_type_is_refused() -> None:
    """A journal that says so was written by hand."""
    grid = LiveGrid(settings())
    with pytest.raises((InputError, ValueError), match="Expected `int`"):
        grid.handle(0, SettingsChanged({"margin_ms": "soon"}))
