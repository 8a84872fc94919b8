"""Taking down what was brought up on this machine: exactly that, whatever has become of it meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gridweave.errors import UnavailableError
from gridweave.grid.live.actors import find_actors, stop_actors
from gridweave.grid.live.local_ending import count_running, end_jobs, end_marked, end_processes
from gridweave.grid.live.local_ray import connected, remove_temp
from gridweave.grid.live.local_state import GATEWAY, LocalGridState, forget_processes, read_grid_state, working_on
from gridweave.grid.live.ray_joining import knock

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
    name : str
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
    """End all that was started for a grid, as far as it is written down or can be told from others.

    Parameters
    ----------
    state : LocalGridState
    keep_jobs : bool
    """
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
