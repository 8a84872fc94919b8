"""What Slurm's accounting (slurmdbd) keeps of jobs that have ended, where there is one, as ``sacct`` prints it. Pure.

Its columns are asked for by name; what does differ between versions of ``sacct`` is handled here alone.
"""

from __future__ import annotations

from gridweave.errors import UnavailableError
from gridweave.site.batch.slurm.parse import with_word
from gridweave.site.batch.slurm.reasons import how_ended
from gridweave.site.batch.system import Allocation

SACCT = ("--noheader", "--parsable2", "--allocations", "--allusers", "--format=JobIDRaw,User,JobName,State")
"""For lines of number, user, name and state, one for each job."""

SINCE = "--starttime=now-31days"
"""Jobs that ended longer ago are not told of: that a site is away for so long is not expected."""


def read_sacct(text: str, own: str) -> list[Allocation]:
    """Return the jobs that have ended of those that ``sacct`` prints.

    Raises
    ------
    UnavailableError
        If a line is none of that format.

    Examples
    --------
    >>> [(each.name, each.end) for each in read_sacct("71|anna|gw-1|CANCELLED by 0", "anna")]
    [('gw-1', 'cancelled')]
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = line.split("|")
        if len(fields) != 4 or not fields[0].isdecimal():
            raise UnavailableError(f"sacct printed what is not understood: {line!r:.100}")
        number, user, name, state = fields
        ended = how_ended(state)
        if ended is not None:
            whose = "" if user == own else user
            reason = with_word(ended[1], state.partition(" ")[0])
            found.append(
                Allocation(name=name, number=number, state="ended", end=ended[0], reason=reason, runs_as=whose)
            )
    return sorted(found, key=lambda each: int(each.number))
