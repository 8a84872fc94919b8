"""Locate a grid's journals, and check before the start that the grid's settings are compatible with the journals."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.site.service.calls import journal_place

GRID_JOURNAL, SITE_JOURNAL = "grid.journal", "site.journal"


def grid_place(folder: str | Path, url: str = "") -> str:
    """Return the location of the meta-scheduler's journal: a URL, or a file in the grid's folder."""
    return url or str(Path(folder) / GRID_JOURNAL)


def site_place(folder: str | Path, site: str, url: str = "") -> str:
    """Return the location of a site's journal: a URL, or a file in the site's folder."""
    return url or str(Path(folder) / site / SITE_JOURNAL)


class JournalSpec(NamedTuple):
    """A journal that an actor will open."""

    place: str  # path or URL
    identity: msgspec.Struct  # the settings of the core
    password_file: str = ""


def check_journals(journals: Iterable[JournalSpec]) -> list[str]:
    """Return one line for each journal whose settings will change at the next start.

    Raise InputError with all problems if a fixed setting has changed, or if a journal cannot be read.

    Nothing is locked or changed. A journal that does not exist on this machine, or whose server does not answer, is
    skipped; the actor that opens the journal checks it.
    """
    problems, changes = [], []
    for journal in journals:
        with contextlib.suppress(UnavailableError):
            try:
                change = _change(journal)
            except InputError as error:
                problems.append(str(error))
            else:
                changes += [change] * bool(change)
    if problems:
        raise InputError("; ".join(problems))
    return changes


def _change(journal: JournalSpec) -> str:
    """Describe a journal's changed settings in one line; empty if none. Raise InputError if a fixed setting changed."""
    from gridweave.site.journal.reader import JournalReader

    if "://" not in journal.place and not Path(journal.place).exists():
        return ""
    with JournalReader(journal_place(journal.place, journal.password_file)) as reader:
        if refused := reader.other_settings(journal.identity):
            raise InputError(f"{reader.where} was written with other settings: {'; '.join(refused)}")
        changes = reader.changed_settings(journal.identity)
        return f"settings change at the next start, {reader.where}: {'; '.join(changes)}" if changes else ""


def open_jobs(folder: Path) -> int:
    """Return the number of unfinished jobs of a stopped grid, from the journals on this machine."""
    from sqlalchemy import func, select

    from gridweave.site.journal.reader import JournalReader
    from gridweave.site.journal.tables import notes

    count = 0
    for journal in _journals_in(folder):
        # An unreadable journal has no jobs that could be kept.
        with contextlib.suppress(GridweaveError), JournalReader(journal) as reader, reader.reading() as connection:
            ended = select(notes.c.job_id).where(notes.c.kind == "ended")
            query = select(func.count(notes.c.job_id.distinct())).where(
                notes.c.kind == "submitted", notes.c.job_id.not_in(ended)
            )
            count += int(connection.execute(query).scalar_one())
    return count


def forget_jobs(folder: Path) -> None:
    """Remove the journals in the folder of a stopped grid or site, with all jobs and their output.

    A journal at a URL is kept. Raise UnavailableError if a file cannot be removed.
    """
    try:
        for journal in _journals_in(folder):
            if journal.parent != folder:
                shutil.rmtree(journal.parent)
                continue
            for path in folder.glob(f"{journal.name}*"):
                path.unlink()
    except OSError as error:
        raise UnavailableError(f"{error.filename}: cannot be removed: {error.strerror}") from None


def _journals_in(folder: Path) -> list[Path]:
    """Return the journals in a folder: the grid's journal, then the sites' journals."""
    return [*folder.glob(GRID_JOURNAL), *sorted(folder.glob(f"*/{SITE_JOURNAL}"))]
