"""Taking down what was brought up on this machine: exactly that, whatever has become of it meanwhile.

Forgetting all that a grid on this machine knows of earlier times.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.service.cluster import find_actors, stop_actors
from gridweave.grid.service.ending import count_running, end_jobs, end_marked, end_processes
from gridweave.grid.service.ray import connected, knock, remove_temp
from gridweave.grid.service.state import GATEWAY, STATE, LocalGridState, forget_processes, read_grid_state, working_on

REASON = "the grid is taken down"


@dataclass(kw_only=True)
class TakenDown:
    """What `take_down` came to.

    Attributes
    ----------
    ended : list of str
        What lived, and was ended.
    jobs : int
        Parts of jobs that were running on this machine; they go on if that was wished.
    remarks : list of str
    """

    ended: list[str] = field(default_factory=list)
    jobs: int = 0
    remarks: list[str] = field(default_factory=list)


def take_down(name: str, *, keep_jobs: bool, tell: Callable[[str], None]) -> TakenDown | None:
    """End what `bring_up` has started; what it found running stays.

    Parameters
    ----------
    keep_jobs : bool
        Whether the processes of jobs go on; the next `bring_up` finds them again.
    tell : callable
        Hears what is going on.

    Returns
    -------
    TakenDown or None
        None if nothing of such a grid runs.

    Raises
    ------
    UnavailableError
        If another process works on it.
    """
    # Where there never was such a grid no folder is made for it.
    if read_grid_state(name) is None:
        return None
    with working_on(name):
        state = read_grid_state(name)
        if state is None:
            return None
        tell("Ending the grid")
        done = end_all(state, keep_jobs=keep_jobs)
        return done if done.ended or done.jobs or done.remarks else None


def end_all(state: LocalGridState, *, keep_jobs: bool) -> TakenDown:
    """End all that was started for a grid, as far as it is written down or can be told from others."""
    folder = Path(state.folder)
    alive = state.alive
    done = TakenDown(ended=[process.name for process in alive])
    # First nobody hands in anything any more.
    end_processes([process for process in alive if process.name == GATEWAY])
    if state.own_ray:
        end_processes(alive)
        end_marked(state.marker, within=[process.pid for process in state.processes])
        done.jobs = count_running(folder)
        if not keep_jobs:
            end_jobs(folder, REASON)
            end_marked(state.marker)
        remove_temp(state.temp)
    elif state.processes:
        _end_actors(state, keep_jobs, done)
    forget_processes(state)
    return done


def _end_actors(state: LocalGridState, keep_jobs: bool, done: TakenDown) -> None:
    """End the actors on a cluster of others."""
    try:
        knock(state.address)
        with connected(state.address):
            actors = find_actors(state.namespace, [(site.name, site.machines) for site in state.sites])
            stop_actors(actors, end_jobs=not keep_jobs)
            done.ended += list(actors)
    except UnavailableError as error:
        done.remarks.append(
            f"{error}; the actors of the grid have ended with that Ray, or will be found by the next up"
        )
        with contextlib.suppress(OSError):
            done.jobs = count_running(Path(state.folder))


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
