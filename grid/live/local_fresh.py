"""Forgetting all that a grid on this machine knows of earlier times."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.live.local_down import end_all
from gridweave.grid.live.local_state import STATE, read_grid_state, working_on

_GRID, _SITE = "grid.journal", "site.journal"


def open_jobs(folder: Path) -> int:
    """Return how many jobs a grid that does not run has taken in that are not over, as the journals here say.

    Parameters
    ----------
    folder : pathlib.Path
        Of journals and jobs.
    """
    from sqlalchemy import func, select

    from gridweave.site.journal.reader import JournalReader
    from gridweave.site.journal.tables import notes

    count = 0
    for journal in _journals(folder):
        # One that cannot be read holds nothing that could be kept.
        with contextlib.suppress(GridweaveError), JournalReader(journal) as reader, reader.reading() as connection:
            ended = select(notes.c.job_id).where(notes.c.kind == "ended")
            query = select(func.count(notes.c.job_id.distinct())).where(
                notes.c.kind == "submitted", notes.c.job_id.not_in(ended)
            )
            count += int(connection.execute(query).scalar_one())
    return count


def begin_anew(name: str) -> None:
    """Remove the journals of a grid that does not run, its jobs and their output, and by which GRID.toml it ran.

    Parameters
    ----------
    name : str

    Raises
    ------
    UnavailableError
        If it runs, or something cannot be removed.
    """
    with working_on(name) as own:
        state = read_grid_state(name)
        if state is None:
            return
        if state.alive:
            raise UnavailableError(f"the grid {name!r} runs; run `gridweave down` first")
        end_all(state, keep_jobs=False)
        folder = Path(state.folder)
        try:
            for journal in _journals(folder):
                if journal.parent != folder:
                    shutil.rmtree(journal.parent)
                    continue
                for path in folder.glob(f"{journal.name}*"):
                    path.unlink()
            (own / STATE).unlink()
        except OSError as error:
            raise UnavailableError(f"{error.filename}: cannot be removed: {error.strerror}") from None


def _journals(folder: Path) -> list[Path]:
    """Return the journals in a folder: that of the grid, and those of its sites."""
    return [*folder.glob(_GRID), *sorted(folder.glob(f"*/{_SITE}"))]
