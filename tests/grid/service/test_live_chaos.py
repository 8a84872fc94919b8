"""Whatever is killed, lost, repeated or cut: no job is lost or runs twice, none runs in part, no node stays held."""

from __future__ import annotations

import logging
import os

import pytest

from support.live_world import ONE_MESSAGE, play

SEEDS = range(*(int(number) for number in os.environ.get("GRIDWEAVE_CHAOS", "0:80").split(":")))
"""``GRIDWEAVE_CHAOS=1000:5000`` plays other seeds, and more of them."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "gridweave.live")


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, 20))
def test_a_live_grid_in_which_everything_fails_keeps_its_promises(first: int) -> None:
    """Under each seed all jobs end once, rightly, and a replay of every journal gives the state that was reached."""
    for seed in range(first, min(first + 20, SEEDS.stop)):
        play(seed)


def test_a_grid_places_its_jobs_over_links_that_carry_little() -> None:
    """With one message in a packet, answers about quotes take longer than the grid waits for them; all jobs end."""
    play(36, packet_bytes=ONE_MESSAGE, rendezvous_ms=12_000)


def test_the_same_seed_gives_the_same_history() -> None:
    """A seed that fails can be played again: what it does depends on nothing else."""
    stories = [[disk.notes for disk in play(11).disks] for _ in range(2)]
    assert stories[0] == stories[1]
    assert any(stories[0])


def test_settings_that_change_at_every_restart_break_no_promise() -> None:
    """Whoever is killed comes back with other margins, orders and ports, and all jobs end once, rightly."""
    worlds = [play(seed, changes=True) for seed in range(20)]
    told = [disk.inputs for world in worlds for disk in world.disks]
    assert sum(b"SettingsChanged" in row["events"] for inputs in told for row in inputs) >= 60


def test_evictions_keep_their_promises_whoever_is_killed_amid_them() -> None:
    """With sites killed between the signal and the end, no job is lost or runs twice at once, no machine has two jobs.

    `python tools/live_world.py 1 200 restart` plays more.
    """
    worlds = [play(seed, evicted="restart") for seed in range(112, 124)]
    assert sum(world.evictions for world in worlds) >= 30
    assert sum(world.killed_amid for world in worlds) >= 8


def test_pauses_keep_their_promises_whoever_is_killed_amid_them() -> None:
    """Nobody is told to work where another works that was not told to stand still; who stood still goes on, and ends.

    `python tools/live_world.py 1 200 pause` plays more.
    """
    worlds = [play(seed, evicted="pause") for seed in (225, 228, 229, 230, 239, 241)]
    assert sum(world.pauses for world in worlds) >= 15
    assert sum(world.works.stops for world in worlds) >= 10
    assert sum(world.killed_amid for world in worlds) >= 15
