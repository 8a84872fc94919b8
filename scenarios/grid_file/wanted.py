"""From a GRID.toml to the grid that is to run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gridweave.grid.service.local_gateway import GatewayPlan
from gridweave.grid.service.state import DEFAULT_NAME, LocalSite, check_name
from gridweave.grid.service.up import Wanted
from gridweave.scenarios.grid_file.reading import ReadGrid, plan_of

if TYPE_CHECKING:
    from gridweave.grid.service.cluster import GridPlan


def wanted_grid(grid: ReadGrid, *, name: str | None = None, address: str | None = None) -> Wanted:
    """Return what is to run of a GRID.toml.

    Parameters
    ----------
    name : str, optional
        Goes before the name in the file.
    address : str, optional
        Of a Ray cluster that runs; without it there is a local one.

    Raises
    ------
    OptionError
        If the name can be none.
    """
    file = grid.file
    gateway = file.gateway

    def make_plan(folder: str, namespace: str, labelled: bool, first_port: int, secret: bytes) -> GridPlan:
        return plan_of(
            grid, folder=folder, namespace=namespace, labelled=labelled, first_port=first_port, secret=secret
        )

    return Wanted(
        name=check_name(name or file.name or DEFAULT_NAME),
        sites=tuple(LocalSite(site.name, site.nodes, site.machines) for site in file.sites),
        make_plan=make_plan,
        folder="" if file.folder is None else placed(file.folder, grid.base),
        gateway=GatewayPlan(
            host=gateway.host,
            port=gateway.port,
            tokens=gateway.tokens,
            cert=None if gateway.cert is None else placed(gateway.cert, grid.base),
            key=None if gateway.key is None else placed(gateway.key, grid.base),
            limits=gateway.limits(),
        ),
        ray_port=file.ray.port,
        first_port=file.ray.first_port or 0,
        store_bytes=file.ray.object_store_mb << 20,
        address=address,
        file=grid.source,
        text=grid.text,
        base=grid.base,
    )


def placed(path: str, base: str) -> str:
    """Return where a path in a file is, seen from anywhere."""
    return str((Path(base) / Path(path).expanduser()).absolute())
