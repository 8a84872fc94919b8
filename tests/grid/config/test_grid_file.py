"""GRID.toml: what ships is fine, what is wrong is told with file, line and field, and the plan follows from it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config.reading import default_text, grid_of_text, read_grid
from gridweave.grid.policy import GridTuning
from gridweave.grid.service.cluster import plan_of
from gridweave.grid.service.local import grid_spec
from gridweave.site.service.zones import live_week

SITES = '[[sites]]\nname = "x"\nnodes = 4\n\n[[sites]]\nname = "y"\nnodes = 2\n\n'


def plan(text: str, **changes: Any) -> Any:
    """Return the plan of a GRID.toml."""
    usual = {"folder": "/f", "namespace": "n", "labelled": True, "first_port": 21_000, "secret": b"s"}
    return plan_of(grid_of_text(text, "GRID.toml", ""), **usual | changes)


def problems(text: str) -> list[str]:
    """Return what is wrong with a GRID.toml, line by line."""
    with pytest.raises(ScenarioError) as refused:
        grid_of_text(text, "GRID.toml", "")
    return [str(problem) for problem in refused.value.problems]


def test_what_ships_is_three_sites_with_links() -> None:
    """Without a file there are three sites of unequal size, a network between them, and tokens."""
    grid = read_grid(None)
    wanted = grid_spec(grid)
    assert [(site.name, site.nodes) for site in wanted.file.sites] == [("alpha", 8), ("beta", 6), ("gamma", 4)]
    assert (wanted.name, wanted.read.gateway.tokens, wanted.read.gateway.host) == ("default", True, "127.0.0.1")
    made = plan(default_text())
    assert made.network is not None
    assert made.network.model.topology.sites == ("alpha", "beta", "gamma")
    assert made.sites[0].virtual


def test_the_example_can_be_read_from_a_file(tmp_path: Path) -> None:
    """What `--example` prints is a GRID.toml; folders in a file count from where it is."""
    path = tmp_path / "GRID.toml"
    path.write_text('name = "campus"\nfolder = "data"\n' + default_text())
    wanted = grid_spec(read_grid(path))
    assert (wanted.name, wanted.read.folder) == ("campus", str(tmp_path / "data"))
    assert grid_spec(read_grid(path), name="other").name == "other"
    with pytest.raises(InputError, match="there is no such file; `gridweave up --example`"):
        read_grid(tmp_path / "missing.toml")


def test_a_site_has_a_time_zone() -> None:
    """The windows of a calendar follow it; a zone that nobody knows is named."""
    calendar = 'calendar = [{policy = "sjf", window = {from_ms = 0, to_ms = 3_600_000}}]'
    table = f'discipline = "dynp"\ndynp.decider = "calendar"\ndynp.{calendar}\n'
    text = SITES.replace('name = "x"\n', f'name = "x"\ntimezone = "Europe/Berlin"\n{table}')
    settings = [plan(text + '[grid]\ncontrol = "limited"\n').site_settings(number) for number in (0, 1)]
    assert settings[0].week == live_week("Europe/Berlin")
    assert settings[1].week == ()
    assert problems(text.replace("Europe/Berlin", "Mars/Olympus")) == [
        "GRID.toml:3: sites.timezone: 'Mars/Olympus' is not known; give an IANA name like Europe/Stockholm"
    ]


def test_a_name_ends_with_no_line_break() -> None:
    """It becomes the name of a folder."""
    assert problems('name = "a\\n"\n' + SITES) == [
        "GRID.toml:1: name: is 'a\\n'; a text of letters, digits, hyphens and underscores is needed"
    ]


def test_a_folder_of_nobody_is_refused(tmp_path: Path) -> None:
    """The home of a user that there is not is no place for files."""
    path = tmp_path / "GRID.toml"
    path.write_text('folder = "~nobody-of-that-name/data"\n' + default_text())
    with pytest.raises(InputError, match="this machine has no such user; write the absolute path") as told:
        assert read_grid(path).folder
    assert str(told.value).startswith(f"{path}: ~nobody-of-that-name/data: ")


def test_quotas_are_read_and_invalid_ones_reported() -> None:
    """The plan gets the defaults and the named quotas; an impossible number or an unknown key is reported by line."""
    quotas = plan(SITES + "[quotas.each_user]\nnodes = 4\n[quotas.users.anna]\nlimit_hours = 1.5\n").quotas
    assert (quotas.of("user", "anna").nodes, quotas.of("user", "anna").limit_ms) == (4, 5_400_000)
    assert quotas.of("account", "anna").nodes is None
    told = problems(SITES + "[quotas.users.anna]\nnodes = 0\n[quotas.accounts.x]\nnode_hour = 3\n")
    assert told == [
        "GRID.toml:10: quotas.users.anna.nodes: is 0; expected a whole number from 1 to 10000000",
        (
            "GRID.toml:12: quotas.accounts.x.node_hour: is not known (perhaps node_hours was meant); known are "
            "limit_hours, priority, nodes, waiting_jobs, running_jobs, running_nodes, node_hours, window_hours, "
            "max_cores, max_gpus, max_memory"
        ),
    ]


def test_the_old_name_of_quotas_is_refused_with_the_new_one() -> None:
    """One line names the table `maxima` of older files and its new name."""
    refusal = "GRID.toml:9: maxima: is called quotas now; rename the table to [quotas]"
    assert problems(SITES + "[maxima.users.anna]\nnodes = 2\n[maxima.each_user]\nnode_hour = 3\n") == [refusal]


def test_a_wrong_key_is_named_in_tables_that_may_be_a_text() -> None:
    """Communication and resources are a text or a table; of a table each wrong key is named."""
    told = problems(
        '[[sites]]\nname = "x"\nnodes = 2\n'
        '[grid.resources]\ndefalt = "cpu=1"\ndisk = 3\n[grid.communication]\nby_clas = {}\n'
    )
    starts = (
        "GRID.toml:5: grid.resources.defalt: is not known (perhaps default was meant)",
        "GRID.toml:6: grid.resources.disk: is 3; a text is needed",
        "GRID.toml:7: grid.communication: is given, but there is no network",
        "GRID.toml:8: grid.communication.by_clas: is not known (perhaps by_class was meant)",
    )
    assert [line[: len(start)] for line, start in zip(told, starts, strict=True)] == list(starts)


def test_all_that_is_wrong_is_told_at_once() -> None:
    """Unknown keys, wrong types and what contradicts itself are told with file, line and field."""
    told = problems(
        'name = "a b"\nfolder = 3\n[[sites]]\nname = "x"\nnodes = 0\nnodez = 4\n[[sites]]\nname = "y"\nnodes = 2\n'
        'machines = 3\n[grid]\nmode = "local"\nmargin_ms = "a"\ndata = "blocking"\n'
        '[gateway]\nport = 70000\ncert = "c"\n'
        "[probes]\nevery_s = 0\n[ray]\nfirst_port = 80\n"
    )
    wanted = {
        "GRID.toml:1: name: is 'a b'",
        "GRID.toml:2: folder: is 3; a text is needed",
        "GRID.toml:5: sites.nodes: is 0",
        "GRID.toml:6: sites.nodez: is not known (perhaps nodes was meant)",
        "GRID.toml:10: sites.machines: is 3; from 1 to its 2 nodes",
        "GRID.toml:12: grid.mode: is 'local'",
        "GRID.toml:13: grid.margin_ms: is 'a'; a whole number is needed",
        "GRID.toml:14: grid.data: has an effect only in simulations",
        "GRID.toml:16: gateway.port: is 70000",
        "GRID.toml:17: gateway.cert: is given without key",
        "GRID.toml:19: probes.every_s: is 0",
        "GRID.toml:21: ray.first_port: is 80",
    }
    assert {start for start in wanted if any(line.startswith(start) for line in told)} == wanted
    assert len(told) == len(wanted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "sites: is missing"),
        ("sites = []\n", "sites: is empty"),
        ("sites = 3\n", "sites: is 3"),
        ("[[sites]]\n", "sites.name: is missing"),
        ("x = [\n", "is not TOML"),
        (SITES + "[net]\nchanges = [{ at_ms = 1, action = 'fail', link = ['x', 'y'] }]\n", "net"),
        (SITES + '[net]\nnodes = [{ name = "x" }, { name = "y" }]\n[[net.links]]\nfrom = "x"\nto = "q"\n', "net.links"),
        (SITES.replace('"y"', '"x"'), "is also the name of another site"),
    ],
)
def test_what_is_no_grid_is_refused(text: str, says: str) -> None:
    """A file that makes no grid is refused with a line that says why."""
    assert any(says in line for line in problems(text))


def test_the_plan_says_what_the_file_says() -> None:
    """Sites, owners, disciplines, journals and times of the file are those of the plan; probes only where asked for."""
    text = SITES + 'grid_share = 0.5\norder = "sjf"\njournal = "postgresql://h/d"\n[grid]\nmargin_ms = 700\nseed = 3\n'
    made = plan(text)
    assert (made.sites[1].owner.grid_share, made.sites[1].policy.order) == (0.5, "sjf")
    assert (made.sites[1].journal, made.margin_ms, made.seed, made.probes) == ("postgresql://h/d", 700, 3, None)
    assert made.site_settings(1).machines[0].ports == (21_200, 21_400)
    probed = plan(SITES + "[probes]\nevery_s = 5\n")
    assert (probed.probes.every_s, probed.probes.secret) == (5.0, b"s")


def test_a_network_that_came_from_ray_can_be_written_to() -> None:
    """The meta-scheduler copies its settings: arrays that cannot be written to are of other types to compiled code."""
    buffers: list[Any] = []
    data = pickle.dumps(plan(default_text()).settings(), protocol=5, buffer_callback=buffers.append)
    settings = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    arrays = settings.network.model.arrays
    names = [name for name in arrays._fields if isinstance(getattr(arrays, name), np.ndarray)]
    assert not all(getattr(arrays, name).flags.writeable for name in names)
    copied = copy.deepcopy(settings).network.model.arrays
    assert all(getattr(copied, name).flags.writeable for name in names)


def test_a_live_grid_may_tune_its_queue() -> None:
    """The table of the file is the policy of the plan; what is wrong in it is told with its place."""
    made = plan(SITES + '[grid]\ntuning = { policies = ["sjf", "fcfs"], slackness_pct = 2 }\n')
    assert made.policy.tuning == GridTuning(policies=("sjf", "fcfs"), slackness_pct=2)
    with pytest.raises(ScenarioError, match="'x' is not known"):
        plan(SITES + '[grid]\ntuning = { policies = "x" }\n')


MIXED = """
[[sites]]
name = "x"
nodes = 6
machines = 2
discipline = "heterogeneous"

