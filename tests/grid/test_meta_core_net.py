"""MetaCore with links between its sites: what jobs say, links that change, and what makes no sense."""

from __future__ import annotations

import msgspec
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import NO_DATA
from gridweave.grid.messages import (
    FromSite,
    GridCommand,
    GridJobSubmitted,
    GridJobUnplaceable,
    LinksChanged,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import JobData, Sends
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network
from gridweave.site.job import Job
from gridweave.site.messages import Ended, Quoted, Refused, RequestQuote, Reserved, ReserveNodes

TEXT = """
[net]
nodes = [{name = "a"}, {name = "b"}]
links = [{from = "a", to = "b", latency_ms = 1, bandwidth = "10 Gbps"}]
"""
RING = Sends(Communication(fraction=0.1, message_bytes=1e6, pattern="ring"))


def network() -> GridNetwork:
    """Return two sites and a cable."""
    table, topology = parse_network(TEXT, "two.toml", read_text=str)
    return GridNetwork(NetworkModel.of_table(table, topology), False, NO_DATA, 0)


def meta(control: str = "full") -> MetaCore:
    """Return a grid of two sites of 4 nodes."""
    return MetaCore([4, 4], GridPolicy(mode="multi-site", control=control), network=network())


def submitted(job_id: int, width: int, sends: Sends | None = RING) -> GridJobSubmitted:
    """Return the submission of a job."""
    return GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=10_000), 1.0, sends)


def holds(commands: list[GridCommand]) -> list[tuple[int, int, int]]:
    """Return (site, width, length) of what is asked for."""
    return [
        (command.site, command.request.width, command.request.length_ms)
        for command in commands
        if isinstance(command, ToSite) and isinstance(command.request, ReserveNodes)
    ]


def test_a_split_has_the_length_of_the_model() -> None:
    """What is held is as long as the estimate times the factor of these fragments; without messages no longer."""
    known = network()
    factor = known.model.split_factor(RING.communication, {"a": 4, "b": 2})
    assert factor > 1
    commands = holds(meta().handle(0, submitted(1, 6)))
    assert commands == [(0, 4, commands[0][2]), (1, 2, commands[0][2])]
    assert commands[0][2] - 1 < 10_000 * factor <= commands[0][2]
    assert holds(meta().handle(0, submitted(1, 6, None))) == [(0, 4, 10_000), (1, 2, 10_000)]


def test_jobs_are_placed_by_the_links_as_they_are() -> None:
    """While the cable is down a job waits that needs it; when it is back it starts."""
    core = meta()
    assert holds(core.handle(0, LinksChanged((0.0,)), submitted(1, 6))) == []
    assert holds(core.handle(5, submitted(2, 3))) == [(0, 3, 10_000)]
    core.check_invariants()
    assert holds(core.handle(6, LinksChanged((1.0,)))) == []
    commands = core.handle(7, FromSite(0, Ended(2, 1, 7, "finished")))
    assert [hold[:2] for hold in holds(commands)] == [(0, 4), (1, 2)]


def test_links_change_before_jobs_are_submitted() -> None:
    """Of one instant the change comes first, whatever the order in which it is told."""
    assert holds(meta().handle(0, submitted(1, 6), LinksChanged((0.0,)))) == []


def test_a_hopeless_job_is_refused_where_it_waits() -> None:
    """One that waits is refused at once, also if it has just been submitted; one that is not known is passed over."""
    core = meta()
    commands = core.handle(0, GridJobUnplaceable(1, "no way"), submitted(1, 6))
    assert commands == [ReportRefused(1, "no way")]
    assert core.handle(1, GridJobUnplaceable(9, "no way")) == []
    core.handle(2, LinksChanged((0.0,)), submitted(2, 6))
    assert core.handle(3, GridJobUnplaceable(2, "no way")) == [ReportRefused(2, "no way")]
    core.check_invariants()


