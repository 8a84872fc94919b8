"""Known traces of the Parallel Workloads Archive: where they are, what they must hold, and how to get them."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import msgspec
import platformdirs

from gridweave.errors import InputError, TraceError, UnavailableError
from gridweave.scenarios.traces.text import new_file, one_line, open_trace

TIMEOUT_S = 30.0
_MAX_DOWNLOAD_BYTES = 1 << 30  # many times the largest trace of the archive

Opener = Callable[[str, float], AbstractContextManager[IO[bytes]]]


class KnownTrace(msgspec.Struct, frozen=True):
    """A trace that can be fetched.

    Parameters
    ----------
    url : str
        Where it is.
    sha256 : str
        SHA-256 of the uncompressed SWF text. It pins the content, however the file is packed.
    nodes : int
        Machine size that publications use with it, which is not always the one in its header.
    """

    url: str
    sha256: str
    nodes: int


with (Path(__file__).parents[1] / "data" / "traces.csv").open(encoding="utf-8", newline="") as _file:
    KNOWN_TRACES = {row["name"]: msgspec.convert(row, KnownTrace, strict=False) for row in csv.DictReader(_file)}
"""Full name to trace."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A trace that is now at hand; it was downloaded, unless it was there already, and right."""

    name: str
    path: Path
    downloaded: bool
    nodes: int


def cache_folder() -> Path:
    """Return the folder of the user's cache in which fetched traces are kept; it need not exist."""
    return platformdirs.user_cache_path("gridweave") / "traces"


def resolve_name(name: str) -> str | None:
    """Return the full name of the one known trace of this name, or whose name begins so up to a hyphen.

    Examples
    --------
    >>> resolve_name("kth-sp2"), resolve_name("CTC"), resolve_name("nowhere")
    ('KTH-SP2-1996-2', 'CTC-SP2-1996-3.1-cln', None)
    """
    wanted = name.casefold()
    known = sorted(KNOWN_TRACES)
    exact = [full for full in known if full.casefold() == wanted]
    found = exact or [full for full in known if full.casefold().startswith(f"{wanted}-")]
    return found[0] if len(found) == 1 else None


def open_url(url: str, timeout_s: float) -> AbstractContextManager[IO[bytes]]:
    """Open an address for reading, and wait so long for each answer of the server."""
    import urllib.request  # with all of HTTP and TLS, which nobody else needs to read a trace

    return cast("AbstractContextManager[IO[bytes]]", urllib.request.urlopen(url, timeout=timeout_s))


def fetch(name: str, *, folder: str | Path | None = None, opener: Opener = open_url) -> Fetched:
    """Get a known trace, by its name or short form, into a folder (`cache_folder`), and check that it is as pinned.

    InputError if no such trace is known, or the folder cannot be written; UnavailableError if the network or the
    archive does not answer, or what it sends is not the pinned trace. Nothing is kept then.
    """
    full = resolve_name(name)
    if full is None:
        raise InputError(f"{name}: there is no trace of that name; there are {', '.join(sorted(KNOWN_TRACES))}")
    trace = KNOWN_TRACES[full]
    place = Path(folder) if folder is not None else cache_folder()
    target = place / os.path.basename(trace.url)
    for path in sorted(place.glob(f"{full}.swf*")):
        if path.suffix in (".swf", ".gz", ".xz") and _is_right(path, trace):
            return Fetched(full, path, downloaded=False, nodes=trace.nodes)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: cannot be created: {one_line(error)}; choose another folder") from None
    _download(full, trace, target, opener)
    return Fetched(full, target, downloaded=True, nodes=trace.nodes)


def _download(name: str, trace: KnownTrace, target: Path, opener: Opener) -> None:
    with new_file(target) as (temporary, stream):
        for block in _received(trace, target, opener):
            stream.write(block)
        stream.flush()
        if not _is_right(temporary, trace):
            raise UnavailableError(
                f"{name}: what {trace.url} sends is not the trace that is known by its SHA-256; nothing was kept"
            )


def _received(trace: KnownTrace, target: Path, opener: Opener) -> Iterator[bytes]:
    """Yield what the address holds, block by block."""
    import http.client

    received = 0
    try:
        with opener(trace.url, TIMEOUT_S) as source:
            while block := source.read(1 << 20):
                received += len(block)
                if received > _MAX_DOWNLOAD_BYTES:
                    raise UnavailableError(f"{trace.url} sends more than {_MAX_DOWNLOAD_BYTES} bytes; nothing was kept")
                yield block
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None)
        text = one_line(reason if isinstance(reason, BaseException) else error)
        raise UnavailableError(
            f"{trace.url} cannot be fetched: {text}; get it by other means and put it at {target}"
        ) from None


def _is_right(path: Path, trace: KnownTrace) -> bool:
    """Return whether a file holds the pinned trace, however it is packed."""
    digest = hashlib.sha256()
    try:
        with open_trace(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except TraceError:
        return False
    return digest.hexdigest() == trace.sha256
