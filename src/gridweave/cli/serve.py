"""``gridweave serve``: one side of a grid whose sites are elsewhere, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.output import say
from gridweave.cli.run import problems_as_lines
from gridweave.errors import OptionError, UnavailableError

if TYPE_CHECKING:
    from gridweave.scenarios.grid_file.serve_reading import ReadService


def serve(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE.toml]", help="Description of a site, or of the grid's side.")
    ] = None,
    keep_jobs: Annotated[
        bool, typer.Option("--keep-jobs", help="On exit, keep the processes of the site's jobs running.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
    example: Annotated[
        str | None, typer.Option(metavar="KIND", help="Print an example file for a `site` or the `grid`, and exit.")
    ] = None,
) -> None:
    """Run one part of a distributed grid in the foreground: a site, or the meta-scheduler.

    For containers, systemd and the like; stop it with INT or TERM. A site has its own Ray and its own gateway. Sites
    and the meta-scheduler talk over HTTP (docs/serve.md, docs/link.md).

    Example: gridweave serve --example site > alpha.toml; gridweave serve alpha.toml
    """
    from gridweave.scenarios.grid_file.serve_reading import (
        KINDS,
        example_text,
        grid_service,
        read_service,
        site_service,
    )
    from gridweave.scenarios.grid_file.serve_structs import GridSide

    if example is not None:
        if example not in KINDS:
            raise OptionError("--example", f"{example!r} is none; one of {', '.join(KINDS)}")
        typer.echo(example_text(example), nl=False)
        return
    if file is None:
        raise OptionError("FILE.toml", "is missing; `gridweave serve --example site` prints one to begin with")
    with problems_as_lines():
        read = read_service(file)
    for remark in read.grid.remarks:
        say(remark)
    if check:
        typer.echo(_told(read))
        return
    is_grid = isinstance(read.file, GridSide)
    if keep_jobs and is_grid:
        raise OptionError("--keep-jobs", "is for a site; the grid's side has no processes of jobs")
    try:
        if is_grid:
            from gridweave.grid.service.serve import serve_grid

            serve_grid(grid_service(read), say)
        else:
            from gridweave.grid.service.serve import serve_site

            serve_site(site_service(read), say, keep_jobs=keep_jobs)
    except ImportError as error:
        raise UnavailableError(f"{error.name} is not installed; run: pip install 'gridweave[live]'") from None


def _told(read: ReadService) -> str:
    """Return in one line what a file is."""
    sites = read.grid.file.sites
    nodes = sum(site.nodes for site in sites)
    what = f"the grid's side of {len(sites)} sites with {nodes:,} nodes"
    if len(sites) == 1 and not hasattr(read.file, "sites"):
        what = f"the site {sites[0].name} with {nodes:,} nodes"
    return f"{read.source} is fine: {what}"
