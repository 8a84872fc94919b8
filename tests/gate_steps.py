"""The steps by which sites agree on the start of a job, and the faults after each step: one drill per fault."""

from __future__ import annotations

STEPS = {
    "asked": "ReserveNodes",
    "reserved": "Reserved",
    "committed": "CommitNodes",
    "started": "Started",
    "ready": "FragmentReady",
    "opened": "OpenGate",
    "begun": "FragmentOpened",
    "met": "FragmentsMet",
}
"""Maps each step of the agreement to the message that is being sent when the fault occurs."""

WHO = ("grid", "first site", "last site", "first machine", "last machine")
FAULTS = ("stop", "kill", "cut")
MOST_ALONE_MS = 2_000

# A machine has no connection to the grid that could be cut.
DRILLS = [
    (step, who, fault) for step in STEPS for who in WHO for fault in FAULTS if not ("mach" in who and fault == "cut")
]


def most_alone_ms(step: str, who: str, fault: str, away_ms: float) -> float:
    """Return how long a part of a job may run alone, as promised in docs/contract.md.

    The limit is 2 s, with the two exceptions of that page; `away_ms` is the duration of the fault.
    """
    if "machine" in who and fault == "kill":
        return MOST_ALONE_MS + away_ms
    if "site" in who and (step, fault) == ("met", "cut"):
        return max(MOST_ALONE_MS, away_ms)
    return MOST_ALONE_MS
