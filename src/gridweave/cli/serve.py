"""``gridweave serve``: one side of a grid whose sites are elsewhere, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.output import say
from gridweave.cli.run import problems_as_lines
from gridweave.errors import OptionError, not_installed

if TYPE_CHECKING:
    from gridweave.grid.config.reading import ReadGrid


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
    from gridweave.grid.config.reading import KINDS, example_text

    if example is not None:
        if example not in KINDS:
            raise OptionError("--example", f"{example!r} is none; one of {', '.join(KINDS)}")
        typer.echo(example_text(example), nl=False)
        return
    if file is None:
        raise OptionError("FILE.toml", "is missing; `gridweave serve --example site` prints one to begin with")
    try:
        _serve(file, keep_jobs=keep_jobs, check=check)
    except ImportError as error:
        raise not_installed(error.name) from None


def _serve(file: str, *, keep_jobs: bool, check: bool) -> None:
    """Read a file, and run what it says, unless it is only to be checked."""
    from gridweave.grid.config.reading import read_service
    from gridweave.grid.config.tables import ServedGrid

    with problems_as_lines():
        read = read_service(file)
    for remark in read.remarks:
        say(remark)
    if check:
        typer.echo(_told(read))
        return
    is_grid = isinstance(read.file, ServedGrid)
    if keep_jobs and is_grid:
        raise OptionError("--keep-jobs", "is for a site; the grid's side has no processes of jobs")
    from gridweave.grid.service.serve import grid_service, serve_grid, serve_site, site_service

    if is_grid:
        serve_grid(grid_service(read), say)
    else:
        serve_site(site_service(read), say, keep_jobs=keep_jobs)


def _told(read: ReadGrid) -> str:
    """Return in one line what a file is."""
    nodes = sum(site.nodes for site in read.sites)
    what = f"the grid's side of {len(read.sites)} sites with {nodes:,} nodes"
    if hasattr(read.file, "site"):
        what = f"the site {read.sites[0].name} with {nodes:,} nodes"
    return f"{read.source} is fine: {what}"
