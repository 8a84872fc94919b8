"""The files of the grid in containers fit each other, without a Docker engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import pytest

from gridweave import __version__
from gridweave.grid.config.reading import ReadGrid, read_grid, read_service
from gridweave.grid.service.cluster import FIRST_PORT, GridPlan, plan_of
from support.containers import VERSION_FILES

ROOT = Path(__file__).parent.parent.parent
DOCKER = ROOT / "docker"
SITES = ("alpha", "beta", "gamma")


def compose_file(name: str = "docker-compose.yml") -> dict[str, Any]:
    """Return what a file of Compose says."""
    yaml = pytest.importorskip("yaml")
    read: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return read


def names_of_metrics(text: str) -> set[str]:
    """Return the metrics of gridweave that expressions name."""
    return set(re.findall(r"\bgridweave_[a-z_]+", text))


GATEWAYS = ("grid", *SITES)
READERS = {
    "db_password_of_db": 10_002,
    "grafana_password": 472,
    **{f"{name}_scraper_of_prometheus": 65_534 for name in GATEWAYS},
}
"""The users who read a secret, where it is not that of gridweave."""


NEEDED_BY_A_LAUNCHER = {"SETUID", "SETGID", "SETPCAP", "CHOWN", "FOWNER", "KILL"}
NEEDED_BY_A_SITE = NEEDED_BY_A_LAUNCHER | {"NET_ADMIN"}  # the last one by docker/wan.sh alone


@pytest.mark.skipif(os.getuid() != 0, reason="secrets belong to users of containers: root alone can make them")
def test_secrets_are_made_once(tmp_path: Path) -> None:
    """Every secret of the Compose file is made for its one reader, and stays when the script is run again."""
    folder = tmp_path / "secrets"
    script = [str(DOCKER / "secrets.sh"), str(folder)]
    subprocess.run(script, check=True)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(first) == set(compose_file()["secrets"])
    assert all(len(text) == 64 for text in first.values())
    assert len(set(first.values())) == len(first) - 5, "five are read by two users each"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o400 for path in folder.iterdir())
    assert {path.name: path.stat().st_uid for path in folder.iterdir()} == dict.fromkeys(first, 10_001) | READERS
    (folder / "db_password").unlink()
    subprocess.run(script, check=True)
    again = {path.name: path.read_text() for path in folder.iterdir()}
    assert {name for name in first if again[name] != first[name]} == {"db_password", "db_password_of_db"}


def test_secrets_are_where_the_files_of_serve_look() -> None:
    """Each service gets exactly the secrets that its file of `gridweave serve` names."""
    services = compose_file()["services"]
    for name in ("grid", *SITES):
        text = (DOCKER / f"{name}.toml").read_text(encoding="utf-8")
        assert set(re.findall(r"/run/secrets/(\w+)", text)) == set(services[name]["secrets"]), name
    assert [one["source"] for one in services["db"]["secrets"]] == ["db_password_of_db"]


def test_no_two_gateways_have_a_token_in_common() -> None:
    """Each gateway's container has the tokens of that gateway alone; who reads metrics has no operator's."""
    services = compose_file()["services"]
    for kind in ("operator", "scraper"):
        operators = {name: {one for one in services[name]["secrets"] if kind in str(one)} for name in GATEWAYS}
        assert operators == {name: {f"{name}_{kind}"} for name in GATEWAYS}
    others = services.keys() - operators.keys()
    assert not [name for name in others if "operator" in str(services[name].get("secrets"))]


def test_the_files_of_serve_fit_each_other() -> None:
    """The grid and each site say the same of its name, its number, its nodes, and of the secrets between them."""
    from gridweave.grid.config.reading import read_service
    from gridweave.grid.service.serve import grid_service

    grid = grid_service(read_service(str(DOCKER / "grid.toml")))
    tables = [tomllib.loads((DOCKER / f"{name}.toml").read_text(encoding="utf-8")) for name in SITES]
    assert grid.settings.sites == tuple((table["site"]["name"], table["site"]["nodes"]) for table in tables)
    assert [table["site"]["number"] for table in tables] == list(range(len(SITES)))
    for far, table in zip(grid.sites, tables, strict=True):
        assert far.end.token_file == table["uplink"]["accepts_file"]
        assert far.accepts_file == table["uplink"]["token_file"]


def test_the_clusters_of_the_profile_are_those_of_its_grid() -> None:
    """The script makes the clusters that the grid's file names, with as many nodes; they lie apart from all else."""
    sites = tomllib.loads((DOCKER / "slurm.toml").read_text(encoding="utf-8"))["sites"]
    made = re.findall(r"(?m)^cluster (\w+) (\d+) \d+$", (DOCKER / "slurm.sh").read_text(encoding="utf-8"))
    assert [(site["name"], str(site["nodes"])) for site in sites] == made
    assert [site["slurm"]["conf"] for site in sites] == [f"/etc/slurm/{name}.conf" for name, _ in made]
    page = (ROOT / "docs" / "join-clusters.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"(?m)^```toml\n(\[grid\](?:.*\n)*?)^```$", page)
    written = tomllib.loads(toml)
    for site in written["sites"]:
        site["slurm"]["folder"] = "/var/lib/gridweave/shared"
    assert written == tomllib.loads((DOCKER / "slurm.toml").read_text(encoding="utf-8")), (
        "the page is of other clusters"
    )
    service = compose_file()["services"]["clusters"]
    assert (service["profiles"], service["networks"], service.get("ports")) == (["slurm"], ["clusters"], None)
    assert set(service["cap_add"]) == NEEDED_BY_A_LAUNCHER | {"DAC_OVERRIDE"}
    assert "secrets" not in service


def test_what_containers_write_has_a_bound() -> None:
    """Every service rotates its log: a container that runs for a year does not fill the disk."""
    for name, service in compose_file()["services"].items():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name


def test_sites_share_networks_with_the_grid_alone() -> None:
    """No two sites, and no site and the database, are in one network; with the override sites share one more."""
    services = compose_file()["services"]
    members: dict[str, set[str]] = {}
    for service in ("db", "grid", *SITES):
        for network in services[service]["networks"]:
            members.setdefault(network, set()).add(service)
    assert members == {name: {name, "grid"} for name in ("db", *SITES)} | {"peers": set(SITES)}


def test_nothing_is_open_to_other_machines() -> None:
    """Every port is bound to this machine alone; no image's user is root, and root may do little in a site."""
    services = compose_file()["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    for name in ("db", "grid", *SITES):
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
        assert services[name].get("user", "") == ("0:0" if name in SITES else "")
        assert set(services[name].get("cap_add", [])) == (NEEDED_BY_A_SITE if name in SITES else set())
    stages = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    for target in ("postgres", "gridweave"):
        (stage,) = [stage for stage in stages if stage.splitlines()[0].endswith(f" AS {target}")]
        assert re.search(r"(?m)^USER (postgres|gridweave)$", stage)


def test_the_links_of_the_model_are_those_of_the_containers() -> None:
    """What netem adds to the two ways between sites is the round trip of [net]; no link is faster than its lines."""
    services = compose_file()["services"]
    delay_ms, rate_bps = {}, {}
    for site in SITES:
        words = services[site]["environment"]["WAN"].split()
        line = dict(zip(words[::2], words[1::2], strict=True))
        delay_ms[site] = float(line.get("delay", "0ms").removesuffix("ms"))
        rate_bps[site] = float(line["rate"].removesuffix("gbit")) * 1e9
    network = read_service(str(DOCKER / "grid.toml")).network
    assert network is not None
    graph = network.topology.graph
    for one, other in permutations(SITES, 2):
        way = nx.shortest_path(graph, one, other, weight="latency_ms")
        links = [next(iter(graph[near][far].values())) for near, far in pairwise(way)]
        assert 2 * sum(link["latency_ms"] for link in links) == delay_ms[one] + delay_ms[other]
        assert min(link["bandwidth_bps"] for link in links) == min(rate_bps[one], rate_bps[other])


def test_without_netem_a_site_says_that_its_links_are_as_fast_as_the_bridge(tmp_path: Path) -> None:
    """docker/wan.sh ends well, and gives the reason of tc."""
    tc = tmp_path / "tc"
    tc.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n")
    tc.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [str(DOCKER / "wan.sh"), "delay", "10ms"]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
    assert "no netem (Error: Specified qdisc kind is unknown.)" in done.stderr
    assert "as fast as the bridge" in done.stderr


def test_the_grid_of_containers_is_the_one_that_up_starts() -> None:
    """Sites, nodes, mode, and the site with hyperthreaded nodes are those of the grid that ships."""
    shipped = plan(read_grid(None))
    served = plan(read_service(str(DOCKER / "grid.toml")))
    assert served.policy == shipped.policy
    assert [(site.name, site.nodes) for site in served.sites] == [(site.name, site.nodes) for site in shipped.sites]
    for site in shipped.sites:
        (own,) = plan(read_service(str(DOCKER / f"{site.name}.toml"))).sites
        assert (own.nodes, own.policy) == (site.nodes, site.policy)


def plan(read: ReadGrid) -> GridPlan:
    """Return what is to be started by a file."""
    return plan_of(read, folder="", namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")


def test_the_drill_of_an_upgrade_finds_the_version() -> None:
    """Each file in which it puts another version names that of the package, once."""
    for name in VERSION_FILES:
        assert (ROOT / name).read_text(encoding="utf-8").count(f'"{__version__}"') == 1, name


def test_one_base_image_is_named() -> None:
    """All stages come from one base image, whose tag is fixed."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"(?m)^ARG BASE=(.*)$", text)
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim", base)
    stages = set(re.findall(r"(?m)^FROM \S+ AS (\w+)$", text))
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) <= stages | {"${BASE}"}


def test_the_lock_fits_the_project() -> None:
    """Every package that gridweave[live] names is locked, at a release within its range, with hashes."""
    requirements = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (DOCKER / "constraints.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"(?m)^([a-z0-9.-]+)(?:\[.*\])?==(\S+) ", text))
    for line in project["dependencies"] + project["optional-dependencies"]["live"]:
        wanted = requirements.Requirement(line)
        assert wanted.specifier.contains(locked[wanted.name]), line
    assert len(locked) <= text.count("--hash=sha256:")


def test_the_dashboard_shows_what_the_gateway_exports(tmp_path: Path) -> None:
    """Every metric in the dashboard is one that a gateway exports: that of the grid, or of a site."""
    from gridweave.grid.api import JobEvent, Queue, SiteInfo
    from gridweave.grid.gateway.link import LinkDoor
    from gridweave.grid.gateway.metrics import GatewayMetrics
    from gridweave.site.query_messages import LinkStatus
    from gridweave.site.service.link import Link, LinkEnd, Secrets

    async def take(_site: str, _data: bytes) -> str | None:
        return None

    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    link = Link(LinkEnd(site="alpha", url="http://alpha:8765", token_file=str(secret)))
    metrics = GatewayMetrics(watchers=lambda: 0, streams=lambda: 0)
    door = LinkDoor({"alpha": Secrets(str(secret))}, take)
    metrics.watch_links({"alpha": link}, door.sites, door.heard_s)
    link.observe("packet", 0.1)
    metrics.answered("submit", "POST", 200, 0.1)
    metrics.heard([JobEvent(number=1, at_ms=0, job_id=1, kind="ended", detail="finished")])
    metrics.looked(Queue(), [SiteInfo(name="alpha", uplink=LinkStatus("alpha", "http://grid:8765"))])
    exported = {line.split("{")[0].split(" ")[0] for line in metrics.text().decode().splitlines() if line[0] != "#"}
    text = (DOCKER / "monitoring" / "dashboards" / "gridweave.json").read_text(encoding="utf-8")
    panels = json.loads(text)["panels"]
    asked = names_of_metrics("\n".join(target["expr"] for panel in panels for target in panel["targets"]))
    assert asked
    assert asked <= exported


def test_prometheus_asks_every_gateway() -> None:
    """Prometheus asks the grid and all sites, with a secret that it is given, and shares a network with each."""
    yaml = pytest.importorskip("yaml")
    read = yaml.safe_load((DOCKER / "monitoring" / "prometheus.yml").read_text(encoding="utf-8"))
    service = compose_file()["services"]["prometheus"]
    assert [one["target"] for one in service["secrets"]] == [f"{name}_scraper" for name in GATEWAYS]
    for name, job in zip(GATEWAYS, read["scrape_configs"], strict=True):
        (group,) = job["static_configs"]
        side = "grid" if name == "grid" else "site"
        assert (group["targets"], group["labels"]) == ([f"{name}:8765"], {"job": "gridweave", "side": side})
        assert job["authorization"]["credentials_file"] == f"/run/secrets/{name}_scraper"
    assert set(service["networks"]) >= set(SITES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """Prometheus' own tool finds nothing wrong with its configuration, nor with the expressions of the dashboard."""
    file = DOCKER / "monitoring" / "prometheus.yml"
    subprocess.run(["promtool", "check", "config", "--syntax-only", str(file)], check=True, capture_output=True)
    panels = json.loads((DOCKER / "monitoring" / "dashboards" / "gridweave.json").read_text(encoding="utf-8"))["panels"]
    rules = [
        {"record": f"dashboard:{panel['id']}", "expr": target["expr"], "labels": {"target": target["refId"]}}
        for panel in panels
        for target in panel["targets"]
    ]
    place = tmp_path / "rules.json"
    place.write_bytes(msgspec.json.encode({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("override", [None, "tests/compose/drills.yml"])
def test_docker_compose_takes_the_file(override: str | None) -> None:
    """docker-compose 1.29 finds nothing wrong with the file, alone and with each override."""
    files = ["docker-compose.yml"] + ([override] if override else [])
    command = ["docker-compose", *(part for name in files for part in ("-f", str(ROOT / name))), "config", "--quiet"]
    environment = {**os.environ, "GRIDWEAVE_DRILLS_FOLDER": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
