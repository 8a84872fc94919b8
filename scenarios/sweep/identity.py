"""The identity of a run: its resolved scenario, including seed and files, and the code that runs the scenario."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import gridweave.version
from gridweave.errors import InputError, TraceError
from gridweave.grid.config.networks import beside, find_topology
from gridweave.scenarios.generators.registry import model_names
from gridweave.scenarios.scenario.tables import GridTable, Header, Output, Scenario
from gridweave.scenarios.traces.load import find_trace

_FOLDERS = ("grid", "netmodel", "scenarios", "site", "slurm")
_NOT_IN_STAMP = (
    "scenarios/sweep/",
    "scenarios/plots/",
    "scenarios/live/",
)  # these packages do not affect results
_CHUNK = 1 << 20

NET_FILE = "net.file"

_OF_JOBS = ("resources", "needs", "chunks")
"""Keys of ``[workload]`` that may name a file with a line for each job, instead of a rule."""

# Keys of [grid] that affect neither the jobs nor whether a job can run.
_POLICY_ONLY = ("overhead", "selection", "order", "backfill")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a scenario reads: its key (`NET_FILE` or a key of ``[workload]``), absolute path and SHA-256."""

    field: str
    path: str
    digest: str


def resolve_files(scenario: Scenario, folder: Path | None) -> tuple[Scenario, tuple[InputFile, ...]]:
    """Make the paths of a scenario's files absolute; return the new scenario and the files.

    The scenario's folder takes precedence over the working directory. A missing file keeps its name and is reported
    when the scenario is built.
    """
    names = {field: getattr(scenario.workload, field) for field in ("trace", "generator", *_OF_JOBS)}
    if scenario.net is not None:
        names[NET_FILE] = scenario.net.file
    files = []
    for field, name in names.items():
        path = _file_of(field, name, folder) if isinstance(name, str) else None
        if path is not None:
            absolute = str(path.absolute())
            scenario = with_file(scenario, field, absolute)
            files.append(InputFile(field, absolute, digest_of(path)))
    return scenario, tuple(files)


def with_file(scenario: Scenario, field: str, path: str) -> Scenario:
    """Set the file path under a key, given as in `InputFile.field`."""
    if field == NET_FILE and scenario.net is not None:
        return msgspec.structs.replace(scenario, net=msgspec.structs.replace(scenario.net, file=path))
    return msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, **{field: path}))


def digest_of(path: str | Path) -> str:
    """Return a file's SHA-256, cached as long as the file's size and modification time stay the same."""
    try:
        state = Path(path).stat()
        return _digest(str(path), state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from None


def run_key(scenario: Scenario, files: tuple[InputFile, ...], stamp: str) -> str:
    """Return the key of a run, 40 hexadecimal digits, which depends only on inputs that may affect the result.

    The key ignores the scenario's name, description and displayed metrics, and the paths of files; it depends on the
    files' content.
    """
    plain = msgspec.structs.replace(scenario, header=Header(seed=scenario.header.seed), output=Output())
    for file in files:
        plain = with_file(plain, file.field, f"sha256:{file.digest}")
    return hashlib.sha256(stamp.encode() + b"\n" + msgspec.json.encode(plain, order="sorted")).hexdigest()[:40]


def workload_key(scenario: Scenario, files: tuple[InputFile, ...]) -> str:
    """Return the key of a run's built workload; runs that differ only in the grid's policy have the same key."""
    default = GridTable()
    grid = msgspec.structs.replace(scenario.grid, **{name: getattr(default, name) for name in _POLICY_ONLY})
    return run_key(msgspec.structs.replace(scenario, grid=grid), files, "")


@functools.cache
def code_stamp() -> str:
    """Return a text that identifies gridweave's version, NumPy's version, and the source files that affect results."""
    digest = hashlib.sha256(f"{gridweave.version.__version__} numpy {np.__version__}".encode())
    package = Path(gridweave.version.__file__).parent
    sources = [path for folder in _FOLDERS for path in (package / folder).rglob("*.py")]
    data = [path for path in (package / "scenarios" / "data").iterdir() if path.is_file()]
    for path in sorted(sources + data):
        name = path.relative_to(package).as_posix()
        if not name.startswith(_NOT_IN_STAMP):
            digest.update(name.encode())
            digest.update(path.read_bytes())
    return f"{gridweave.version.__version__}-{digest.hexdigest()[:16]}"


def _file_of(field: str, name: str, folder: Path | None) -> Path | None:
    """Return the file that a key names, if it exists."""
    if field in _OF_JOBS and not Path(name).suffix:
        return None
    own = beside(folder, name)
    if own is not None:
        return own
    try:
        if field in _OF_JOBS:
            return Path(name) if Path(name).is_file() else None
        if field == "generator":  # shipped models take precedence over files of the same name
            return Path(name) if name not in model_names() and Path(name).is_file() else None
    except (OSError, ValueError):
        return None
    try:
        path = find_topology(name) if field == NET_FILE else find_trace(name)
    except InputError:
        return None
    return path if path.is_file() else None


@functools.lru_cache(maxsize=64)
def _digest(path: str, mtime_ns: int, size: int) -> str:  # mtime_ns and size invalidate the cache
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
