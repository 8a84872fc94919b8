"""``gridweave token``: manage the tokens of a grid's gateway, and check its audit log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.grid_client import Here, Reach, at_grid, may, plain
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import print_json, print_table, say
from gridweave.errors import InputError, OptionError, not_installed
from gridweave.site.times import parse_time_ms
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.grid.api import MadeToken, TokenInfo, TokenLimits
    from gridweave.grid.client.client import Client
    from gridweave.grid.gateway.access import TokenStore

app = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke tokens of a grid's gateway, and check its audit log."
)

Place = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        metavar="PLACE",
        envvar="GRIDWEAVE_TOKENS",
        help="Token database: a path or a URL. \\[default: that of the grid on this machine]",
    ),
]


_TYPED = {"user": "USER", "days": "--valid", "scopes": "--scope", "max_limit_ms": "--max-time"}


_Scope = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Permissions of the token: read, submit, cancel (own jobs), or operate, which includes all.",
    ),
]
_Valid = Annotated[
    str, typer.Option(metavar="SPAN", help="Lifetime of the token, e.g. 12h or 30d, or never: valid until revoked.")
]
_Sites = Annotated[str, typer.Option(metavar="LIST", help="Only for jobs of these sites' own users, e.g. alpha,beta.")]
_MaxPriority = Annotated[float | None, typer.Option(metavar="N", help="Only for jobs of at most this priority.")]
_MaxWeight = Annotated[float | None, typer.Option(metavar="N", help="Only for jobs of at most this weight.")]


@app.command("create")
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="User that the token acts for.")],
    scope: _Scope = "read,submit,cancel",
    valid: _Valid = "90d",
    sites: _Sites = "",
    accounts: Annotated[str, typer.Option(metavar="LIST", help="Only for jobs of these accounts.")] = "",
    max_nodes: Annotated[int | None, typer.Option(metavar="N", help="Only for jobs of at most N nodes.")] = None,
    max_array: Annotated[int | None, typer.Option(metavar="N", help="Only for arrays of at most N jobs.")] = None,
    max_time: Annotated[str, typer.Option(metavar="SPAN", help="Only for jobs of at most this time limit.")] = "",
    max_priority: _MaxPriority = None,
    max_weight: _MaxWeight = None,
    tokens: Place = None,
    here: Here = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it. Keep it: only its hash is stored, so it cannot be shown again.

    Example: gridweave token create anna --scope read,submit --valid 30d --tokens tokens.db
    """
    days = None if valid == "never" else parse_time_ms("--valid", valid) / 86_400_000
    numbers: dict[str, Any] = {"max_nodes": max_nodes, "max_array": max_array}
    numbers |= {"max_priority": max_priority, "max_weight": max_weight}
    numbers["max_limit_ms"] = parse_time_ms("--max-time", max_time) if max_time else None
    with _store(tokens, here, create=True) as store, named_as_typed(**_TYPED):
        limits = _limits(sites, accounts, numbers)
        created = store.create(user, cast("Any", _listed(scope)), days=days, limits=limits)
        _audit(store, "token-create", created.info.token_id)
    if as_json:
        print_json({"token": created.token, **plain(created.info)})
        return
    typer.echo(created.token)
    until = "until it is revoked" if created.info.until_ms is None else f"until {_instant(created.info.until_ms)}"
    what = ", ".join(created.info.scopes)
    say(f"it is for {user} to {what}, {until}; keep it as you would a password: export GRIDWEAVE_TOKEN=...")


@app.command("short")
@at_grid
def short(
    reach: Reach,
    scope: Annotated[
        str, typer.Option(metavar="LIST", help="Permissions of the token: read, submit, cancel.")
    ] = "read,submit",
    valid: Annotated[str, typer.Option(metavar="SPAN", help="Lifetime of the token, at most 24h.")] = "24h",
) -> None:
    """Get a short-lived token of your own from the gateway, e.g. for a job that submits jobs, and print it.

    It has the limits of the token with which you request it, expires no later, and is revoked with it.

    Example: GRIDWEAVE_TOKEN=$(gridweave token short --valid 2h) gridweave submit --env GRIDWEAVE_TOKEN -- ./driver.sh
    """
    hours = parse_time_ms("--valid", valid) / 3_600_000

    async def work(grid: Client) -> MadeToken:
        with named_as_typed(scopes="--scope", hours="--valid"):
            return await grid.short_token(cast("Any", _listed(scope)), hours=hours)

    reach.show(reach.ask(work), lambda created: typer.echo(created.token))


