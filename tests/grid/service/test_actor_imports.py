"""What the process of each kind of actor loads: it is there as long as the grid is, and each copy costs memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICE = "gridweave.site.service"
HEAVY = {"numba", "numpy", "scipy", "networkx", "matplotlib", "ray", "sqlalchemy", "aiohttp", "gridweave.grid"}


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        ([f"{SERVICE}.agent_actor"], set()),
        ([f"{SERVICE}.actor", "gridweave.grid.service.actor"], {"gridweave.grid"}),
        ([f"{SERVICE}.queries", f"{SERVICE}.site_driver"], {"numba", "numpy", "scipy", "sqlalchemy"}),
        (
            ["gridweave.grid.service.queries", "gridweave.grid.service.driver"],
            {"numba", "numpy", "scipy", "sqlalchemy", "gridweave.grid"},
        ),
        (
            ["gridweave.grid.service.actor", "gridweave.grid.service.doors"],
            {"aiohttp", "sqlalchemy", "gridweave.grid"},
        ),
    ],
    ids=["agent", "handles", "site", "meta-scheduler", "gateway"],
)
def test_actors_load_only_what_they_run(modules: list[str], allowed: set[str]) -> None:
    """An agent loads no scheduler, a site no gateway, a gateway no kernels, and a handle nothing heavy."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY <= allowed
