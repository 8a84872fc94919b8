"""Find the grid's address and token in the arguments, the environment, a file, or a grid running on this machine.

The first source that names an address wins. A token is only ever sent to the address that it belongs to: if the command
line names another address than the configuration file, the file's token is not used.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import platformdirs

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.gateway import is_loopback
from gridweave.grid.config.local_state import (
    DEFAULT_NAME,
    GATEWAY,
    HEAD,
    LocalGridState,
    LocalProcess,
    known_grids,
    running_grid,
)

FILE_VARIABLE = "GRIDWEAVE_CONFIG"
PROFILE_VARIABLE = "GRIDWEAVE_PROFILE"
GRID_VARIABLE = "GRIDWEAVE_GRID"
URL_VARIABLE = "GRIDWEAVE_URL"
TOKEN_VARIABLE = "GRIDWEAVE_TOKEN"
CA_VARIABLE = "GRIDWEAVE_CA"
SITE_VARIABLE = "GRIDWEAVE_SITE_{}_{}"
"""Environment variable for a site's own gateway, with the site's name in capitals, then URL, TOKEN or CA."""

NO_GRID = "no grid runs here: start one with `gridweave up`, or name one with --url or GRIDWEAVE_URL"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a grid.

    Attributes
    ----------
    url : str
        Address of the gateway, without a slash at the end.
    ca : str, optional
        A file with the certificates to trust instead of the system's.
    site : str, optional
        The site to submit jobs to by default, as one of its own users.
    plain_http : bool
        Whether the token may be sent unencrypted to another machine.
    warnings : tuple of str
        Warnings about the configuration, to show to the user.
    sites : dict
        The known gateways of individual sites; jobs for these sites are submitted to them directly.
    grid : str
        The name of the local grid (`gridweave up`) whose address this is; empty if the address has another source.
    shares_folders : bool
        Whether the grid's jobs run on this machine, and so can use its folders.
    """

    url: str
    token: str | None = None
    ca: str | None = None
    site: str | None = None
    plain_http: bool = False
    warnings: tuple[str, ...] = ()
    sites: dict[str, Connection] = {}
    grid: str = ""
    shares_folders: bool = False


class _Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings from one source: the arguments, the environment, a table of the file, or a grid on this machine."""

    url: str | None = None
    token: str | None = None
    ca: str | None = None
    site: str | None = None
    plain_http: bool | None = None
    sites: dict[str, _Layer] | None = None
    here: LocalGridState | None = None


_KEYS = _Layer.__struct_fields__[:-2]
TOKEN_FILE = "token_file"
_TOKEN_LINE = re.compile(r"^\s*token\s*=", re.MULTILINE)
_SITE_KEYS_IN_FILE = (*(name for name in _KEYS if name != "site"), TOKEN_FILE)


def configuration_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return the configuration file: ``GRIDWEAVE_CONFIG``, or ``gridweave/config.toml`` in the configuration folder."""
    named = (os.environ if environment is None else environment).get(FILE_VARIABLE)
    return Path(named) if named else platformdirs.user_config_path("gridweave") / "config.toml"