def test_a_hopeless_job_that_runs_is_refused_when_it_is_lost() -> None:
    """It is left alone while it runs; lost with a site, it is not queued again."""
    core = meta()
    core.handle(0, submitted(1, 3))
    assert core.handle(1, GridJobUnplaceable(1, "no way")) == []
    assert core.handle(2, FromSite(0, Ended(1, 1, 2, "lost"))) == [ReportRefused(1, "no way")]
    core.check_invariants()


def test_many_jobs_keep_what_they_send() -> None:
    """The arrays of a queue that becomes long hold what each job sends, in its place."""
    core = meta()
    core.handle(0, LinksChanged((0.0,)))
    talks = [Communication(fraction=0.1 + job_id / 1000, message_bytes=1e6, pattern="ring") for job_id in range(300)]
    for job_id, talk in enumerate(talks):
        assert core.handle(1, submitted(job_id, 6, Sends(talk))) == []
    core.check_invariants()
    commands = core.handle(2, LinksChanged((1.0,)))
    for job_id, talk in enumerate(talks[:-1]):
        factor = network().model.split_factor(talk, {"a": 4, "b": 2})
        assert {hold[:2] for hold in holds(commands)} == {(0, 4), (1, 2)}
        assert 10_000 * factor <= holds(commands)[0][2] < 10_000 * factor + 1
        core.handle(2 + job_id, *(FromSite(site, Reserved(job_id, 1)) for site in (0, 1)))
        ends = (FromSite(site, Ended(job_id, 1, 3 + job_id, "finished")) for site in (0, 1))
        commands = core.handle(3 + job_id, *ends)


@pytest.mark.parametrize("control", ["full", "limited"])
@pytest.mark.parametrize(
    ("event", "told"),
    [
        (LinksChanged((1.0, 1.0)), "factors are 2 numbers; expected one from 0 to 1 for each of the 1 cables"),
        (LinksChanged((1.5,)), "factors are 1 numbers; expected one from 0 to 1"),
        (submitted(1, 2, Sends(data=JobData(input_site=2))), "job 1: input_site 2 is not one of the sites 0 to 1"),
        (submitted(1, 2, Sends(data=JobData(output_bytes=-1))), "job 1: output_bytes -1 is not within 0 to"),
    ],
)
def test_what_makes_no_sense_is_refused(control: str, event: LinksChanged | GridJobSubmitted, told: str) -> None:
    """Impossible links, sites and sizes are refused by name, and nothing has changed then."""
    core = meta(control)
    with pytest.raises(InputError, match=told):
        core.handle(0, event)
    core.check_invariants()


def test_a_network_is_of_the_grids_own_sites() -> None:
    """A network of other sites is refused, and so are changes of links where there are none."""
    with pytest.raises(OptionError, match="has 2 sites and the grid has 3"):
        MetaCore([1, 1, 1], GridPolicy(), network=network())
    with pytest.raises(InputError, match="links have changed, but the grid has no network"):
        MetaCore([1, 1], GridPolicy()).handle(0, LinksChanged((1.0,)))


def parts_of(core: MetaCore, commands: list[GridCommand]) -> list[tuple[int, int, int]]:
    """Return (site, width, length) of what is asked for when each site has quoted two nodes for a part."""
    asked = {c.site: c.request for c in commands if isinstance(c, ToSite) and isinstance(c.request, RequestQuote)}
    return holds(core.handle(5, *(FromSite(site, Quoted(one.quote_id, 2, None)) for site, one in asked.items())))


def test_what_a_job_sends_goes_with_it_when_it_leaves_the_queue() -> None:
    """A site can never run it, so it is placed apart: as long as if it came there first, also over a restart."""
    limited, full, again = meta("limited"), meta(), meta()
    known = parts_of(limited, limited.handle(0, submitted(1, 4)))
    assert [(site, width) for site, width, _ in known] == [(0, 2), (1, 2)]
    assert known[0][2] > 10_000
    full.handle(0, submitted(1, 4))
    again.restore(msgspec.json.decode(msgspec.json.encode(full.state()), type=full.state_type))
    for core in (full, again):
        assert parts_of(core, core.handle(1, FromSite(0, Refused(1, 1, "never here", "never")))) == known
