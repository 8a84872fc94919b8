"""Find topology files, and read the network between sites from the table ``[net]``."""

from __future__ import annotations

import importlib.resources
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs

from gridweave.errors import InputError
from gridweave.grid.config.tables import Site
from gridweave.grid.config.toml import FileReport
from gridweave.netmodel.reading import read_table
from gridweave.netmodel.tables import DETOUR, AttachTable, KeyPath, NetTable

if TYPE_CHECKING:
    from gridweave.netmodel.topology import Topology

FOLDER_VARIABLE = "GRIDWEAVE_TOPOLOGIES"
MAX_BYTES = 1 << 26

KNOWN_TOPOLOGIES = {"geant2012.gml": "http://www.topology-zoo.org/files/Geant2012.gml"}
"""Topology files that our scenarios use but gridweave may not ship, with their download addresses."""

TOML = ".toml"
KEYS_OF_A_FILE = ("nodes", "links", "generator", "bandwidth", "bandwidth_bps", "detour")


def find_topology(name: str, folder: Path | None = None) -> Path:
    """Find the file of a network by path or name; raise InputError with a remedy if the file is missing.

    A name is searched for in the folder of the scenario, the working directory, ``$GRIDWEAVE_TOPOLOGIES``, the user's
    cache folder, and the topologies shipped with gridweave.
    """
    own = beside(folder, name)
    try:
        if own is not None or Path(name).is_file():
            return own or Path(name)
        if Path(name).exists():
            raise InputError(f"{name}: is not a file")
    except (OSError, ValueError):
        raise InputError(f"{name}: is not the name of a file") from None
    if Path(name).name == name:  # a path with folders means just that file
        for place in _folders():
            file = beside(place, name)
            if file is not None:
                return file
    raise InputError(f"{name}: {_why_missing(name)}")


def _why_missing(name: str) -> str:
    url = KNOWN_TOPOLOGIES.get(name.casefold())
    if url is not None:
        return (
            f"this topology is not installed; download it from {url} into the folder of the scenario, or into the "
            f"folder that ${FOLDER_VARIABLE} names"
        )
    return (
        f"there is no such file in the folder of the scenario or the folder that ${FOLDER_VARIABLE} names; gridweave "
        f"ships {', '.join(shipped_topologies())}"
    )


def shipped_topologies() -> list[str]:
    """Return the names of the topologies shipped with gridweave, in alphabetical order."""
    return sorted(path.name for path in _shipped().iterdir() if path.suffix == TOML)


def text_of(path: Path) -> str:
    """Return the text of a network file; raise InputError if it is unreadable or too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large for a network; at most {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8") from None


def with_source_of(table: NetTable, text: str) -> NetTable:
    """Replace the file name in a table with the network that the file defines; `text` is the file's content.

    The file may have only the keys `KEYS_OF_A_FILE`. The table's own ``detour`` and bandwidth override those of the
    file. Raise InputError with all problems, separated by semicolons.
    """
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not TOML: {' '.join(str(error).split())}") from None
    if not isinstance(raw.get("net"), dict):
        raise InputError("has no table [net]")
    wrong = _Lines()
    others = [key for key in raw["net"] if key not in KEYS_OF_A_FILE]
    if others:
        wrong.add((), f"has {', '.join(others)}; a file of a topology has {', '.join(KEYS_OF_A_FILE)}")
    written = read_table({key: raw["net"][key] for key in raw["net"] if key in KEYS_OF_A_FILE}, wrong)
    if wrong.lines:
        raise InputError("; ".join(wrong.lines))
    keys = ["nodes", "links", "generator"]
    keys += ["bandwidth", "bandwidth_bps"] * (table.bandwidth is None and table.bandwidth_bps is None)
    keys += ["detour"] * (table.detour == DETOUR)
    return msgspec.structs.replace(table, file=None, **{key: getattr(written, key) for key in keys})


class _Lines:
    """A report that collects problems as lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: KeyPath, text: str) -> None:
        name = ".".join(str(key) for key in path if not isinstance(key, int))
        self.lines.append(f"{name}: {text}" if name else text)


def _folders() -> list[Path]:
    """Return the folders searched for a topology by name, in search order."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return [*([Path(folder)] if folder else []), platformdirs.user_cache_path("gridweave") / "topologies", _shipped()]


def _shipped() -> Path:
    return Path(str(importlib.resources.files("gridweave.netmodel") / "data"))


def beside(folder: Path | None, name: str) -> Path | None:
    """Return the file with this name in a folder, or None."""
    try:
        return folder / name if folder is not None and (folder / name).is_file() else None
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class ReadNetwork:
    """A parsed network."""

    table: NetTable  # with the sites attached
    topology: Topology  # has the sites of the file, in the same order

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages to the user about values that are missing in the file, and the defaults used instead."""
        return tuple(f"{Path(self.topology.name).name}: {remark}" for remark in self.topology.remarks)


def read_network(
    sites: Sequence[object], net: NetTable | None, name: str, folder: Path | None, report: FileReport
) -> ReadNetwork | None:
    """Return the network between sites; None without a network, or if errors in the file make it ambiguous.

    An element of `sites` is UNSET if the site could not be read. `name` is the name for a network that has none.
    """
    from gridweave.netmodel.reading import build_topology

    read = [site for site in sites if isinstance(site, Site)]
    if net is None or len(read) < len(sites) or not report.is_clean(("net", "nodes")):
        return None  # links and sites would seem to refer to unknown nodes
    own: dict[str, str | AttachTable] = {site.name: site.at for site in read if site.at is not None}
    table = msgspec.structs.replace(net, attach=own | net.attach)
    indices = {site.name: number for number, site in enumerate(read) if site.at is not None}
    listener = _Listener(report, name, indices)
    if table.file is not None and table.file.lower().endswith(TOML) and not (table.nodes or table.links):
        listener.file = table.file
        try:
            table = with_source_of(table, text_of(find_topology(table.file, folder)))
        except InputError as error:
            report.add(("net", "file"), f"{listener.file}: {str(error).removeprefix(f'{listener.file}: ')}")
            return None
    names = list(dict.fromkeys(site.name for site in read))
    topology = build_topology(table, name, lambda file: text_of(find_topology(file, folder)), listener, names)
    return None if topology is None or not report.is_clean(("net",)) else ReadNetwork(table, topology)


class _Listener:
    """Report the problems of a network at the keys of the file that cause them."""

    def __init__(self, report: FileReport, name: str, indices: Mapping[str, int]) -> None:
        self.report, self.name, self.site_numbers = report, name, indices
        self.file = ""
        self.is_whole = report.is_clean(("net", "links"))

    def add(self, path: KeyPath, text: str) -> None:
        text = text.removeprefix(f"{self.name}: ")
        if not path and not self.is_whole:
            return  # the network only seems disconnected because some links could not be read
        if self.file and path[:1] in (("nodes",), ("links",), ("generator",)):
            self.report.add(("net", "file"), f"{self.file}: {text}")
        elif path[:1] == ("attach",) and len(path) > 1 and path[1] in self.site_numbers:
            self.report.add(("sites", self.site_numbers[str(path[1])], "at"), text)
        else:
            self.report.add(("net", *path), text)
