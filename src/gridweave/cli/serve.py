"""``gridweave serve`` and ``gateway``: run a site, the meta-scheduler or a gateway in the foreground."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.options import named_as_typed
from gridweave.cli.output import say
from gridweave.cli.run import problems_as_lines
from gridweave.cli.up import Fresh, Yes, check_forgetting, print_actors, say_batch_notes
from gridweave.errors import OptionError, UnavailableError, check_known, not_installed
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.grid.config.reading import ReadGrid


_File = Annotated[
    str | None, typer.Argument(metavar="[FILE.toml]", help="Description of a site, or of the meta-scheduler.")
]
_KeepJobs = Annotated[bool, typer.Option("--keep-jobs", help="On exit, keep the processes of the site's jobs running.")]
_CHECK = "Only check the file, whether the journal matches it, and the site's Slurm."
_Check = Annotated[bool, typer.Option("--check", help=_CHECK)]
_Status = Annotated[
    bool, typer.Option("--status", help="Show the actors of the running part; exit with status 3 if one is missing.")
]
_Example = Annotated[
    str | None, typer.Option(metavar="KIND", help="Print an example file for a `site` or the `grid`, and exit.")
]


def serve(
    file: _File = None,
    keep_jobs: _KeepJobs = False,
    check: _Check = False,
    status: _Status = False,
    fresh: Fresh = False,
    yes: Yes = False,
    example: _Example = None,
) -> None:
    """Run one part of a distributed grid in the foreground: a site, or the meta-scheduler.

    For containers, systemd and the like; stop it with INT or TERM. A site has its own Ray and its own gateway. Sites
    and the meta-scheduler talk over HTTP (docs/serve.md, docs/link.md).

    Example: gridweave serve --example site > alpha.toml; gridweave serve alpha.toml

    Example: gridweave serve --status alpha.toml
    """
    from gridweave.grid.config.reading import KINDS, example_text

    if example is not None:
        check_known("--example", example, KINDS)
        typer.echo(example_text(example), nl=False)
        return
    if yes and not fresh:
        raise OptionError("--yes", "works only with --fresh")
    if file is None:
        raise OptionError("FILE.toml", "is missing; `gridweave serve --example site` prints one to start from")
    if status and (check or fresh or keep_jobs):
        raise OptionError("--status", "starts nothing; use it without --check, --fresh and --keep-jobs")
    try:
        if status:
            _show_status(file)
        else:
            _serve(file, keep_jobs=keep_jobs, check=check, fresh=fresh, yes=yes)
    except ImportError as error:
        raise not_installed(error.name) from None


def _show_status(file: str) -> None:
    """Print the state in Ray of the actors of a file's site or meta-scheduler; exit with status 3 if one is missing."""
    from gridweave.grid.config.tables import ServedGrid
    from gridweave.grid.service.serve import grid_service, served_actors, site_service

    read = _read(file)
    actors = served_actors(grid_service(read) if isinstance(read.file, ServedGrid) else site_service(read))
    print_actors(actors, f"Actors of {read.source}")
    if not actors or not all(actor.well for actor in actors):
        raise typer.Exit(UnavailableError.exit_status)


def _read(file: str) -> ReadGrid:
    """Read the description of a site or of the meta-scheduler, and print remarks about it."""
    from gridweave.grid.config.reading import read_service

    with problems_as_lines():
        read = read_service(file)
    for remark in read.remarks:
        say(remark)
    return read


def _serve(file: str, *, keep_jobs: bool, check: bool, fresh: bool, yes: bool) -> None:
    """Run the site or the meta-scheduler that a file describes, or with `check` only check it."""
    from gridweave.grid.config.tables import ServedGrid

    read = _read(file)
    is_grid = isinstance(read.file, ServedGrid)
    if keep_jobs and is_grid:
        raise OptionError("--keep-jobs", "is only for sites; the meta-scheduler runs no jobs")
    from gridweave.grid.service.serve import (
        check_service,
        grid_service,
        serve_grid,
        serve_site,
        site_service,
        start_over,
    )

    if fresh and not check:
        check_forgetting(Path(read.folder), yes)
        start_over(grid_service(read) if is_grid else site_service(read))
    if check:
        for change in check_service(grid_service(read) if is_grid else site_service(read)):
            say(change)
        say_batch_notes(read)
        typer.echo(_start_text(read))
    elif is_grid:
        serve_grid(grid_service(read), say)
    else:
        serve_site(site_service(read), say, keep_jobs=keep_jobs)


def _start_text(read: ReadGrid) -> str:
    nodes = counted(sum(site.node_count for site in read.sites), "node")
    what = f"the meta-scheduler of {counted(len(read.sites), 'site')} with {nodes}"
    if hasattr(read.file, "site"):
        what = f"the site {read.sites[0].name} with {nodes}"
    return f"{read.source} is valid: {what}"


_LISTEN = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^\[\]:]+):)?(?P<port>\d{1,5})", re.ASCII)


_Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes any free one.")]
_Address = Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the Ray cluster, e.g. auto or HOST:PORT.")]
_Tokens = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        envvar="GRIDWEAVE_TOKENS",
        help="Token database: a path or a URL (postgresql://USER@HOST/DATABASE). Without it: loopback only.",
    ),
]
_PlainHttp = Annotated[bool, typer.Option("--plain-http", help="Accept tokens from other machines even without TLS.")]


def gateway(
    listen: _Listen = "127.0.0.1:8765",
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Ray namespace of the grid's actors.")] = "gridweave",
    address: _Address = "auto",
    tokens: _Tokens = None,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="TLS certificate.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="TLS key.")] = None,
    plain_http: _PlainHttp = False,
) -> None:
    """Run the HTTP gateway of a grid on Ray (docs/gateway.md). Requests are logged to standard error, one per line.

    Example: gridweave gateway --listen 0.0.0.0:8765 --tokens tokens.db --cert grid.pem --key grid.key
    """
    host, port = parse_listen(listen)
    try:
        from gridweave.grid.config.gateway import GatewaySettings
        from gridweave.grid.service.gateway_process import run_gateway
    except ImportError as error:
        raise not_installed(error.name) from None
    with named_as_typed(host="--listen", port="--listen"):
        settings = GatewaySettings(host=host, port=port, tokens=tokens, cert=cert, key=key, plain_http=plain_http)
        _join(address, namespace)
        run_gateway(settings, namespace=namespace, say=say)


def parse_listen(text: str) -> tuple[str, int]:
    """Parse an address to listen on into host and port; the default host is 127.0.0.1.

    Examples
    --------
    >>> parse_listen("0.0.0.0:8765"), parse_listen("[::1]:0"), parse_listen("8765")
    (('0.0.0.0', 8765), ('::1', 0), ('127.0.0.1', 8765))
    """
    match = _LISTEN.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65_535:
        raise OptionError("--listen", f"{text!r} is not an address; write HOST:PORT, for example 127.0.0.1:8765")
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def _join(address: str, namespace: str) -> None:
    from gridweave.grid.service.ray import join, probe

    probe(address)
    join(f"the cluster at {address}", address=address, namespace=namespace)
