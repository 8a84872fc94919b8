"""What desks answer; whoever asks them need not load the cores for it."""

from __future__ import annotations

import msgspec

from gridweave.site.program import JobRecord

OVER = ("ended", "refused")
"""States in which nothing becomes of a job any more."""


class JobList(msgspec.Struct, frozen=True):
    """Some jobs, those with the highest numbers first.

    Attributes
    ----------
    jobs : list of JobRecord
    below : int, optional
        What the next page is below; None: there is none.
    """

    jobs: list[JobRecord]
    below: int | None = None


class MachineStatus(msgspec.Struct, frozen=True):
    """A machine of a site: its name, by which name it is reached, its nodes, and whether it answers."""

    name: str
    host: str
    nodes: int
    here: bool


class SiteStatus(msgspec.Struct, frozen=True):
    """How a site is.

    Attributes
    ----------
    name : str
    nodes, for_grid, free : int
        Nodes in all, how many of them the grid may have, and how many are free.
    waiting, running : int
        Jobs in its queue, and jobs that have nodes.
    draining : bool
        Whether it takes in nothing new for the grid.
    machines : tuple of MachineStatus
    policy : str
        How it schedules by itself, in words.
    """

    name: str
    nodes: int
    for_grid: int
    free: int
    waiting: int
    running: int
    draining: bool = False
    machines: tuple[MachineStatus, ...] = ()
    policy: str = ""


class SiteNames(msgspec.Struct, frozen=True):
    """A site of the grid: its name, how many of its nodes the grid may have, and its machines."""

    name: str
    for_grid: int
    machines: tuple[str, ...] = ()
