"""Files of `gridweave serve`: the examples are fine, what is wrong is told with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config.reading import KINDS, example_text, grid_of_text, read_service, service_of_text
from gridweave.grid.service.cluster import plan_of
from gridweave.grid.service.serve import grid_service, site_service
from gridweave.site.launch import OutputLimits
from gridweave.site.service.prober import ProbePlan

UPLINK = '[uplink]\nurl = "http://grid:8765"\ntoken_file = "out"\naccepts_file = "in"\n'
SITE = 'folder = "state"\n[site]\nname = "beta"\nnumber = 1\nnodes = 6\n'
FAR = '[[sites]]\nname = "{}"\nnodes = {}\nurl = "http://{}:8765"\ntoken_file = "out"\naccepts_file = "in"\n'
GRID = 'folder = "state"\n' + FAR.format("alpha", 8, "alpha") + FAR.format("beta", 6, "beta")


def problems(text: str) -> list[str]:
    """Return what is wrong with a file, line by line."""
    with pytest.raises(ScenarioError) as refused:
        service_of_text(text, "serve.toml", "")
    return [str(problem).removeprefix("serve.toml:") for problem in refused.value.problems]


@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_are_fine(kind: str, tmp_path: Path) -> None:
    """What `--example` prints can be read from a file, and says what its comments name."""
    path = tmp_path / f"{kind}.toml"
    path.write_text(example_text(kind))
    read = read_service(path)
    assert read.file.name == "wan"
    if kind == "grid":
        assert [site.end.site for site in grid_service(read).sites] == ["alpha", "beta"]
    else:
        assert site_service(read).settings.name == "alpha"
    with pytest.raises(InputError, match="there is no such file; `gridweave serve --example site`"):
        read_service(tmp_path / "missing.toml")


def test_a_site_is_what_a_grid_file_would_make_of_it() -> None:
    """Settings of a site that is served alone are those that it would have among others, but for its ports."""
    more = 'machines = 2\ngrid_share = 0.5\norder = "sjf"\n'
    service = site_service(service_of_text(SITE + more + UPLINK, "serve.toml", "/etc/gw"))
    text = f'[[sites]]\nname = "alpha"\nnodes = 8\n[[sites]]\nname = "beta"\nnodes = 6\n{more}'
    whole = plan_of(grid_of_text(text, "g", ""), folder="", namespace="", labelled=True, first_port=20_800, secret=b"")
    assert service.settings == whole.site_settings(1)
    assert service.plan == whole.sites[1]
    assert (service.folder, service.accepts_file) == ("/etc/gw/state", "/etc/gw/in")
    assert service.uplink is not None
    assert (service.uplink.site, service.uplink.token_file) == ("beta", "/etc/gw/out")


def test_the_grid_side_knows_what_a_grid_file_would_say() -> None:
    """The meta-scheduler has the same settings, wherever its sites are."""
    far = GRID.replace("nodes = 6\n", "nodes = 6\ngrid_share = 0.5\nmachines = 2\n") + "[grid]\nlease_ms = 9000\n"
    service = grid_service(service_of_text(far, "serve.toml", "/etc/gw"))
    text = '[[sites]]\nname = "alpha"\nnodes = 8\n[[sites]]\nname = "beta"\nnodes = 6\ngrid_share = 0.5\nmachines = 2\n'
    whole = plan_of(
        grid_of_text(text + "[grid]\nlease_ms = 9000\n", "g", ""),
        folder="",
        namespace="",
        labelled=True,
        first_port=20_000,
        secret=b"",
    )
    assert service.settings == whole.settings()
    assert [site.machines for site in service.sites] == [("m0",), ("m0", "m1")]
    assert service.journal == "/etc/gw/state/grid.journal"


def test_how_long_history_is_kept() -> None:
    """The grid, each site of it, and a site that is served alone keep so many days as their file says, or 90."""
    for said, days in (("", 90), ("[grid]\nhistory_days = 7\n", 7)):
        assert grid_service(service_of_text(GRID + said, "serve.toml", "/etc/gw")).history_days == days
    assert (
        site_service(service_of_text(SITE + "history_days = 30\n" + UPLINK, "serve.toml", "/etc/gw")).history_days == 30
    )
    assert "site.history_days" in problems(SITE + "history_days = 0\n" + UPLINK)[0]


def test_the_old_name_of_quotas_is_refused_with_the_new_one() -> None:
    """Both kinds of files report the table `maxima` in one line."""
    for text in (GRID, SITE + UPLINK):
        (problem,) = problems(text + "[maxima.each_user]\nnodes = 2\n")
        assert problem.endswith(": maxima: is called quotas now; rename the table to [quotas]")


def test_how_long_output_is_kept() -> None:
    """Machines keep as much of each user as the file of their site, or GRID.toml, says."""
    said = "output_days = 7\noutput_bytes = 1000\n"
    for more, limits in (("", OutputLimits()), (said, OutputLimits(days=7, bytes_per_user=1000))):
        service = site_service(service_of_text(SITE + more + UPLINK, "serve.toml", "/etc/gw"))
        assert service.plan.rules.output == limits
        read = grid_of_text(f"[grid]\n{more}[[sites]]\nname = 'a'\nnodes = 2\n", "g", "")
        plan = plan_of(read, folder="", namespace="", labelled=True, first_port=20_000, secret=b"")
        assert plan.sites[0].rules.output == limits
    told = problems(GRID + "[grid]\n" + said)
    assert [line for line in told if "set it in the file of each site" in line] == told
    assert len(told) == 2


def test_the_grid_side_says_how_often_ways_are_measured() -> None:
    """With the table the ways between sites are measured, without it they are not; a site's own file has none."""
    for table, plan in (
        ("", None),
        ("[probes]\nevery_s = 5\n", ProbePlan(every_s=5.0)),
        ("[probes]\nbandwidth_every_s = 60\n", ProbePlan(bandwidth_every_s=60.0)),
    ):
        assert grid_service(service_of_text(GRID + table, "serve.toml", "/etc/gw")).probes == plan
    assert "probes.every_s" in problems(GRID + "[probes]\nevery_s = 0\n")[0]
    assert problems(SITE + UPLINK + "[probes]\n")[0].split(": ")[1] == "probes"