[sites.heterogeneous]
classes = [{ name = "old", count = 3 }, { name = "new", count = 3, speed = 2.0, labels = ["x86"] }]
clusters = [{ name = "b", nodes = "3-5" }]
forms = [{ job_class = "cfd", width = 3, on = ["x86"] }]
levels = [{ name = "high", priority = 10, users = ["anna"], evicts = ["low"] }, { name = "low", priority = 0 }]
"""


def test_a_live_site_may_have_machines_that_differ() -> None:
    """Classes, clusters, forms of classes by name, and who may use a level come to the plan; all wrong is told."""
    policy = plan(MIXED).sites[0].policy
    assert policy.label == "heterogeneous pjs 2 levels [high from 10 users=anna evicts=low; low] evicting (restart)"
    assert (policy.forms[0].job_class, policy.levels[0].users) == ("cfd", ("anna",))
    classes = MIXED.splitlines()[8]
    by_kinds = MIXED.replace(f"{classes}\n", "").replace("nodes = 6\n", classes.replace("classes", "kinds") + "\n")
    assert plan(by_kinds).sites[0].policy == policy
    wrong = (
        MIXED.replace("3-5", "3-7").replace('on = ["x86"]', 'on = ["gpu"]').replace("priority = 0 }", "priority = 20 }")
    )
    (said,) = problems(wrong)
    for problem in (
        "GRID.toml:8: sites.heterogeneous: cluster 'b' names machine 6; the site has machines 0 to 5",
        "form 1 (job class cfd) runs on 'gpu', neither a class nor a label; expected one of new, old, x86",
        "list the levels from the highest down",
    ):
        assert problem in said


def test_what_is_wrong_is_named_in_the_table_of_its_own_discipline() -> None:
    """Several disciplines have levels: the table of none but the site's is named."""
    levels = 'levels = [{ name = "low", priority = 0 }, { name = "high", priority = 1 }]'
    text = SITES.replace("nodes = 2", f'nodes = 2\ndiscipline = "levels"\nlevels = {{ {levels} }}')
    (said,) = problems(text)
    assert "sites.levels: level 'high' has the priority 1, and 'low' before it 0" in said


def test_a_live_site_may_give_jobs_parts_of_its_nodes() -> None:
    """Its machines are told that control groups have to hold what jobs get; those of another site are not."""
    made = plan(SITES.replace("nodes = 2", 'nodes = 2\ndiscipline = "fractional"\nfractional = { penalty_s = 0 }'))
    assert [site.rules.gives_parts for site in made.sites] == [False, True]
    assert [site.policy.discipline for site in made.sites][1] == "fractional"
