"""A grid on this machine whose site has a discipline of another package: that of docs/write-a-discipline.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import install_fair, with_path
from support.live_grids import UpWorld

pytestmark = [pytest.mark.ray, pytest.mark.slow]

FAIR_GRID = """
[grid]
control = "limited"

[[sites]]
name = "north"
nodes = 3
discipline = "fair"
fair = { nodes_per_user = 2 }

[gateway]
port = 0

[ray]
nodes = "machine"
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[UpWorld]:
    """Return a world in which the package is installed, with no grid in it yet."""
    pytest.importorskip("ray")
    (tmp_path / "fair").mkdir()
    there = UpWorld(tmp_path)
    there.environment["PYTHONPATH"] = with_path(install_fair(tmp_path / "fair"))
    (tmp_path / "GRID.toml").write_text(FAIR_GRID)
    yield there
    there.run("down")
    there.close()


def test_a_live_site_has_the_discipline_of_another_package(world: UpWorld) -> None:
    """The site schedules by it: a job runs, and a quote for one that is wider than its users may have says so."""
    status, printed = world.run("up", "GRID.toml")
    assert status == 0, printed
    status, printed = world.run("submit", "--wait", "--nodes", 2, "--time", "2m", "--", "true")
    assert status == 0, printed
    status, printed = world.run("quote", "--nodes", 3, "--time", "2m")
    assert "a user has at most 2" in printed
    status, printed = world.run("sites", "--json")
    assert [site["policy"] for site in json.loads(printed)] == ["fair up to 2"], printed