def configured(
    url: str | None = None,
    token: str | None = None,
    *,
    ca: str | None = None,
    site: str | None = None,
    plain_http: bool | None = None,
    profile: str | None = None,
    grid: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Connection:
    """Return how to reach the grid; arguments override the environment, and the environment overrides the file.

    `profile` selects the table ``[profile.NAME]`` of the file instead of its top level; `grid` names a grid on this
    machine instead of a `url`. Raise InputError if the file or the address is invalid, or if two addresses are given.
    Raise UnavailableError if the named grid is not running here; without a name, if no grid is running here.
    """
    if url is not None and grid is not None:
        raise OptionError("grid", f"names the grid {grid!r}, but a URL is given, too; give only one of them")
    environment = os.environ if environment is None else environment
    in_file, warnings = _file_layer(environment, profile)
    layer = _Layer(url=url, token=token, ca=ca, site=site, plain_http=plain_http)
    layer = layer if grid is None else _over(layer, _layer_of(grid_here(grid)))
    # A profile that is named for one command wins over a grid that the environment names for all commands.
    below = [in_file, _environment_layer(environment)] if profile else [_environment_layer(environment), in_file]
    connection = _merged([layer, *below], warnings)
    for endpoint in (connection, *connection.sites.values()):
        _check_secret(endpoint)
    return connection


def _merged(layers: list[_Layer], warnings: Sequence[str]) -> Connection:
    """Merge layers; earlier layers take precedence. If no layer has an address, use a grid on this machine."""
    if not any(layer.url for layer in layers):
        layers.append(_layer_of(grid_here()))
    place = next((number for number, layer in enumerate(layers) if layer.url), None)
    if place is None:
        raise UnavailableError(NO_GRID)
    chosen = _clean_url(layers[place].url or "")
    # A layer with another address describes another grid, so its token and other values must not be used.
    below = (layer for layer in layers[place + 1 :] if layer.url is None or layer.url.rstrip("/") == chosen)
    heard = [*layers[: place + 1], *below]
    here = layers[place].here
    values = {name: next((v for v in (getattr(x, name) for x in heard) if v is not None), None) for name in _KEYS[1:]}
    return Connection(
        url=chosen,
        token=values["token"],
        ca=values["ca"],
        site=values["site"],
        plain_http=bool(values["plain_http"]),
        warnings=tuple(warnings),
        sites=_site_connections([layer.sites or {} for layer in heard]),
        grid="" if here is None else here.name,
        shares_folders=here is not None and here.own_ray,
    )


def gateway_here(connection: Connection) -> LocalProcess | None:
    """Return the gateway process of the connection's local grid; None if the grid is remote or the gateway is down."""
    state = running_grid(connection.grid) if connection.grid else None
    return None if state is None else state.process(GATEWAY)


def followed(connection: Connection) -> Connection:
    """Update a connection to a grid on this machine, whose gateway may have restarted at another address.

    Raise UnavailableError if the gateway is not running: another server at the old address must not get the token.
    """
    if not connection.grid:
        return connection
    current = _merged([_layer_of(grid_here(connection.grid))], ())
    return msgspec.structs.replace(connection, url=current.url, token=current.token, ca=current.ca)


def _capitals(site: str) -> str:
    """Return a site's name as it appears in the names of environment variables."""
    return re.sub(r"[^A-Z0-9]", "_", site.upper())


def _sites_in(environment: Mapping[str, str]) -> dict[str, _Layer]:
    """Return the gateways of sites that environment variables define, by the site's name in capitals."""
    layers = {}
    for variable in environment:
        named = re.fullmatch(SITE_VARIABLE.format("([A-Z0-9_]+)", "URL"), variable)
        if named and environment[variable]:
            token, ca = (environment.get(SITE_VARIABLE.format(named[1], what)) or None for what in ("TOKEN", "CA"))
            layers[named[1]] = _Layer(url=environment[variable], token=token, ca=ca)
    return layers


def _site_connections(layers: Sequence[Mapping[str, _Layer]]) -> dict[str, Connection]:
    """Return the connections to the sites' own gateways; the first layer that names a site wins."""
    connections: dict[str, Connection] = {}
    for layer in layers:
        for name, site_layer in layer.items():
            # NORTH_1 in the environment is north-1 in the file.
            if name not in connections and _capitals(name) not in connections:
                connections[name] = Connection(
                    url=_clean_url(site_layer.url or ""),
                    token=site_layer.token,
                    ca=site_layer.ca,
                    plain_http=bool(site_layer.plain_http),
                )
    return connections


def gateway_of(connection: Connection, site: str) -> Connection | None:
    """Return how to reach a site's own gateway, or None if it is unknown.

    Examples
    --------
    >>> north = Connection(url="https://north.example.org")
    >>> gateway_of(Connection(url="https://grid.example.org", sites={"north": north}), "north").url
    'https://north.example.org'
    """
    return connection.sites.get(site) or connection.sites.get(_capitals(site))


def _clean_url(url: str) -> str:
    """Return a gateway's address without a slash at the end; raise OptionError if the address is invalid."""
    try:
        parts = urlsplit(url.strip())
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not port_is_fine or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise OptionError(
            "url", f"{url!r} is not the address of a gateway; write for example https://grid.example.org:8765"
        )
    if parts.username is not None or parts.password is not None:
        raise OptionError("url", "contains a user or a password; give the token separately (GRIDWEAVE_TOKEN)")
    return url.strip().rstrip("/")


def _check_secret(connection: Connection) -> None:
    """Raise OptionError if the token cannot be sent, or would be sent unencrypted over the network."""
    token = connection.token
    if token is None:
        return
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise OptionError("token", "contains characters that no token has; copy the whole token, without line ends")
    if (
        connection.url.startswith("http:")
        and not is_loopback(urlsplit(connection.url).hostname or "")
        and not connection.plain_http
    ):
        raise OptionError(
            "url",
            f"{connection.url} is not encrypted, so others on the network could read the token; use https or, if you "
            "trust the network, set plain_http = true in the configuration",
        )


def _environment_layer(environment: Mapping[str, str]) -> _Layer:
    layer = _Layer(
        url=environment.get(URL_VARIABLE) or None,
        token=environment.get(TOKEN_VARIABLE) or None,
        ca=environment.get(CA_VARIABLE) or None,
        sites=_sites_in(environment),
    )
    name = named_grid(None, environment)
    return layer if layer.url or name is None else _over(layer, _layer_of(grid_here(name)))


def _over(upper: _Layer, lower: _Layer) -> _Layer:
    """Merge two layers about the same grid; `upper` takes precedence."""
    values = msgspec.structs.asdict(upper)
    return msgspec.structs.replace(lower, **{name: value for name, value in values.items() if value is not None})


def _layer_of(grid: LocalGridState | None) -> _Layer:
    """Return the layer for a grid on this machine; raise UnavailableError if the grid's gateway is not running."""
    if grid is None:
        return _Layer()
    if not grid.has_gateway:
        name = "" if grid.name == DEFAULT_NAME else f" --grid {grid.name}"
        right = f"start it again with `gridweave up{name}`"
        if grid.watchdog or grid.process(HEAD) is not None:
            right = f"it restarts by itself; try again in a few seconds, or see `gridweave status{name}`"
        raise UnavailableError(f"the gateway of the grid {grid.name!r} does not run at {grid.url}; {right}")
    return _Layer(url=grid.url, token=grid.token, ca=grid.cert or None, plain_http=grid.plain_http or None, here=grid)


def named_grid(name: str | None, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the given name, or else the name in GRIDWEAVE_GRID; None if neither is set."""
    return name or (os.environ if environment is None else environment).get(GRID_VARIABLE) or None


def grid_here(name: str | None = None) -> LocalGridState | None:
    """Return a grid that `gridweave up` has started on this machine; by default ``default`` or else the only one.

    Return None if there is no name and no grid is running. Raise UnavailableError if the named grid is not running.
    Raise OptionError if there is no name and several grids are running, none of them called ``default``.
    """
    if name is not None:
        grid = running_grid(name)
        if grid is None or not grid.url:
            raise UnavailableError(f"the grid {name!r} does not run here; start it with `gridweave up --grid {name}`")
        return grid
    running = [grid for grid_name in known_grids() if (grid := running_grid(grid_name)) is not None and grid.url]
    candidates = [grid for grid in running if grid.name == DEFAULT_NAME] or running
    if len(candidates) > 1:
        names = ", ".join(f"{grid.name} ({grid.url})" for grid in candidates)
        raise OptionError("grid", f"several grids run here: {names}; name one, or set {GRID_VARIABLE}")
    return candidates[0] if candidates else None


# -- the file


def _file_layer(environment: Mapping[str, str], profile: str | None) -> tuple[_Layer, list[str]]:
    """Return the settings from the configuration file, and warnings about the file."""
    path = configuration_file(environment)
    profile = profile or environment.get(PROFILE_VARIABLE) or None
    try:
        with path.open("rb") as file:
            is_open_to_others = bool(stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077)
            text = file.read().decode()
    except FileNotFoundError:
        if environment.get(FILE_VARIABLE):
            raise InputError(f"{path}: there is no such file ({FILE_VARIABLE} names it)") from None
        if profile:
            raise InputError(f"{path}: there is no such file, and so no profile {profile!r}") from None
        return _Layer(), []
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; write it as text") from None
    except OSError as error:
        raise InputError(f"{path}: {os.strerror(error.errno or 0)}") from None
    layer = _read(path, text, profile)
    warnings = []
    if is_open_to_others and _TOKEN_LINE.search(text):
        warnings.append(f"{path} contains a token, and others may read it; run: chmod 600 {path}")
    return layer, warnings


def _read(path: Path, text: str, profile: str | None) -> _Layer:
    """Return the settings from the file's top level, or from one of its profiles."""
    try:
        tables: dict[str, Any] = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}") from None
    profiles = tables.pop("profile", {})
    if not isinstance(profiles, dict) or not all(isinstance(table, dict) for table in profiles.values()):
        raise InputError(f"{path}:{_line(text, 'profile')}: profile: must be tables; write [profile.NAME]")
    default = _layer(path, text, tables, "")
    others = {name: _layer(path, text, table, f"profile.{name}.") for name, table in profiles.items()}
    if profile is None:
        return default
    if profile not in others:
        valid_profiles = ", ".join(sorted(others)) or "none"
        raise InputError(f"{path}: there is no profile {profile!r}; there are: {valid_profiles}")
    return others[profile]


def _layer(
    path: Path, text: str, table: dict[str, Any], prefix: str, keys: Sequence[str] = (*_KEYS, TOKEN_FILE)
) -> _Layer:
    """Return the settings in a table; an error names the line and the field."""
    sites = table.pop("sites", None) if keys != _SITE_KEYS_IN_FILE else None
    for key, value in table.items():
        where = f"{path}:{_line(text, key, prefix)}: {prefix}{key}"
        if key not in keys:
            tables = "" if keys == _SITE_KEYS_IN_FILE else ", and tables [profile.NAME] and [sites.NAME]"
            raise InputError(f"{where}: is not known; there are {', '.join(keys)}{tables}")
        expected: type = bool if key == "plain_http" else str
        if not isinstance(value, expected):
            raise InputError(f"{where}: is {value!r}; " + ("true or false" if expected is bool else "a text in quotes"))
    if (file := table.pop(TOKEN_FILE, None)) is not None:
        table["token"] = _token_in(path, text, prefix, table, file)
    layer = msgspec.convert(table, _Layer)
    if layer.ca is not None:  # a path in the file is relative to the file
        layer = msgspec.structs.replace(layer, ca=str(_beside(path, layer.ca)))
    if sites is not None:
        layer = msgspec.structs.replace(layer, sites=_sites(path, text, sites, prefix))
    return layer


def _beside(path: Path, file: str) -> Path:
    return path.parent / os.path.expanduser(file)  # the home of an unknown user stays unexpanded, and is not found


def _sites(path: Path, text: str, tables: Any, prefix: str) -> dict[str, _Layer]:
    where = f"{path}:{_line(text, 'sites', prefix)}: {prefix}sites"
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InputError(f"{where}: must be tables; write [{prefix}sites.NAME]")
    layers = {}
    for name, table in tables.items():
        layers[name] = _layer(path, text, table, f"{prefix}sites.{name}.", _SITE_KEYS_IN_FILE)
        if not layers[name].url:
            raise InputError(f"{where}.{name}.url: is missing; name the site's own gateway")
    return layers


def _token_in(path: Path, text: str, prefix: str, table: dict[str, Any], file: str) -> str:
    where = f"{path}:{_line(text, TOKEN_FILE, prefix)}: {prefix}{TOKEN_FILE}"
    if "token" in table:
        raise InputError(f"{where}: is given together with token; leave one of them out")
    place = _beside(path, file)
    try:
        return place.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: {place}: {getattr(error, 'strerror', None) or 'is not ASCII'}") from None


def _line(text: str, key: str, prefix: str = "") -> int:
    """Return the line number of a key, from 1; if the key is not found, the line number of its table."""
    table = f"[{prefix.rstrip('.')}]"
    lines = [line.strip() for line in text.splitlines()]
    first = next((number for number, line in enumerate(lines) if prefix and line.startswith(table)), 0)
    for number, line in enumerate(lines[first:], start=first + 1):
        if line.strip("[]\"' ").split("=")[0].strip(" \"'").split(".")[0] == key:
            return number
    return first + 1
