"""Every release opens the journals of those before it, and goes on where they end."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gridweave.site.job import Accepted
from gridweave.version import __version__
from released_journals import FOLDER, StoppedClock, known, open_grid, open_site, submit

WRITTEN = sorted(FOLDER.glob("*.sql"))


def missing(then: Any, now: Any, path: str = "") -> list[str]:
    """Return what was known then and is not now; fields that were added since do not count."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [found for key in then for found in missing(then[key], now.get(key), f"{path}.{key}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [found for number, pair in pairs for found in missing(*pair, f"{path}[{number}]")]
    return [] if then == now else [f"{path}: {then!r} then, {now!r} now"]


@pytest.mark.asyncio
@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.stem)
async def test_a_journal_of_a_release_is_read(written: Path, tmp_path: Path) -> None:
    """A journal that was compacted begins with its snapshot, replays the inputs since, and takes new jobs."""
    place = tmp_path / "journal"
    with sqlite3.connect(place) as database:
        database.executescript(written.read_text(encoding="utf-8"))
    database.close()
    clock = StoppedClock()
    clock.ms = 1_000_000
    driver: Any = (open_site if written.stem.startswith("site") else open_grid)(place, clock)
    assert driver.replayed.snapshot is not None
    assert driver.replayed.inputs >= 2
    assert driver.replayed.passed_over == ()
    peers = driver.journal.peers()
    assert missing(json.loads(written.with_suffix(".json").read_text(encoding="utf-8")), known(driver, peers)) == []
    assert await submit(driver, "held", 2) == driver.journal.submissions(["held"])["held"].answer
    new = await submit(driver, "new", 1)
    assert isinstance(new, Accepted)
    assert len(driver.journal.history(new.job_id)) > 0
    await driver.close()


def test_there_is_one_of_this_version() -> None:
    """The journals of the present version are there, to be read by the next."""
    assert {f"site-{__version__}", f"grid-{__version__}"} <= {path.stem for path in WRITTEN}
