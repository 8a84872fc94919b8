"""The states of a delegated job and of a co-allocation attempt, as tables for `gridweave.site.lifecycle`."""

from __future__ import annotations

from typing import Final, Literal

from gridweave.site.lifecycle import StateTable

DelegationState = Literal["asking", "backlog", "waiting", "withdrawing", "running", "split", "over"]
DelegationCause = Literal["submit", "ask", "put back", "delegate", "withdraw", "start", "split", "leave"]

AttemptState = Literal["asked", "committed", "over"]
AttemptCause = Literal["ask", "ask one", "commit", "cancel", "give up", "end"]

ASKING: Final = "asking"
BACKLOG: Final = "backlog"
WAITING: Final = "waiting"
WITHDRAWING: Final = "withdrawing"
RUNNING: Final = "running"
SPLIT: Final = "split"

DELEGATION: Final = StateTable[DelegationState, DelegationCause](
    "delegation of job",
    states={
        ASKING: "The grid waits for quotes for the job.",
        BACKLOG: "No site accepts the job now. The grid asks again later.",
        WAITING: "In the queue of a site.",
        WITHDRAWING: "In the queue of a site. The grid has asked for it back: another site could start it at once.",
        RUNNING: "Started by its site.",
        SPLIT: "Placed on several sites, as an attempt.",
        "over": "No longer at this level of control.",
    },
    causes={
        "submit": "The job comes to this level of control.",
        "ask": "The grid asks all sites for quotes.",
        "put back": "No site accepts the job now.",
        "delegate": "The grid puts the job into the queue of a site.",
        "withdraw": "The grid asks the site to give the job back.",
        "start": "The site has started the job.",
        "split": "The grid asks several sites for nodes.",
        "leave": "The job is over, refused, or held by its user.",
    },
    first={"submit": ASKING},
    rows={
        ASKING: {"ask": ASKING, "put back": BACKLOG, "delegate": WAITING, "split": SPLIT, "leave": "over"},
        BACKLOG: {"ask": ASKING, "put back": BACKLOG, "delegate": WAITING, "split": SPLIT, "leave": "over"},
        WAITING: {
            "ask": ASKING,
            "put back": BACKLOG,
            "delegate": WAITING,  # without control, a job that a site returns is sent to the next site
            "withdraw": WITHDRAWING,
            "start": RUNNING,
            "leave": "over",
        },
        WITHDRAWING: {"ask": ASKING, "put back": BACKLOG, "delegate": WAITING, "start": RUNNING, "leave": "over"},
        RUNNING: {"ask": ASKING, "put back": BACKLOG, "leave": "over"},
        SPLIT: {"ask": ASKING, "put back": BACKLOG, "leave": "over"},
        "over": {},
    },
)

UNPLACED: Final = (ASKING, BACKLOG)
"""The states of a delegated job that is not at any site."""

QUEUED: Final = (WAITING, WITHDRAWING)
"""The states of a delegated job that is in the queue of a site."""

ASKED: Final = "asked"
COMMITTED: Final = "committed"

ATTEMPT: Final = StateTable[AttemptState, AttemptCause](
    "attempt of job",
    states={
        ASKED: "Not all sites have reserved their nodes.",
        COMMITTED: "Will start, or is being ended. It is over once all its sites have reported that.",
        "over": "Ended, or given up.",
    },
    causes={
        "ask": "The grid asks several sites for nodes.",
        "ask one": "The grid asks a single site, which starts the job without a second phase.",
        "commit": "All sites have reserved their nodes.",
        "cancel": "The attempt must end, and can no longer be committed.",
        "give up": "A site refused or was silent, or a lease ended too early.",
        "end": "The fragments on all sites are over.",
    },
    first={"ask": ASKED, "ask one": COMMITTED},
    rows={
        ASKED: {"commit": COMMITTED, "cancel": COMMITTED, "give up": "over"},
        COMMITTED: {"cancel": COMMITTED, "give up": "over", "end": "over"},
        "over": {},
    },
)
