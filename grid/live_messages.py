"""What the live grid is made of, what it is told (events, in the past tense), and what it answers (commands)."""

from __future__ import annotations

import msgspec

from gridweave.grid.limited_control import LEASE_MS
from gridweave.grid.net_links import GridNetwork
from gridweave.grid.policy import GridPolicy
from gridweave.site.contract import FragmentsMet, Request
from gridweave.site.eligibility import Past
from gridweave.site.live_messages import Probed, SiteMessage
from gridweave.site.program import Accepted, Declined, DescribeJob, JobRequest, Noted, RecordEnded, RecordUsage


class GridSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the live grid is made of; as long as its journal is used, it stays the same.

    Attributes
    ----------
    sites : tuple of (str, int)
        Name of each site, and how many of its nodes the grid may have.
    policy : GridPolicy
    seed : int
        For the selection ``random``.
    margin_ms, retry_ms, lease_ms : int
    network : GridNetwork, optional
        As for `gridweave.grid.meta_core.MetaCore`.
    """

    sites: tuple[tuple[str, int], ...]
    policy: GridPolicy
    seed: int = 0
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    network: GridNetwork | None = None


class GridSubmitted(msgspec.Struct, frozen=True, tag=True):
    """A user has handed in a job.

    Attributes
    ----------
    key : str
    request : JobRequest
    origin : str
        Who asked, and with which request; it is told in the story.
    past : tuple of Past
        What the journal knows of the jobs that it waits for and that are over.
    """

    key: str
    request: JobRequest
    origin: str = ""
    past: tuple[Past, ...] = ()


class GridCancelled(msgspec.Struct, frozen=True, tag=True):
    """A user wants a job to end, or not to start."""

    job_id: int
    origin: str = ""


class GridHeld(msgspec.Struct, frozen=True, tag=True):
    """A user wants jobs that wait not to start."""

    job_ids: tuple[int, ...]
    origin: str = ""


class GridReleased(msgspec.Struct, frozen=True, tag=True):
    """A user wants jobs to be held no more."""

    job_ids: tuple[int, ...]
    origin: str = ""


class FromLiveSite(msgspec.Struct, frozen=True, tag=True):
    """A site has answered, or told something by itself."""

    site: int
    message: SiteMessage


LiveGridEvent = GridSubmitted | GridCancelled | GridHeld | GridReleased | FromLiveSite | Probed
"""What the live grid is told."""

GridMessage = Request | DescribeJob | FragmentsMet
"""What the grid tells a site."""


class TellSite(msgspec.Struct, frozen=True, tag=True):
    """Send a message to a site."""

    site: int
    message: GridMessage


LiveGridCommand = TellSite | Accepted | Declined | Noted | RecordUsage | RecordEnded
