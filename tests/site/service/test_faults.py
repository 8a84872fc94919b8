"""The last fault of an actor, in its process and in its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.site.query_messages import LoggedFault
from gridweave.site.service.calls import log_name, log_to
from gridweave.site.service.faults import LAST_FAULT, RECENT_MS, fault_in, fault_text, recent, recent_fault

LIVE = logging.getLogger("gridweave.live")


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Take away what a test has added to the loggers of gridweave."""
    logger = logging.getLogger("gridweave")
    before, LAST_FAULT.fault = list(logger.handlers), None
    yield
    for handler in set(logger.handlers) - set(before):
        logger.removeHandler(handler)
        if handler is not LAST_FAULT:
            handler.close()
    LAST_FAULT.fault = None


def test_the_last_fault_is_kept_and_found_in_the_log(tmp_path: Path) -> None:
    """Of several warnings the last one counts, by its first line; what is no fault is passed over."""
    log = tmp_path / log_name("site:north")
    log_to(log)
    LIVE.warning("the disk is slow")
    LIVE.error("the journal cannot be %s: the disk is full\nand more", "written")
    LIVE.info("all is well")
    kept, found = recent_fault(), fault_in(log)
    assert kept is not None
    assert found is not None
    assert kept.text == found.text == "the journal cannot be written: the disk is full"
    assert found.at_ms == kept.at_ms // 1000 * 1000


def test_a_restarted_actor_knows_the_fault_of_the_last_one(tmp_path: Path) -> None:
    """What ended the last process is in its log, and is told by the next one."""
    (tmp_path / "grid.log").write_text(
        "2026-11-27 14:33:05,123 CRITICAL gridweave.live: grid has failed, and is restarted\nTraceback ...\n"
    )
    log_to(tmp_path / "grid.log")
    fault = LAST_FAULT.fault
    assert fault is not None
    assert fault_text(fault) == "last fault 2026-11-27 14:33:05: grid has failed, and is restarted"


def test_where_there_is_no_log_there_is_no_fault(tmp_path: Path) -> None:
    """A log that is not there, or holds no fault, tells of none."""
    (tmp_path / "empty.log").write_text("a line of something else\n")
    assert fault_in(tmp_path / "none.log") is None
    assert fault_in(tmp_path / "empty.log") is None
    assert fault_text(None) == ""


def test_a_fault_is_shown_for_a_day() -> None:
    """An old one is no news."""
    now_ms = time.time_ns() // 1_000_000
    assert recent(LoggedFault(now_ms - RECENT_MS + 60_000, "new"), now_ms) is not None
    assert recent(LoggedFault(now_ms - RECENT_MS, "old"), now_ms) is None
