"""Logs of node failures, converted to node events of a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridweave.cli.main import app
from gridweave.errors import TraceError
from gridweave.scenarios.traces.outages import Outage, node_events, read_node_events, read_outages

SLURM = Path(__file__).parents[2] / "data" / "slurm"
LOS_ALAMOS = """\
System,machine type,nodes,procstot,procsinnode,nodenum,nodenumz,node install,node prod,node decom,fru type,mem,cputype,\
memtype,num intercon,purpose,Prob Started,Prob Fixed,Down Time,Facilities,Hardware,Human Error,Network,Undetermined,\
Software,Same Event
2,cluster,49,6152,80,0,0,5-Apr,5-Jun,current,part,80,1,1,0,graphics.fe,6/21/2005 10:54,6/21/2005 11:00,6,,Card,,,,,No
20,cluster,512,2048,4,7,6,1-Jan,1-Feb,current,part,4,1,1,2,compute,6/21/2005 9:00,6/21/2005 12:30,210,,Memory,,,,,No
20,cluster,512,2048,4,7,6,1-Jan,1-Feb,current,part,4,1,1,2,compute,6/21/2005 12:00,6/21/2005 13:00,60,,,,,,OS,No
20,cluster,512,2048,4,1,0,1-Jan,1-Feb,current,part,4,1,1,2,compute,6/22/2005 0:00,,0,,,,,Unknown,,No
"""


def write_log(tmp_path: Path, text: str) -> Path:
    """Write a file."""
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_events_of_a_real_slurm() -> None:
    """Slurm 22.05 printed a drain, two failures, and an event of the cluster, which is ignored."""
    outages = read_outages(SLURM / "events-22.05.txt")
    assert [(outage.node, outage.kind, outage.end_s - outage.start_s) for outage in outages] == [
        (0, "drain", 4.0),
        (1, "down", 42.0),
        (1, "down", 1.0),
    ]


def test_jobs_and_outages_of_one_cluster_share_a_clock(tmp_path: Path) -> None:
    log, nodes = tmp_path / "log.swf", tmp_path / "nodes.csv"
    jobs = ["trace", "convert", str(SLURM / "sacct-22.05.txt"), str(log), "--from", "sacct", "--nodes", "4"]
    outages = ["trace", "outages", str(SLURM / "events-22.05.txt"), str(nodes), "--trace", str(log)]
    for command in (jobs, outages, ["simulate", str(log), "--nodes", "4", "--node-events", str(nodes)]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    events = [(event.at_ms, event.kind, event.first_node) for event in read_node_events(nodes)]
    assert events == [
        (73_000, "drain", 0),
        (77_000, "up", 0),
        (121_000, "down", 1),
        (163_000, "up", 1),
        (241_000, "down", 1),
        (242_000, "up", 1),
    ]


def test_failures_of_one_los_alamos_system_are_read(tmp_path: Path) -> None:
    """Overlapping failures are merged, and a failure without repair lasts."""
    path = write_log(tmp_path, LOS_ALAMOS)
    outages = read_outages(path, system="20")
    assert [(outage.node, outage.kind) for outage in outages] == [(6, "down"), (6, "down"), (0, "down")]
    start_s = int(outages[0].start_s)
    minute_ms = 60_000
    assert [(event.at_ms, event.kind, event.first_node) for event in node_events(outages, start_unix_s=start_s)] == [
        (0, "down", 6),
        (240 * minute_ms, "up", 6),
        (900 * minute_ms, "down", 0),
    ]
    assert len(read_outages(path, system="2")) == 1
    out = tmp_path / "nodes.csv"
    given = ["trace", "outages", str(path), str(out), "--system", "2", "--start", "2005-06-21T10:00"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "1 outage read, 2 events of 1 node written" in done.output
    assert [event.at_ms for event in read_node_events(out)] == [54 * minute_ms, 60 * minute_ms]


def test_overlapping_outages_of_a_node_are_merged() -> None:
    """Outages that ended before time 0 are ignored."""
    spans = [Outage(3, "drain", 0, 50), Outage(3, "down", 50, 60), Outage(3, "drain", 55, 70), Outage(1, "down", 0, 9)]
    events = node_events(spans, start_unix_s=10)
    assert [(event.at_ms, event.kind) for event in events] == [(0, "drain"), (40_000, "down"), (60_000, "up")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: has an unknown header; supported logs"),
        ("a,b\n", ":1: has an unknown header; supported logs"),
        (LOS_ALAMOS, "has the systems 2, 20; choose one"),
        ("NodeName|TimeStart|TimeEnd|State\nn1|soon|Unknown|DOWN\n", ":2: TimeStart: 'soon' is not a date and time"),
        (
            "NodeName|TimeStart|TimeEnd|State\nn1|2026-01-02T00:00:00|2026-01-01T00:00:00|DOWN\n",
            ":2: is not an outage: it ends at 2026-01-01T00:00:00 and starts at 2026-01-02T00:00:00",
        ),
        ("System,nodenumz,Prob Started,Prob Fixed\n2,x,6/21/2005 10:54,\n", ":2: 'x' is not the number of a node"),
        ("System,Prob Started,Prob Fixed,nodenumz\n2,6/21/2005 10:54,\n", ":2: has 3 values; the header has 4"),
        ("System,nodenumz,Prob Started,Prob Fixed\n2,1,06/05/2003 10:00\n", ":2: has 3 values; the header has 4"),
        (f"System,nodenumz,Prob Started,Prob Fixed\n2,{'x' * 200_000}\n", ":2: is not a line of CSV: field larger"),
    ],
)
def test_invalid_logs_are_refused_with_their_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        read_outages(write_log(tmp_path, text))
    assert says in str(refused.value)


@pytest.mark.parametrize("more", [[], ["--start", "2026-01-01", "--trace", "x"], ["--start", "then"]])
def test_converting_a_log_needs_exactly_one_time_zero(more: list[str]) -> None:
    done = CliRunner().invoke(app, ["trace", "outages", str(SLURM / "events-22.05.txt"), "nodes.csv", *more])
    assert done.exit_code != 0
    assert "--start" in str(done.exception or done.output)
