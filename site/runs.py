"""What is run of a job: which ranks on which machine, what has become of each part, and so of the whole.

What a live site knows of the grid's attempts before they start, and the ports at which the ranks of jobs meet.

What a live site is made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from gridweave.errors import OptionError
from gridweave.site.disciplines.protocol import Policy
from gridweave.site.job import DescribeJob, JobRequest, NodeIntervals
from gridweave.site.launch import Launch, Rank, total_usage
from gridweave.site.launch import Usage as Used
from gridweave.site.messages import LOCAL, Agent, ConfirmRun, EndRun, RunEnded, StartJob, StartRun
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


class Port(msgspec.Struct, frozen=True):
    """A port that was given to a job; number 0: none was free."""

    agent: str = ""
    number: int = 0
    meeting: str = ""


NO_PORT = Port()


class Ports:
    """The ports of a site's machines, each given to one job at a time.

    Examples
    --------
    >>> from gridweave.site.messages import Agent
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


MOST_CODES = 20
"""So many ranks that did not end well are told of."""


class Piece(msgspec.Struct):
    """What one machine runs of a job.

    Attributes
    ----------
    launch : Launch
    slots : tuple of int
        As in `StartRun`.
    has_started : bool
        Whether the machine has said that it runs, or that it has ended.
    has_run : bool
        Whether it may have run.
    in_doubt : bool
        Whether the machine was away, and may know nothing of it any more.
    delayed : str
        Why the machine could not start it yet; empty if it has not said so.
    end : RunEnded, optional
    """

    launch: Launch
    slots: tuple[int, ...]
    has_started: bool = False
    has_run: bool = False
    in_doubt: bool = False
    delayed: str = ""
    end: RunEnded | None = None

    @property
    def is_over(self) -> bool:
        """Whether the machine runs nothing of it any more."""
        return self.end is not None


class Run(msgspec.Struct):
    """An attempt of a job on this site, from its start until no machine runs anything of it.

    Attributes
    ----------
    job_id, attempt : int
    request : JobRequest
    width : int
        Its nodes on this site.
    pieces : dict from str to Piece
        By machine, in the order of the ranks.
    ending : str
        Why its machines were told to end it; empty if they were not.
    killed : str
        ``limit`` or ``cancelled`` if the site wanted it to end; ``lost`` if that was to begin it anew elsewhere.
    why_killed : str
        Why, in one line.
    port : Port
        At which its ranks meet.
    """

    job_id: int
    attempt: int
    request: JobRequest
    width: int
    start_ms: int
    pieces: dict[str, Piece]
    ending: str = ""
    killed: str = ""
    why_killed: str = ""
    port: Port = NO_PORT

    @property
    def has_started(self) -> bool:
        """Whether all its machines have begun."""
        return all(piece.has_started for piece in self.pieces.values())

    @property
    def why_delayed(self) -> str:
        """Why a machine could not start it yet; empty if none has said so."""
        return next((piece.delayed for piece in self.pieces.values() if piece.delayed), "")

    @property
    def where(self) -> str:
        """Its machines, for people."""
        return ", ".join(self.pieces)

    @property
    def used(self) -> Used:
        """What all its machines used of it."""
        return total_usage(tuple(piece.end.used for piece in self.pieces.values() if piece.end is not None))

    def meet(self, rendezvous: str) -> None:
        """Have its ranks meet there."""
        for piece in self.pieces.values():
            piece.launch = msgspec.structs.replace(piece.launch, rendezvous=rendezvous)

    def outcome(self) -> tuple[str, str]:
        """Return how the whole ended, and why in one line.

        What ended by itself, and well, has finished, even if it was to be ended at that moment. What was lost may
        not have run to its limit; what never ran has reached none: a machine was away, or full, for so long.
        """
        ends = [piece.end for piece in self.pieces.values() if piece.end is not None]
        found = {end.outcome: end.reason for end in reversed(ends)}
        if set(found) == {"finished"}:
            return "finished", ""
        has_run = any(piece.has_run for piece in self.pieces.values())
        if self.killed == "limit" and not has_run:
            return "lost", self.why_delayed or "its machines did not start it within its limit"
        if self.killed == "lost" or ("lost" in found and self.killed != "cancelled"):
            why = found.get("lost", self.why_killed)
            if has_run and self.request.program.if_lost == "fail":
                return "failed", f"lost: {why}"
            return "lost", why
        if self.killed and not found.keys() <= {"finished", "failed"}:
            return self.killed, self.why_killed
        worst = next(worst for worst in ("failed", "limit", "cancelled") if worst in found)
        return worst, found[worst]


