"""Golden schedules: whatever is rebuilt inside, every driver makes of seeded workloads the schedules it always made.

`golden.json` has a hash for each run of `golden_runs.py`. A run that differs is named by its test, and
``python tools/golden_runs.py NAME`` prints what is hashed of it, to be compared with what another commit prints. If a
schedule is to change, ``python tools/golden_runs.py --write`` writes the file again, and the commit says why. What
commands print stands in a section of its own, as it is changed on purpose more often.

Where messages are lost by chance (``world/...-trouble``, ``live-world/...``), every message draws from one stream: one
message more or less gives another schedule there, and those alone.
"""

from __future__ import annotations

import pytest

from golden_runs import PRINTED, SCHEDULES, SECTIONS, digest, read_golden


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_is_the_golden_one(name: str) -> None:
    """Starts, ends and places are what they were."""
    assert digest(SCHEDULES[name]()) == read_golden()["schedules"].get(name), f"the schedule of {name} has changed"


@pytest.mark.parametrize("name", PRINTED)
def test_command_prints_what_it_printed(name: str) -> None:
    """Users see the same, to the letter."""
    text = PRINTED[name]()
    assert digest(text) == read_golden()["printed"].get(name), f"gridweave {name} prints something else:\n{text}"


def test_every_hash_is_of_a_run() -> None:
    """No run is dropped while its hash stays behind."""
    assert {section: set(runs) for section, runs in SECTIONS.items()} == {
        section: set(hashes) for section, hashes in read_golden().items()
    }
