"""What a live site is made of."""

from __future__ import annotations

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines import Policy
from gridweave.site.live_messages import Agent
from gridweave.site.owner import OwnerPolicy


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a live site is made of; as long as a journal is used, it stays the same.

    Attributes
    ----------
    name : str
    number : int
        Its place among the sites of the grid, from 0.
    agents : tuple of Agent
        The machines, and how many nodes each of them has.
    policy : SitePolicy or SharedNodes
    owner : OwnerPolicy
    rendezvous_ms : int
        As for `ContractCore`.

    Raises
    ------
    OptionError
        If two machines have the same name, or there is none.
    """

    name: str
    number: int
    agents: tuple[Agent, ...]
    policy: Policy
    owner: OwnerPolicy = OwnerPolicy()
    rendezvous_ms: int = 30_000

    def __post_init__(self) -> None:
        names = [agent.name for agent in self.agents]
        if not names or len(set(names)) != len(names):
            right = "at least one machine, each with its own name"
            raise OptionError("agents", f"of site {self.name} are {names}; {right}")

    @property
    def nodes(self) -> int:
        """Nodes of the site."""
        return sum(agent.nodes for agent in self.agents)
