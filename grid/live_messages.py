"""What the live grid is made of, what it is told (events, in the past tense), and what it answers (commands)."""

from __future__ import annotations

import msgspec

from gridweave.site.eligibility import Past
from gridweave.site.job import Accepted, Declined, DescribeJob, JobRequest, Noted, RecordEnded, RecordUsage
from gridweave.site.messages import FragmentsMet, Probed, Request, SiteMessage


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
