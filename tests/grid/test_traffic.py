"""What jobs send that say nothing, what a split costs by that, and what the grid learns of it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import InputError
from gridweave.grid.config.checks import grid_policy, usual_communication
from gridweave.grid.config.reading import grid_of_text, read_grid
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import BLOCKING
from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.meta.traffic import LEAST_RUNS, KnownTraffic
from gridweave.grid.sends import UsualCommunication
from gridweave.netmodel.communication import PROFILES
from gridweave.netmodel.model import NetworkModel
from gridweave.site.job import JobRecord, JobRequest, Program, Traffic
from gridweave.site.messages import (
    CommitNodes,
    Ended,
    FragmentOpened,
    FragmentReady,
    OpenGate,
    Probed,
    Reserved,
    ReserveNodes,
    SiteMessage,
    Started,
    UserSubmitted,
)
from gridweave.site.state import dump_state
from gridweave.values import parse_bytes

MINUTE_MS, MARGIN_MS = 60_000, 500
ALPHA, BETA, GAMMA = range(3)
LINKS = "5 ms, 10 Gbps between them"


def settings(text: str | None = None) -> GridSettings:
    """Return what the grid that ships is made of, or the grid of a GRID.toml."""
    read = read_grid(None) if text is None else grid_of_text(text, "GRID.toml", "")
    assert read.network is not None
    model = NetworkModel.of_table(read.network.table, read.network.topology)
    table = read.grid
    network = GridNetwork(
        model, table.split == "earliest-end", int(BLOCKING), table.exact_up_to, table.max_split_factor
    )
    sites = tuple((site.name, site.nodes) for site in read.sites)
    return GridSettings(sites=sites, policy=grid_policy(table), network=network, usual=usual_communication(table))


def request(nodes: int, communication: str | None = None, user: str = "", job_class: str = "") -> JobRequest:
    """Return a job of ten minutes."""
    traffic = None if communication is None else Traffic(communication=communication)
    program = Program(argv=("true",))
    limit_ms = 10 * MINUTE_MS
    return JobRequest(program=program, nodes=nodes, limit_ms=limit_ms, user=user, job_class=job_class, traffic=traffic)


def answers(message: object, now_ms: int) -> list[SiteMessage]:
    """Return what a site says to a message on which each part of a job begins."""
    match message:
        case ReserveNodes(job_id=job_id, attempt=attempt, start_ms=None):
            return [Started(job_id, attempt, now_ms)]
        case ReserveNodes(job_id=job_id, attempt=attempt):
            return [Reserved(job_id, attempt)]
        case CommitNodes(job_id=job_id, attempt=attempt):
            return [Started(job_id, attempt, now_ms), FragmentReady(job_id, attempt)]
        case OpenGate(job_id=job_id, attempt=attempt):
            return [FragmentOpened(job_id, attempt)]
    return []


def run(grid: LiveGrid, now_ms: int, asked: JobRequest, run_ms: int) -> JobRecord:
    """Run a job on an idle grid, from its submission to its end; return its record."""
    commands = grid.handle(now_ms, UserSubmitted(f"at {now_ms}", asked))
    while commands:
        told = [command for command in commands if isinstance(command, SendToSite)]
        events = [FromLiveSite(one.site, said) for one in told for said in answers(one.message, now_ms)]
        commands = grid.handle(now_ms, *events) if events else []
    record = max(grid.registry.records.values(), key=lambda each: each.job_id)
    for name, _ in record.places:
        site = [site for site, _ in grid.settings.sites].index(name)
        ended = Ended(record.job_id, record.attempt, now_ms + run_ms, "finished")
        grid.handle(now_ms + run_ms, FromLiveSite(site, ended))
    return record


def test_the_shipped_default_is_not_free() -> None:
    """On the grid that ships a job that says nothing is light, and a split that it needs has a cost and says so."""
    grid = LiveGrid(settings())
    quote = grid.quote(0, request(12))
    cost = f"split over alpha (6) and beta (6): 11 min 1 s instead of 10 min (factor 1.10: {LINKS})"
    assert quote.reason == f"it would start at once, {cost}"
    assert quote.places == (("alpha", 6), ("beta", 6))
    free = grid.quote(0, request(12, "none"))
    assert free.length_ms == 10 * MINUTE_MS < quote.length_ms


def test_a_record_says_what_its_split_costs_and_what_it_took() -> None:
    """The record, the story and the forecast of a job on several sites have the sentence that its quote had."""
    grid = LiveGrid(settings())
    text = grid.quote(0, request(12)).reason.removeprefix("it would start at once, ")
    record = run(grid, 0, request(12), 7 * MINUTE_MS)
    assert record.split is not None
    assert record.split.text == text
    assert (record.split.latency_ms, record.split.bandwidth_bps) == (5.0, 1e10)
    assert record.split.communication == "light, the default of the grid"
    forecast = grid.forecast(8 * MINUTE_MS, record.job_id)
    assert forecast is not None
    assert forecast.reason == f"finished; it took 7 min, {text}"


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_split_that_costs_too_much_is_not_made(control: str) -> None:
    """A job that is too wide for any site and sends too much is refused, with the split and its factor; or let in."""
    made = settings()
    made = msgspec.structs.replace(made, policy=msgspec.structs.replace(made.policy, control=control))
    quote = LiveGrid(made).quote(0, request(12, "all-to-all"))
    assert quote.state == "refused"
    assert quote.reason == (
        "it needs 12 nodes and the largest site has 8; split over alpha (8) and beta (4): 21 min 57 s instead "
        "of 10 min "
        f"(factor 2.19: {LINKS}), and grid.max_split_factor allows 2: if it communicates less, declare that with "
        "--communication"
    )
    assert made.network is not None
    network = GridNetwork(made.network.model, True, int(BLOCKING), 2_000, max_split_factor=3.0)
    assert (
        LiveGrid(msgspec.structs.replace(made, network=network)).quote(0, request(12, "all-to-all")).state == "waiting"
    )


def test_a_job_waits_for_one_site_rather_than_split_at_too_high_a_cost() -> None:
    """Where one site will have the nodes it waits, and hears what each split would cost and what is allowed."""
    grid = LiveGrid(settings())
    for key, nodes in (("alpha", 7), ("beta", 5)):
        grid.handle(0, UserSubmitted(key, request(nodes)))
    forecast = grid.quote(0, request(6, "fraction=0.5,pattern=ring,message=1kB"))
    assert forecast.start_ms == 10 * MINUTE_MS
    assert len(forecast.places) == 1
    assert forecast.split is not None
    assert forecast.split.reason.startswith("it is not split over ")
    assert forecast.split.reason.endswith(" now at the earliest: grid.max_split_factor allows 2")
    assert forecast.split.cost is not None
    assert forecast.split.cost.factor > 2


def test_decisions_follow_what_was_measured() -> None:
    """A second probe that shows a longer way moves splits off it, as the network that is shown; the first does not."""
    grid = LiveGrid(settings())
    for probes, latency_ms, sites in ((1, 5.0, {"alpha", "beta"}), (2, 150.0, {"alpha", "gamma"})):
        at_ms = probes * MINUTE_MS
        grid.handle(at_ms, Probed("alpha", "beta", at_ms, (300.0, 301.0), 0.0, 0.0))
        way = next(way for way in grid.network().paths if (way.origin, way.target) == ("alpha", "beta"))
        link = next(link for link in grid.network().links if {link.one, link.other} == {"alpha", "beta"})
        assert link.latency_ms is not None
        # What is shown of a link is without its jitter, of which half counts on average.
        assert way.latency_ms == link.latency_ms + link.jitter_ms / 2 == pytest.approx(latency_ms, rel=0.01)
        assert way.measured == link.measured == (probes > 1)
        assert {site for site, _ in grid.quote(at_ms, request(12)).places} == sites


def test_a_job_goes_to_its_data() -> None:
    """Where its input lies it starts at once; with its output wanted elsewhere it takes as long as that takes, too."""
    grid = LiveGrid(settings())
    asked = request(4)
    assert grid.quote(0, asked).places == (("gamma", 4),)
    reads = Traffic(input_site="alpha", input_bytes=10**12)
    quote = grid.quote(0, msgspec.structs.replace(asked, traffic=reads))
    assert (quote.places, quote.length_ms) == ((("alpha", 4),), 10 * MINUTE_MS)
    writes = msgspec.structs.replace(reads, output_site="beta", output_bytes=10**11)
    quote = grid.quote(0, msgspec.structs.replace(asked, traffic=writes))
    assert quote.places == (("alpha", 4),)
    assert quote.length_ms == 10 * MINUTE_MS + 80_005, "100 GB over 10 Gbps, and 5 ms"


HOSTS = """
sites = [{ name = "a", nodes = 2 }, { name = "b", nodes = 2 }, { name = "c", nodes = 2 }]
[net]
nodes = [{ name = "a" }, { name = "b" }, { name = "c" }]
links = [
  { from = "a", to = "b", latency_ms = 0.1, bandwidth = "10 Gbps" },
  { from = "a", to = "c", latency_ms = 0.1, bandwidth = "10 Gbps" },
  { from = "b", to = "c", latency_ms = 0.1, bandwidth = "10 Gbps" },
]
"""
"""Three hosts, of which the operator has written down that they are all near to each other."""


@pytest.mark.parametrize(("latency_ms", "kilobytes"), [(10.0, 1), (50.0, 1), (50.0, 100)])
def test_a_small_message_does_not_go_over_a_long_way(latency_ms: float, kilobytes: int) -> None:
    """Of three hosts, one of them far away by what was measured, a ring has the near ones, or waits for them."""
    ring = f"fraction=0.1,pattern=ring,message={kilobytes}kB"
    grid = LiveGrid(settings(HOSTS))
    for at_ms in (0, MINUTE_MS):
        for near in ("a", "b"):
            trips_ms = (2 * latency_ms, 2 * latency_ms + 0.1)
            grid.handle(at_ms, Probed(near, "c", at_ms, trips_ms, 0.0, 0.0))
    assert {site for site, _ in grid.quote(MINUTE_MS, request(4, ring)).places} == {"a", "b"}
    grid.handle(MINUTE_MS, UserSubmitted("on b", request(2)))
    (taken,) = grid.registry.records.values()
    assert taken.places[0][0] == "a", "the first of sites that fit equally well"
    silent, ringing = grid.quote(MINUTE_MS, request(4, "none")), grid.quote(MINUTE_MS, request(4, ring))
    assert (silent.start_ms, {site for site, _ in silent.places}) == (MINUTE_MS + MARGIN_MS, {"b", "c"})
    assert (ringing.start_ms, {site for site, _ in ringing.places}) == (11 * MINUTE_MS + MARGIN_MS, {"a", "b"})
    assert ringing.split is not None
    assert ringing.split.cost is not None
    assert ringing.split.cost.factor < 2


def known(**usual: object) -> KnownTraffic:
    """Return what jobs send on a grid with these defaults."""
    return KnownTraffic(["alpha", "beta"], UsualCommunication(**usual), moves_data=True)  # type: ignore[arg-type]


def test_the_page_has_the_numbers_of_the_profiles() -> None:
    """The table of docs/netmodel.md has each profile, its numbers, and its factors on the grid that ships."""
    page = (Path(__file__).parents[2] / "docs" / "netmodel.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")
    ]
    written = {row[0]: row for row in rows if len(row) == 8}
    assert set(written) == set(PROFILES)
    network = settings().network
    assert network is not None
    places = ({"alpha": 8, "beta": 4}, {"beta": 6, "gamma": 3}, {"alpha": 8, "gamma": 4})
    for name, profile in PROFILES.items():
        _, fraction, pattern, message, *factors, source = written[name]
        assert (float(fraction), pattern, bool(source)) == (profile.fraction, profile.pattern, True)
        assert profile.message_bytes == (0.0 if message == "0" else parse_bytes("message", message))
        assert [float(factor) for factor in factors] == [
            round(network.model.split_factor(profile, nodes), 2) for nodes in places
        ]


def test_messages_of_profiles_are_what_their_sources_come_to() -> None:
    """NAS Parallel Benchmarks, FT, class C, on 64 ranks; a face of 100 x 100 cells; ResNet-50 in 16 parts."""
    assert PROFILES["all-to-all"].message_bytes == 512**3 * 16 / 64**2
    assert PROFILES["nearest-neighbour"].message_bytes == 100**2 * 5 * 8
    assert PROFILES["ring"].message_bytes == pytest.approx(25_557_032 * 4 / 16, rel=0.01)


def test_who_says_what_a_job_sends() -> None:
    """The job itself goes first, then its class, its user, and the default."""
    light, ring, none = PROFILES["light"], PROFILES["ring"], PROFILES["none"]
    traffic = known(default=light, by_class={"cfd": ring}, by_user={"anna": none})
    assert traffic.communication(request(4)) == (light, "the default of the grid")
    assert traffic.communication(request(4, user="anna")).communication == none
    assert (
        traffic.communication(request(4, user="anna", job_class="cfd")).text == "ring, as the grid has it for class cfd"
    )
    said = traffic.communication(request(4, "fraction=0.1,pattern=ring,message=1MB", job_class="cfd"))
    assert (said.communication.pattern, said.communication.message_bytes, said.why) == ("ring", 1e6, "")
    only_data = JobRequest(program=Program(), limit_ms=1, traffic=Traffic(input_site="beta", input_bytes=5))
    assert traffic.sends(only_data).communication == light
    assert traffic.sends(only_data).data.input_site == 1


@pytest.mark.parametrize(
    ("traffic", "reason"),
    [
        (
            {"communication": "heavy"},
            "communication: 'heavy' is not known; one of none, light, nearest-",
        ),
        (
            {"communication": "fraction=1.2,pattern=ring,message=1MB"},
            "communication: fraction is 1.2; expected a fraction of the run",
        ),
        (
            {"communication": "fraction=0.2,pattern=star,message=1MB"},
            "communication: pattern 'star' is not known; one of",
        ),
        ({"communication": "fraction=0.2,pattern=ring"}, "message is missing; write for example fraction=0.2,pattern="),
        ({"communication": "light", "pattern": "ring"}, "communication: is given together with pattern"),
        ({"fraction": 0.2}, "pattern: is missing, but needed with fraction and message_bytes; one of none, all-to-all"),
        ({"pattern": "ring", "fraction": 1.5}, "fraction: is 1.5; expected a fraction of the run time, from 0 to 1"),
        ({"input_bytes": 5, "input_site": "delta"}, "input_site: 'delta' is not a site; one of alpha, beta"),
        ({"output_bytes": 5}, "output_site: is missing, but needed with output_bytes; one of alpha, beta"),
    ],
)
def test_what_no_job_can_send_is_refused_in_one_line(traffic: dict[str, object], reason: str) -> None:
    """The line says what is wrong, and what would be right."""
    asked = JobRequest(program=Program(argv=("true",)), limit_ms=1, traffic=Traffic(**traffic))  # type: ignore[arg-type]
    with pytest.raises(InputError) as error:
        known().sends(asked)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_data_does_not_count_under_reserved_starts() -> None:
    """Conservative backfilling counts no data, and says so."""
    traffic = KnownTraffic(["alpha"], UsualCommunication(), moves_data=False)
    asked = JobRequest(program=Program(), limit_ms=1, traffic=Traffic(input_site="alpha", input_bytes=5))
    with pytest.raises(InputError, match="have no effect under backfill conservative"):
        traffic.sends(asked)


def test_experience_knows_better() -> None:
    """Jobs of a user and class that ran whole and split tell the factor; it is used with enough runs, and kept."""
    grid = LiveGrid(settings())
    asked = request(12, user="anna", job_class="cfd")
    usual = grid.quote(0, asked).length_ms
    now_ms = 0
    # Five runs on one site: all of them say of themselves nothing, as those that follow.
    whole = request(8, user="anna", job_class="cfd")
    traffic = grid._traffic
    for number in range(LEAST_RUNS):
        now_ms += 20 * MINUTE_MS
        record = run(grid, now_ms, asked, 6 * MINUTE_MS + number)
        assert len(record.places) == 2
    assert grid.quote(now_ms, asked).length_ms == usual, "nothing is known of runs on one site"
    assert grid.core.model is not None
    for number in range(LEAST_RUNS):
        alone = JobRecord(
            job_id=1,
            request=asked,
            submit_ms=0,
            start_ms=0,
            end_ms=5 * MINUTE_MS + number,
            outcome="finished",
            places=(("alpha", 12),),
        )
        traffic.ended(alone, grid.core.model)
    kind = next(kind for kind in traffic.state() if kind.nodes == 12)
    assert kind.factor == pytest.approx(1.2, rel=1e-3)
    learnt = grid.quote(now_ms, asked)
    assert learnt.length_ms == pytest.approx(1.2 * asked.limit_ms, rel=1e-3)
    assert "learnt from 5 runs on one site and 5 split" in traffic.communication(asked).why
    again = LiveGrid(grid.settings)
    again.restore(msgspec.json.decode(msgspec.json.encode(grid.state()), type=again.state_type))
    assert again.quote(now_ms, asked).length_ms == learnt.length_ms
    assert dump_state(again) == dump_state(grid)
    assert grid.quote(now_ms, request(12, user="bert", job_class="cfd")).length_ms == usual, "of another user"
    assert traffic.communication(whole).why == "the default of the grid", "of another width"


def test_runs_that_vary_too_much_tell_nothing() -> None:
    """Where the ratio of run times is not known to a tenth it is not used."""
    traffic, model = known(default=PROFILES["light"]), settings().network
    assert model is not None
    asked = request(4)
    for number in range(2 * LEAST_RUNS):
        places = (("alpha", 4),) if number % 2 else (("alpha", 2), ("beta", 2))
        end_ms = MINUTE_MS * 4 ** (number // 2 % 2)
        record = JobRecord(
            job_id=number, request=asked, submit_ms=0, start_ms=0, end_ms=end_ms, outcome="finished", places=places
        )
        traffic.ended(record, model.model)
    (kind,) = traffic.state()
    assert kind.factor == pytest.approx(1.0)
    assert math.sqrt(kind.whole.error + kind.split.error) > 0.1
    assert kind.scale is None
    assert traffic.communication(asked).why == "the default of the grid"


def with_line(line: str) -> str:
    """Return the GRID.toml that ships with another line for a key of ``[grid]``."""
    key = line.partition(" ")[0]
    return re.sub(rf"^{key} .*$", line, read_grid(None).text, flags=re.MULTILINE)


def test_grid_communication_by_class_and_user() -> None:
    """GRID.toml says what jobs send: as one text, or by class and user; what is wrong with it is told where it is."""
    text = with_line('communication = { default = "none", by_class = { cfd = "ring" } }')
    made = settings(text).usual
    assert (made.default, made.by_class) == (PROFILES["none"], {"cfd": PROFILES["ring"]})
    wrong = text.replace('cfd = "ring"', 'cfd = "rings"')
    with pytest.raises(InputError, match=r"grid.communication.by_class.cfd: 'rings' is not known; one of none, light"):
        grid_of_text(wrong, "GRID.toml", "")
    for given, said in (
        ("max_split_factor = 0.5", "grid.max_split_factor: is 0.5; a number from 1 to 10,001"),
        ('communication = "heavy"', "grid.communication: 'heavy' is not known; one of none, light"),
    ):
        with pytest.raises(InputError, match=said):
            grid_of_text(with_line(given), "GRID.toml", "")
    alone = 'sites = [{ name = "a", nodes = 2 }]\n[grid]\ncommunication = "none"'
    with pytest.raises(InputError, match=r"grid.communication: is given, but there is no network"):
        grid_of_text(alone, "GRID.toml", "")
