"""Which batch system a site has, and how it is kept asked, as whoever starts the site says."""

from __future__ import annotations

from typing import Any

import msgspec

from gridweave.site.batch.system import BatchUser
from gridweave.site.launch import ANY_JOBS, MachineRules


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch system a site has, and how it is kept asked.

    Attributes
    ----------
    settings
        Which cluster it is, and as what jobs are submitted there: as the plug of the batch system takes it.
    system : str
        The name of the batch system, in `gridweave.site.batch.service.dictionary.SYSTEMS`.
    folder : str
        That the site shares with the nodes.
    host : str
        By which name the nodes reach the machine of the site; empty: its own.
    python, poll_s, lease_s
        As for `KeeperSettings`.
    rules : MachineRules
        Whose jobs the nodes start.
    users : dict of str to BatchUser
        As what a user's jobs are submitted; nobody named: all as the site's own.
    """

    settings: Any
    folder: str
    system: str = "slurm"
    host: str = ""
    python: str = ""
    poll_s: float = 3.0
    lease_s: float = 600.0
    rules: MachineRules = ANY_JOBS
    users: dict[str, BatchUser] = {}
