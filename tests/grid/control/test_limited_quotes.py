"""What a quote says under limited control before any site is asked."""

from __future__ import annotations

import pytest

from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.messages import Quoted, RequestQuote
from gridweave.site.state import dump_state
from support.stepping import do, meta, said, submitted

MINUTE_MS = 60_000


def quote_of(nodes: int, **policy: object) -> tuple[LiveGrid, JobRequest]:
    """Return a grid of two sites under limited control, and a job of ten minutes."""
    settings = GridSettings(
        sites=(("north", 8), ("south", 4)),
        policy=GridPolicy(**{"mode": "adaptive", "control": "limited", "overhead": 0.25, **policy}),  # type: ignore[arg-type]
    )
    return LiveGrid(settings), JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=10 * MINUTE_MS)


def test_a_job_wider_than_every_site_is_quoted_its_split() -> None:
    """With the sites, the lengths and the factor, in the words that full control has."""
    core, request = quote_of(10)
    before = dump_state(core)
    quote = core.quote(0, request)
    assert dump_state(core) == before, "a quote has changed the grid"
    cost = "split over north (8) and south (2): 12 min 30 s instead of 10 min (factor 1.25)"
    assert quote.reason.startswith(
        f"it needs 10 nodes and the largest site has 8; it would be {cost}, once these nodes are "
    )
    assert quote.split is not None
    assert quote.split.cost is not None
    assert (quote.split.reason, quote.split.length_ms, quote.split.cost.factor) == (f"it is {cost}", 750_000, 1.25)


@pytest.mark.parametrize(("nodes", "policy"), [(8, {}), (10, {"mode": "sharing"})])
def test_other_jobs_are_quoted_no_split(nodes: int, policy: dict[str, str]) -> None:
    """What fits on one site is split only where that ends sooner, which the sites know; some grids split nothing."""
    core, request = quote_of(nodes, **policy)
    assert core.quote(0, request).split is None


def test_a_quote_has_the_draw_of_the_next_submission() -> None:
    """Among sites that could all start the job at once, the quote names the one that the job then goes to."""
    core = meta(4, 4, 4, mode="sharing", control="limited", selection="random")
    offers = {site: Quoted(0, 4, 0) for site in range(3)}
    places = []
    for job_id in range(1, 20):
        quote = core.quoter(0, submitted(99, 1), offers=offers)()
        asked = do(core, 0, submitted(job_id, 1))
        answers = [said(c.site, Quoted(c.request.quote_id, 4, 0)) for c in asked if isinstance(c.request, RequestQuote)]
        (delegated,) = [command for answer in answers for command in do(core, 0, *answer)]
        places.append((quote.places, ((f"site {delegated.site}", 1),)))
    assert all(quoted == taken for quoted, taken in places)
    assert len(set(places)) == 3