def repeated_orders(runs: Iterable[Run], agents: Collection[str]) -> Iterator[StartRun | ConfirmRun | EndRun]:
    """Yield what machines should run or end now, as far as they have not said that they do."""
    for run in runs:
        for agent, piece in run.pieces.items():
            if agent not in agents or piece.is_over:
                continue
            if piece.in_doubt and piece.has_started:
                yield ConfirmRun(agent, run.job_id, run.attempt)
            if run.ending:
                # A machine that never heard of it makes a note that it is not to be started.
                yield EndRun(agent, run.job_id, run.attempt, run.ending)
            elif not piece.has_started:
                yield StartRun(agent, piece.launch, piece.slots)


def make_run(
    settings: SiteSettings, start: StartJob, described: DescribeJob, threads_per_node: int, now_ms: int
) -> Run:
    """Work out what each machine has to run.

    Parameters
    ----------
    settings : SiteSettings
        The nodes of the site are those of its first machine, then those of the next.
    threads_per_node : int
        How `StartJob.threads` counts.

    Returns
    -------
    Run
        Ranks go up with the nodes. Where nodes are shared, a rank has its hardware threads, counted from 0 on its node.
    """
    nodes = [node for low, high in start.nodes for node in range(low, high)]
    lanes = _lanes(start.threads, threads_per_node)
    program = described.request.program
    chosen = nodes[:1] if program.ranks == "first-node" else nodes
    pieces: dict[str, Piece] = {}
    first = 0
    for agent in settings.agents:
        here = [(number, node) for number, node in enumerate(chosen) if first <= node < first + agent.nodes]
        if here:
            ranks = tuple(Rank(described.first_rank + number, number, lanes.get(node)) for number, node in here)
            launch = _launch(settings.name, described, ranks)
            pieces[agent.name] = Piece(launch, tuple(node - first for _, node in here))
        first += agent.nodes
    return Run(described.job_id, described.attempt, described.request, len(nodes), now_ms, pieces)


def _lanes(threads: NodeIntervals, threads_per_node: int) -> dict[int, tuple[int, ...]]:
    """Return the hardware threads of each node that are not all the job's."""
    found: dict[int, list[int]] = {}
    for low, high in threads:
        for thread in range(low, high):
            found.setdefault(thread // threads_per_node, []).append(thread % threads_per_node)
    return {node: tuple(lanes) for node, lanes in found.items()}


def _launch(site: str, described: DescribeJob, ranks: tuple[Rank, ...]) -> Launch:
    program, array = described.request.program, described.request.array
    environment = program.environment
    if array is not None:
        environment = environment | {"GRIDWEAVE_ARRAY": array.name, "GRIDWEAVE_ARRAY_INDEX": str(array.index)}
    return Launch(
        job_id=described.job_id,
        attempt=described.attempt,
        ranks=ranks,
        size=described.size,
        argv=program.argv,
        call=program.call,
        environment=environment,
        working_directory=program.working_directory,
        site=site,
        sites=described.sites,
        limit_ms=described.limit_ms,
        grace_ms=program.grace_ms,
        output_limit_bytes=program.output_limit_bytes,
        end_on_failure=program.end_on_failure,
    )


def exit_codes_of(run: Run) -> tuple[tuple[int, int | None, int | None], ...]:
    """Return rank, exit code and signal of those that did not end well, by rank; not of more than `MOST_CODES`."""
    ranks = [rank for piece in run.pieces.values() if piece.end is not None for rank in piece.end.ranks]
    bad = [(rank.rank, rank.exit_code, rank.signal) for rank in ranks if rank.exit_code != 0]
    return tuple(sorted(bad, key=lambda code: code[0])[:MOST_CODES])
