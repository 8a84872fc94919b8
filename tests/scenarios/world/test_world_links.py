"""Messages between the grid and its sites over the links of a network: times, losses, and links that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import GRID_END, SITE_END, Network, Routes, check_reach, node_of_grid
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.scenarios.world.traffic import merged
from gridweave.site.users.owner import OwnerPolicy
from support.builders import as_in_thesis, random_jobs, to_workload

ROW = """
[net]
nodes = [{name = "a"}, {name = "b"}, {name = "c"}, {name = "hub"}]
links = [
  {from = "a", to = "b", latency_ms = 10, bandwidth = "1 Gbps", back = {latency_ms = 20}},
  {from = "b", to = "c", latency_ms = 5, bandwidth = "1 Mbps"%s},
  {from = "b", to = "hub", latency_ms = 1, bandwidth = "1 Gbps"},
]
"""
RING = list(PATTERNS).index("ring")


def row_net(extra: str = "", changes: tuple[CableChange, ...] = (), **options: Any) -> GridNet:
    """Return sites a, b and c in a row, and a further node next to b; a slow link joins b and c."""
    table, topology = parse_network(ROW % extra, "row.toml", read_text=str, sites=("a", "b", "c"))
    timetable = Timetable.of(topology, changes) if changes else None
    return as_in_thesis(NetworkModel.of_table(table, topology), timetable, **options)


def jobs(*rows: tuple[int, int, int], **columns: Any) -> Workload:
    """Build jobs from (submit, width, length)."""
    submit_ms, width, run_ms = zip(*rows, strict=True)
    numbers = list(range(1, len(rows) + 1))
    return Workload(numbers, submit_ms, width, run_ms, run_ms, columns={k: np.array(v) for k, v in columns.items()})


def test_message_times_follow_the_path() -> None:
    """A message takes the latencies of its path and its size over the narrowest link."""
    net = row_net()
    only = [OwnerPolicy(grid_share=share) for share in (0.0, 0.0, 1.0)]
    # 500 bytes take 4 ms at 1 Mbit/s.
    for node, start_ms in (("a", 10 + 5 + 4), ("b", 5 + 4), ("c", 0), ("hub", 1 + 5 + 4)):
        at = node_of_grid(net, node)
        result = simulate_world(
            jobs((0, 2, 100)), [2, 2, 2], GridPolicy(mode="sharing"), owners=only, net=net, grid_node=at
        )
        assert int(result.start_ms[0]) == start_ms, node
        assert result.world.lost == 0


def test_each_direction_has_its_own_latency() -> None:
    routes = Routes(Network(), np.random.default_rng(0), row_net(), 0)
    assert routes.arrivals_ms(100, 1, SITE_END, 1) == [100 + 20 + 1]
    assert routes.arrivals_ms(100, 1, GRID_END, 1) == [100 + 10 + 1]
    assert routes.arrivals_ms(100, 0, GRID_END, 1) == [100]
    assert routes.keeps_order
    # Twice there and back, over the longest way: a to c.
    assert routes.margin_ms == 4 * (20 + 5 + 4)
    assert routes.resend_ms(2) == 2 * (20 + 5 + 4) + 1000


def test_a_large_packet_is_not_overtaken() -> None:
    """Without jitter, messages arrive in the order in which they were sent."""
    routes = Routes(Network(), np.random.default_rng(0), row_net(), 1)
    (large_ms,) = routes.arrivals_ms(0, 2, GRID_END, 100)
    (small_ms,) = routes.arrivals_ms(1, 2, GRID_END, 1)
    assert large_ms == 5 + 400
    assert small_ms == large_ms


def test_jitter_and_loss_of_links_add_to_those_of_the_network() -> None:
    """Losses of the path and of the network are independent."""
    net = row_net(", jitter_ms = 50, loss = 0.2")
    routes = Routes(Network(latency_ms=7, loss=0.5, jitter_ms=30), np.random.default_rng(1), net, 1)
    sent = [routes.arrivals_ms(0, 2, GRID_END, 1) for _ in range(4000)]
    arrived = [when_ms for copies in sent for when_ms in copies]
    assert 0.37 < len(arrived) / len(sent) < 0.43
    assert min(arrived) >= 5 + 4 + 7
    assert max(arrived) <= 5 + 4 + 7 + 50 + 30 + 1
    assert max(arrived) - min(arrived) > 60
    assert not routes.keeps_order
    one_way_ms = 5 + 4 + 50 + 7 + 30
    longest_ms = max(one_way_ms, 20 + 1 + 7 + 30)
    assert routes.margin_ms == 4 * longest_ms + 2 * (2 * longest_ms + 1000)
    untouched = Routes(Network(), np.random.default_rng(1), net, 1)
    assert untouched.arrivals_ms(0, 0, GRID_END, 1) == [21]


def test_the_grid_is_at_the_most_central_site_by_default() -> None:
    """The grid is at the site with the least sum of latencies; a node or a site can be named instead."""
    net = row_net()
    assert node_of_grid(net, None) == net.model.topology.node_number("b")
    assert node_of_grid(net, "hub") == net.model.topology.node_number("hub")
    with pytest.raises(InputError, match="there is no node 'x'; there are a, b, c, hub"):
        node_of_grid(net, "x")


def test_a_cut_link_separates_a_site_until_it_returns() -> None:
    """While the link is down the site works alone; afterwards all messages arrive."""
    changes = (CableChange(50, "link", (1,), 0.0), CableChange(90_000, "link", (1,), 1.0))
    net = row_net(changes=changes)
    only = [OwnerPolicy(grid_share=share) for share in (0.0, 0.0, 1.0)]
    workload = jobs((0, 2, 1_000), (10, 2, 1_000), (20_000, 2, 500))
    result = simulate_world(
        workload,
        [2, 2, 2],
        GridPolicy(mode="sharing"),
        owners=only,
        to_grid=[True, True, False],
        home=[0, 0, 2],
        net=net,
        grid_node=1,
        check=True,
    )
    assert result.start_ms[0] == 9
    # Its own users need no grid; the second job of the grid waits until the end of the first has been told.
    assert result.start_ms[2] == 20_000
    assert result.start_ms[1] > 90_000
    assert result.world.cuts == 1
    assert result.world.link_changes == 2
    assert result.world.lost > 0


def test_messages_avoid_a_link_that_is_down() -> None:
    """Routes follow the current links: slower over a slow link, longer around a link that is down."""
    text = """
    [net]
    nodes = [{name = "a"}, {name = "b"}, {name = "c"}]
    links = [
      {from = "a", to = "b", latency_ms = 10, bandwidth = "1 Mbps"},
      {from = "b", to = "c", latency_ms = 30, bandwidth = "1 Gbps"},
      {from = "c", to = "a", latency_ms = 30, bandwidth = "1 Gbps"},
    ]
    """
    table, topology = parse_network(text, "three.toml", read_text=str, sites=("a", "b", "c"))
    changes = [
        CableChange(10, "link", (0,), 0.1),
        CableChange(20, "link", (0,), 0.0),
        CableChange(30, "link", (0,), 1.0),
    ]
    net = as_in_thesis(NetworkModel.of_table(table, topology), Timetable.of(topology, changes))
    routes = Routes(Network(), np.random.default_rng(0), net, 0)
    assert not routes.keeps_order
    found = []
    for at_ms, model in net.periods():
        assert routes.change(model) == 0
        found.append(routes.arrivals_ms(1000 * (at_ms + 1), 1, GRID_END, 1)[0] - 1000 * (at_ms + 1))
    assert found == [14, 50, 61, 14]


def test_a_site_that_is_cut_off_forever_is_refused() -> None:
    """A site of which only the path back is gone is refused too."""
    net = row_net(changes=(CableChange(50, "link", (1,), 0.0),))
    with pytest.raises(InputError, match="site c has no path to or from the grid, at node b, from 50 ms on"):
        check_reach(net, 1)
    with pytest.raises(InputError, match="expected its links to come back"):
        simulate_world(jobs((0, 1, 10)), [1, 1, 1], GridPolicy(), net=net, grid_node=1)
    simulate_world(jobs((0, 1, 10)), [1, 1, 1], GridPolicy(), net=net)


def test_merged_timetables_have_the_lower_factors() -> None:
    topology = row_net().model.topology
    one = Timetable.of(topology, [CableChange(10, "link", (0,), 0.5), CableChange(30, "link", (0,), 1.0)])
    other = Timetable.of(topology, [CableChange(20, "x", (0, 1), 0.2), CableChange(30, "x", (1,), 0.0)])
    both = merged(one, other)
    assert both.instants_ms.tolist() == [10, 20, 30]
    assert both.factors[:, :2].tolist() == [[1, 1], [0.5, 1], [0.2, 0.2], [0.2, 0.0]]


def ring_jobs(*rows: tuple[int, int, int]) -> Workload:
    """Return jobs that spend half of their time on large messages around a ring."""
    count = len(rows)
    return jobs(*rows, pattern=[RING] * count, communication_fraction=[0.5] * count, message_bytes=[10_000_000] * count)


def test_a_job_pauses_while_its_link_is_down() -> None:
    """Under dynamic contention a split job continues when its link is back, and its limit does not count the pause."""
    changes = (CableChange(5_000, "link", (0,), 0.0), CableChange(205_000, "link", (0,), 1.0))
    net = row_net(changes=changes, contention="dynamic")
    whole = row_net(contention="dynamic")
    policy = GridPolicy(mode="multi-site")
    workload = ring_jobs((0, 4, 10_000))
    plain = simulate_world(workload, [2, 2, 1], policy, net=whole, check=True)
    assert plain.columns["factor"][0] > 1
    for how in ({}, {"grid_node": 1}):
        result = simulate_world(workload, [2, 2, 1], policy, net=net, check=True, **how)
        late_ms = int(result.end_ms[0] - result.start_ms[0]) - int(plain.end_ms[0] - plain.start_ms[0])
        assert late_ms == 200_000
        assert result.world.restarts == 0
        assert result.columns["slowdown"][0] == pytest.approx(1 + 200_000 / int(plain.end_ms[0] - plain.start_ms[0]))


def test_a_job_whose_link_never_comes_back_is_named() -> None:
    """The run is refused as in the batch driver."""
    net = row_net(changes=(CableChange(5_000, "link", (0,), 0.0),), contention="dynamic")
    with pytest.raises(InputError, match="job 1 runs on several sites and has no bandwidth from 5000 ms on"):
        simulate_world(ring_jobs((0, 4, 10_000)), [2, 2, 1], GridPolicy(mode="multi-site"), net=net)


def test_a_lost_job_that_links_no_longer_allow_is_refused() -> None:
    """A job that could be split only while the link was up is refused when a crash loses it later."""
    net = row_net(changes=(CableChange(5_000, "link", (0,), 0.0),))
    policy = GridPolicy(mode="multi-site")
    late = simulate_world(ring_jobs((6_000, 4, 10_000)), [2, 2, 1], policy, net=net)
    assert [job_id for job_id, _ in late.refused] == [1]
    for control in ("full", "limited"):
        waiting = simulate_world(
            ring_jobs((0, 4, 10_000), (1_000, 4, 10_000)),
            [2, 2, 1],
            GridPolicy(mode="multi-site", control=control),
            net=net,
            check=True,
        )
        assert [job_id for job_id, _ in waiting.refused] == [2]
        assert waiting.start_ms[0] == 0


def test_limited_control_sends_a_job_where_its_data_is() -> None:
    """Of the sites that can start the job now, the nearest to its input is chosen."""
    data = {"input_bytes": [10**6], "input_site": [2], "output_bytes": [0], "output_site": [0]}
    workload = jobs((0, 1, 1_000), **data)
    for control in ("full", "limited"):
        policy = GridPolicy(mode="sharing", control=control)
        near = simulate_world(workload, [1, 1, 1], policy, net=row_net(data="blocking"), check=True)
        assert near.fragments_of(0) == [(2, 1)]
        far = simulate_world(
            workload,
            [1, 1, 1],
            policy,
            owners=[OwnerPolicy(), OwnerPolicy(), OwnerPolicy(grid_share=0.0)],
            net=row_net(data="blocking"),
            check=True,
        )
        assert far.fragments_of(0) == [(1, 1)]
        # 8 Mbit at 1 Mbit/s, and 5 ms of latency.
        assert far.columns["transfer_ms"][0] == 8_005
        assert far.end_ms[0] == 9_005


def test_control_none_refuses_data() -> None:
    with pytest.raises(OptionError, match="data: is not moved under control 'none', which knows no links"):
        simulate_world(jobs((0, 1, 10)), [1, 1, 1], GridPolicy(control="none"), net=row_net(data="blocking"))


def test_links_with_equal_latencies_equal_a_network_with_that_latency() -> None:
    text = "[net]\nnodes = [{name = 'hub'}, {name = 'a'}, {name = 'b'}, {name = 'c'}]\n" + "".join(
        f"[[net.links]]\nfrom = 'hub'\nto = '{site}'\nlatency_ms = 6.5\nbandwidth = '10 Gbps'\n" for site in "abc"
    )
    table, topology = parse_network(text, "star.toml", read_text=str, sites=("a", "b", "c"))
    net = as_in_thesis(NetworkModel.of_table(table, topology))
    rng = np.random.default_rng(8)
    for mode in ("sharing", "multi-site", "adaptive"):
        drawn = random_jobs(rng, 40, 10, load=1.5, tick=50)
        workload, policy = to_workload(drawn), GridPolicy(mode=mode)
        for channels in (False, True):
            even = simulate_world(workload, [4, 3, 3], policy, network=Network(latency_ms=7), channels=channels)
            links = simulate_world(workload, [4, 3, 3], policy, net=net, grid_node=0, channels=channels, check=True)
            assert links.start_ms.tolist() == even.start_ms.tolist()
            assert links.end_ms.tolist() == even.end_ms.tolist()
            assert links.world.messages == even.world.messages