def test_all_that_is_wrong_with_a_site_is_told_at_once() -> None:
    """Unknown keys, wrong types and what contradicts itself have the names of the keys of a site."""
    told = problems(
        "folder = 3\n[site]\nname = 'a b'\nnumber = -1\nnodes = 4\nnodez = 5\n"
        "[uplink]\nurl = 'grid:8765'\ntoken_file = 'x'\naccepts_file = ' '\nca = 'ca.pem'\n[gatewai]\n"
    )
    names = ["folder", "site.name", "site.number", "site.nodez", "gatewai"]
    assert [problem.split(": ")[1] for problem in told] == names
    told = problems(SITE + "machines = 7\nat = 'x'\norder = 'none'\nhost = 'h'\n" + UPLINK.replace("http", "ftp"))
    assert [problem.split(": ")[1] for problem in told] == [
        "site.machines",
        "site.at",
        "site.order",
        "site.host",
        "uplink.url",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("folder = 'x'", "has neither [site] nor [[sites]]"),
        (SITE + UPLINK + FAR.format("x", 1, "x"), "has both [site] and [[sites]]"),
        (GRID.replace("beta", "alpha"), "'alpha' is also the name of another site"),
        (GRID.replace("http://beta", "http://u:p@beta"), "is not the address of a gateway"),
        (GRID + "ca = 'ca.pem'\n", "is for TLS, but the url says http"),
        (GRID + "cert = 'c.pem'\n", "is given without key"),
        (GRID + "[gateway]\nhost = '0.0.0.0'\ntokens = false\n", "is reachable from other machines"),
        (GRID + "[gateway]\nclient_ca = 'ca.pem'\n", "client certificates need TLS"),
        (GRID + "[gateway]\ntokens = false\noperator_token_file = 'x'\n", "is given, but tokens = false"),
        (GRID + "[grid]\nmode = 'local'\n", "is 'local', where there is no grid"),
        (GRID + "[grid]\nrendezvous_ms = 5\n", "is not for the grid's file"),
        (SITE + UPLINK + "[ray]\naddress = ' '\n", "is empty; write auto, HOST:PORT"),
    ],
)
def test_what_is_wrong(text: str, says: str) -> None:
    """Each mistake is told in one line."""
    assert any(says in problem for problem in problems(text)), problems(text)
