"""The steps by which sites agree on the start of a job, and who may fail after each, how: one drill for each."""

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
"""The steps of the agreement, and the message that is on its way when the fault comes."""

WHO = ("grid", "first site", "last site", "first machine", "last machine")
FAULTS = ("stop", "kill", "cut")
MOST_ALONE_MS = 2_000

# Of a machine there is no connection to the grid that could be cut.
DRILLS = [
    (step, who, fault) for step in STEPS for who in WHO for fault in FAULTS if not ("mach" in who and fault == "cut")
]


def most_alone_ms(step: str, who: str, fault: str, away_ms: float) -> float:
    """Return for how long a part may run alone when somebody was away for so long: what is promised (docs/contract.md).

    That is 2 s, with the two exceptions of the page.
    """
    if "machine" in who and fault == "kill":
        return MOST_ALONE_MS + away_ms
    if "site" in who and (step, fault) == ("met", "cut"):
        return max(MOST_ALONE_MS, away_ms)
    return MOST_ALONE_MS
