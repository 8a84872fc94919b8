"""A job's transfers over the links between a grid's sites, as declared by the job's user."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.errors import InputError
from gridweave.netmodel.communication import PATTERNS, Communication, parse_communication
from gridweave.site.job import Traffic

MAX_BYTES = 2**53
"""Maximum size of a transfer in bytes; a float64 represents every integer up to this number exactly."""

QUIET = Communication()
"""The communication of a job whose nodes send nothing."""


class JobData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The data that a job reads before it runs and writes after it runs, and the sites that store the data."""

    input_bytes: int = 0
    # The sites are numbers in the order of the grid.
    input_site: int = 0
    output_bytes: int = 0
    output_site: int = 0


class Sends(msgspec.Struct, frozen=True, gc=False):
    """A job's transfers over the links between sites."""

    communication: Communication = QUIET  # between its nodes
    data: JobData = JobData()


NOTHING = Sends()
"""The transfers of a job that sends nothing."""


def why_not_sent(sends: Sends, sites: int) -> str | None:
    """Return why a job's transfers are impossible, or None if they are possible."""
    data = sends.data
    for what in ("input", "output"):
        n_bytes, site = getattr(data, f"{what}_bytes"), getattr(data, f"{what}_site")
        if not 0 <= n_bytes <= MAX_BYTES:
            return f"{what}_bytes {n_bytes} is not within 0 to {MAX_BYTES}"
        if not 0 <= site < sites:
            return f"{what}_site {site} is not one of the sites 0 to {sites - 1}"
    return None


class UsualCommunication(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of jobs that declare none (docs/netmodel.md, "What a job sends").

    Attributes
    ----------
    default : Communication
        The communication of jobs whose class and user have no entry.
    by_class, by_user : dict from str to Communication
        The communication of jobs by class and by user; the class has priority.
    """

    default: Communication = QUIET
    by_class: dict[str, Communication] = {}
    by_user: dict[str, Communication] = {}

    def of(self, user: str, job_class: str) -> tuple[Communication, str]:
        """Return a job's assumed communication, and the source of the assumption as text."""
        if job_class in self.by_class:
            return self.by_class[job_class], f"as the grid has it for class {job_class}"
        if user in self.by_user:
            return self.by_user[user], f"as the grid has it for user {user}"
        return self.default, "the default of the grid"


def declared_communication(traffic: Traffic | None) -> Communication | None:
    """Return a job's declared communication, or None; raise InputError if the declaration is impossible."""
    if traffic is None:
        return None
    has_numbers = bool(traffic.fraction or traffic.message_bytes)
    if traffic.communication:
        if traffic.pattern or has_numbers:
            raise InputError("communication: is given together with pattern, fraction or message_bytes; give one")
        return parse_communication("communication", traffic.communication)
    if not traffic.pattern:
        if has_numbers:
            raise InputError(
                f"pattern: is missing, but needed with fraction and message_bytes; one of {', '.join(PATTERNS)}"
            )
        return None
    return Communication(pattern=traffic.pattern, fraction=traffic.fraction, message_bytes=traffic.message_bytes)


def data_of(traffic: Traffic | None, sites: Sequence[str]) -> JobData:
    """Return the data that a job reads and writes, with sites as numbers.

    Raise InputError if a site is unknown or missing.
    """
    if traffic is None:
        return JobData()
    for what, site in (("input", traffic.input_site), ("output", traffic.output_site)):
        if getattr(traffic, f"{what}_bytes") and not site:
            raise InputError(f"{what}_site: is missing, but needed with {what}_bytes; one of {', '.join(sites)}")
        if site and site not in sites:
            raise InputError(f"{what}_site: {site!r:.100} is not a site; one of {', '.join(sites)}")
    return JobData(
        input_bytes=traffic.input_bytes,
        input_site=sites.index(traffic.input_site) if traffic.input_site else 0,
        output_bytes=traffic.output_bytes,
        output_site=sites.index(traffic.output_site) if traffic.output_site else 0,
    )