@app.command("list")
def list_tokens(tokens: Place = None, here: Here = None, as_json: Json = False) -> None:
    """List the valid tokens, without their secrets."""
    with _store(tokens, here, create=False) as store:
        infos = store.list()
    if as_json:
        print_json(plain(infos))
    elif not infos:
        say("there is no valid token; create one: gridweave token create USER")
    else:
        rows = [
            (info.token_id, info.user, may(info), _instant(info.made_ms), _until(info), _used(info)) for info in infos
        ]
        print_table(rows, headings=("id", "user", "for", "made", "until", "last used"), left=6)


@app.command("revoke")
def revoke(
    token_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Token ids, as `gridweave token list` shows them.")
    ],
    tokens: Place = None,
    here: Here = None,
) -> None:
    """Revoke tokens immediately, and close open streams that use them.

    Example: gridweave token revoke 1f0c9a77d2e4
    """
    with _store(tokens, here, create=False) as store:
        unknown = [token_id for token_id in token_ids if not _revoke(store, _id(token_id))]
    if unknown:
        names = ", ".join(repr(_id(token_id))[:60] for token_id in unknown)
        raise InputError(f"no valid token has the id {names}; see: gridweave token list")
    say(f"revoked: {', '.join(_id(token_id) for token_id in token_ids)}")


@app.command("audit")
def audit(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The audit log. \\[default: the one next to the token database]"),
    ] = None,
    tokens: Place = None,
    here: Here = None,
) -> None:
    """Check that no line of an audit log was changed or removed, starting with its oldest file.

    Example: gridweave token audit /var/lib/gridweave/audit.log
    """
    from gridweave.grid.gateway.audit import audit_place, check_audit

    place = str(file) if file is not None else audit_place(_place_here(here) if tokens is None else tokens, None)
    if place is None:
        raise OptionError(
            "FILE", "is not given, and tokens in a database have no audit log next to them; name the file"
        )
    n_files, n_lines = check_audit(place)
    say(f"{place}: {counted(n_lines, 'line')} in {counted(n_files, 'file')}, none changed or removed")


def _id(text: str) -> str:
    """Return the id of a token, given the id or the whole token, whose secret part must not be printed."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 else text


def _revoke(store: TokenStore, token_id: str) -> bool:
    is_done = store.revoke(token_id)
    if is_done:
        _audit(store, "token-revoke", token_id)
    return is_done


def _audit(store: TokenStore, what: str, token_id: str) -> None:
    """Record an action of this command in the gateway's audit log, if there is one."""
    import getpass
    import time

    from gridweave.grid.gateway.audit import AuditEntry, AuditLog, audit_place
    from gridweave.grid.gateway.metrics import time_text

    place = audit_place(store.place, None)
    if place is not None:
        now = time_text(time.time_ns() // 1_000_000)
        AuditLog(place).add(AuditEntry(time=now, user=getpass.getuser(), what=what, target=token_id))


@contextmanager
def _store(place: str | None, here: str | None, *, create: bool) -> Iterator[TokenStore]:
    try:
        from gridweave.grid.gateway.access import TokenStore
    except ImportError as error:
        raise not_installed(error.name) from None
    if place is not None and here is not None:
        raise OptionError(
            "--grid", "selects a grid, but --tokens or GRIDWEAVE_TOKENS already names a database; give only one"
        )
    place = _place_here(here) if place is None else place
    with named_as_typed(tokens="--tokens"):
        store = TokenStore(place, create=create)
    try:
        yield store
    finally:
        store.close()


def _place_here(name: str | None) -> str:
    """Return the path of the token database of a grid on this machine; OptionError without one."""
    from gridweave.grid.client.configuration import grid_here, named_grid
    from gridweave.grid.config.local_state import TOKENS, state_folder

    with named_as_typed():
        running = grid_here(named_grid(name))
    if running is None:
        raise OptionError("--tokens", "is not given, and no grid runs here; name the token database of the gateway")
    if not running.tokens:
        raise OptionError("--tokens", f"is not given, and the gateway of the grid {running.name} does not use tokens")
    return str(state_folder(running.name) / TOKENS)


def _until(info: TokenInfo) -> str:
    return "it is revoked" if info.until_ms is None else _instant(info.until_ms)


def _used(info: TokenInfo) -> str:
    return "never" if info.used_ms is None else _instant(info.used_ms)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _limits(sites: str, accounts: str, numbers: dict[str, Any]) -> TokenLimits:
    from gridweave.grid.api import TokenLimits

    for option, text in (("--sites", sites), ("--accounts", accounts)):
        if text and not _listed(text):
            raise OptionError(option, f"{text!r} is an empty list; leave the option out for no limit")
    return TokenLimits(sites=_listed(sites), accounts=_listed(accounts), **numbers)


def _instant(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
