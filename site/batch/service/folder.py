"""The folder that a site shares with the nodes of its batch system: what lies where in it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec

from gridweave.errors import InputError
from gridweave.site.disciplines.protocol import PILOT
from gridweave.site.launch import MachineRules
from gridweave.site.machine.folders import Key, piece_folder, write_whole
from gridweave.site.service.calls import SECRET_BYTES

KEEP_NODES = 1_000
"""The folders of so many nodes that were given back, with their output, are kept."""


class SiteAddress(msgspec.Struct, frozen=True):
    """Where the site hears the processes on its nodes."""

    host: str
    port: int


class SharedFolder:
    """A folder that every node sees under the same path, and that nobody but the account of the site can read.

    Parameters
    ----------
    path : pathlib.Path
    token : str
        By which the site knows its own allocations; another for each journal, as one that is begun anew counts its jobs
        from the start. Left out by who needs none of them.

    Raises
    ------
    InputError
        If it cannot be made or written.
    """

    def __init__(self, path: Path, token: str = "") -> None:
        self.path, self.prefix = path, f"gw-{token}-"
        try:
            (path / "nodes").mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        except OSError as error:
            right = "name a folder that you can write to, and that every node of the cluster sees"
            raise InputError(f"{path}: {error.strerror}; {right}") from error

    def secret(self) -> bytes:
        """Return the secret by which the site and its nodes know each other; it is made the first time."""
        place = self.path / "secret"
        if not place.exists():
            write_whole(place, secrets.token_bytes(SECRET_BYTES))
        return place.read_bytes()

    def set_address(self, address: SiteAddress) -> None:
        """Tell the nodes where the site hears them now."""
        write_whole(self.path / "address", msgspec.json.encode(address))

    def address(self) -> SiteAddress:
        """Return where the site hears its nodes; OSError if it was never there."""
        return msgspec.json.decode((self.path / "address").read_bytes(), type=SiteAddress)

    def set_rules(self, rules: MachineRules) -> None:
        """Tell the nodes whose jobs they start, and within which limits."""
        write_whole(self.path / "rules", msgspec.json.encode(rules))

    def rules(self) -> MachineRules:
        """Return whose jobs the nodes start; OSError if nobody has said it."""
        return msgspec.json.decode((self.path / "rules").read_bytes(), type=MachineRules)

    def node(self, name: str, number: int) -> Path:
        """Return the folder of a node of an allocation, for what it runs."""
        return self.path / "nodes" / f"{name}.{number}"

    def nodes_with(self, key: Key) -> list[Path]:
        """Return the folders of nodes that have, or had, a part of an attempt of a job."""
        # The name of an allocation ends with the job, or 0 for a pilot, and the number under which it was asked for.
        nodes = self.path / "nodes"
        found = [*nodes.glob(f"{self.prefix}{key[0]}-*"), *nodes.glob(f"{self.prefix}{PILOT}-*")]
        return sorted(folder for folder in found if piece_folder(folder, key).exists())

    def tidy(self, kept: Collection[str], keep: int = KEEP_NODES) -> None:
        """Remove the oldest folders of nodes, with their output, but for so many; those of these allocations stay."""
        others = [folder for folder in (self.path / "nodes").iterdir() if folder.name.rpartition(".")[0] not in kept]
        # What is removed by somebody else meanwhile counts as the oldest.
        others.sort(key=lambda folder: folder.stat().st_mtime if folder.exists() else 0.0)
        for folder in others[: max(0, len(others) - keep)]:
            shutil.rmtree(folder, ignore_errors=True)
            (self.path / f"{folder.name.rpartition('.')[0]}.log").unlink(missing_ok=True)
