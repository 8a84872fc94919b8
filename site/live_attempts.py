"""What a live site knows of the grid's attempts before they start, and the ports at which the ranks of jobs meet."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gridweave.site.live_messages import LOCAL
from gridweave.site.live_settings import SiteSettings
from gridweave.site.program import DescribeJob


class Port(msgspec.Struct, frozen=True):
    """A port that was given to a job; number 0: none was free."""

    agent: str = ""
    number: int = 0
    meeting: str = ""


NO_PORT = Port()


class Ports:
    """The ports of a site's machines, each given to one job at a time.

    Parameters
    ----------
    settings : SiteSettings

    Examples
    --------
    >>> from gridweave.site.live_messages import Agent
    >>> from gridweave.site.policy import SitePolicy
    >>> machine = Agent(name="n0", nodes=1, ports=(2000, 2001))
    >>> ports = Ports(SiteSettings(name="north", number=0, agents=(machine,), policy=SitePolicy()))
    >>> first = ports.take("n0")
    >>> first.meeting, ports.take("n0").meeting
    ('127.0.0.1:2000', '')
    >>> ports.give(first)
    >>> ports.take("n0").number
    2000
    """

    def __init__(self, settings: SiteSettings) -> None:
        self._ranges = {agent.name: range(*agent.ports) for agent in settings.agents}
        self._taken: dict[str, set[int]] = {agent.name: set() for agent in settings.agents}
        self._hosts: dict[str, str] = {}

    def reached_by(self, agent: str, host: str) -> None:
        """Have the ranks of later jobs reach a machine by this name."""
        self._hosts[agent] = host

    def host_of(self, agent: str) -> str:
        """Return by which name a machine is reached; empty if it was never there."""
        return self._hosts.get(agent, "")

    def take(self, agent: str) -> Port:
        """Return the lowest port of a machine that no job has; there may be none."""
        taken = self._taken[agent]
        number = next((port for port in self._ranges[agent] if port not in taken), 0)
        if not number:
            return NO_PORT
        taken.add(number)
        return Port(agent, number, f"{self._hosts.get(agent, LOCAL)}:{number}")

    def give(self, port: Port) -> None:
        """Take a port back."""
        if port.number:
            self._taken[port.agent].discard(port.number)

    def taken(self) -> Iterator[tuple[str, int]]:
        """Yield machine and number of the ports that jobs have."""
        for agent, numbers in self._taken.items():
            for number in numbers:
                yield agent, number


class Expected(msgspec.Struct):
    """An attempt of the grid from its description until it has left the site.

    Attributes
    ----------
    described : DescribeJob
    is_asked : bool
        Whether its nodes were asked for.
    meeting : str
        Where its ranks meet, as the grid has said with the commitment; empty: not on other sites, or not known.
    port : Port
        That its ranks on all sites meet at, from the hold to the start.
    """

    described: DescribeJob
    is_asked: bool = False
    meeting: str = ""
    port: Port = NO_PORT
