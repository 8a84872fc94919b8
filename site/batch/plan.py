"""Which batch system a site has, and how it is kept asked, as whoever starts the site says."""

from __future__ import annotations

import msgspec

from gridweave.site.batch.slurm.settings import SlurmSettings
from gridweave.site.batch.system import BatchUser
from gridweave.site.launch import ANY_JOBS, MachineRules


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch system a site has, and how it is kept asked.

    Attributes
    ----------
    slurm : SlurmSettings
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

    slurm: SlurmSettings
    folder: str
    host: str = ""
    python: str = ""
    poll_s: float = 3.0
    lease_s: float = 600.0
    rules: MachineRules = ANY_JOBS
    users: dict[str, BatchUser] = {}
