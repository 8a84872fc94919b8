"""Forgetting all that a grid on this machine knows of earlier times."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from gridweave.errors import GridweaveError, OptionError, UnavailableError
from gridweave.grid.live.local_down import end_all
from gridweave.grid.live.local_state import LIVE, read_state, state_folder, working_on

_OURS = ("grid.journal", "site.journal")


def open_jobs(name: str, folder: str) -> int:
    """Return how many jobs a grid that does not run has taken in that are not over, as its journals say.

    Parameters
    ----------
    name : str
    folder : str
        Of journals and jobs; empty: the one below that of its state.
    """
    from sqlalchemy import func, select

    from gridweave.site.live.journal_reader import JournalReader
    from gridweave.site.live.journal_tables import notes

    count = 0
    for journal in _journals(_folder_of(name, folder)):
        # One that cannot be read holds nothing that could be kept.
        with contextlib.suppress(GridweaveError), JournalReader(journal) as reader, reader.reading() as connection:
            ended = select(notes.c.job_id).where(notes.c.kind == "ended")
            query = select(func.count(notes.c.job_id.distinct())).where(
                notes.c.kind == "submitted", notes.c.job_id.not_in(ended)
            )
            count += int(connection.execute(query).scalar_one())
    return count


def begin_anew(name: str, folder: str) -> None:
    """Remove the journals of a grid that does not run, its jobs and their output.

    Parameters
    ----------
    name, folder
        As for `open_jobs`.

    Raises
    ------
    OptionError
        If it runs.
    UnavailableError
        If something cannot be removed.
    """
    with working_on(name):
        state = read_state(name)
        if state is not None and state.alive:
            raise OptionError("--fresh", f"the grid {name!r} runs; run `gridweave down` first")
        if state is not None:
            end_all(state, keep_jobs=False)
        place = _folder_of(name, folder)
        try:
            for journal in _journals(place):
                site = journal.parent
                for path in place.glob(f"{journal.name}*") if site == place else ():
                    path.unlink()
                if site != place:
                    shutil.rmtree(site)
        except OSError as error:
            raise UnavailableError(f"{error.filename}: cannot be removed: {error.strerror}") from None


def _folder_of(name: str, folder: str) -> Path:
    return Path(folder) if folder else state_folder(name) / LIVE


def _journals(folder: Path) -> list[Path]:
    return [*folder.glob(_OURS[0]), *sorted(folder.glob(f"*/{_OURS[1]}"))]
