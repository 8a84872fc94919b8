"""Download traces from the Parallel Workloads Archive and verify their checksums."""

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
_MAX_DOWNLOAD_BYTES = 1 << 30  # many times the size of the archive's largest trace

Opener = Callable[[str, float], AbstractContextManager[IO[bytes]]]


class KnownTrace(msgspec.Struct, frozen=True):
    """A trace that can be downloaded.

    Parameters
    ----------
    url : str
        Address of the file.
    sha256 : str
        SHA-256 of the uncompressed SWF text, so it does not depend on the compression.
    nodes : int
        Machine size used in publications, which may differ from the size in the file's header.
    """

    url: str
    sha256: str
    nodes: int


with (Path(__file__).parents[1] / "data" / "traces.csv").open(encoding="utf-8", newline="") as _file:
    KNOWN_TRACES = {row["name"]: msgspec.convert(row, KnownTrace, strict=False) for row in csv.DictReader(_file)}
"""Traces by full name."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A verified trace on this machine; ``downloaded`` is False if the file already existed."""

    name: str
    path: Path
    downloaded: bool
    nodes: int


def cache_folder() -> Path:
    """Return the user's cache folder for traces; the folder may not exist yet."""
    return platformdirs.user_cache_path("gridweave") / "traces"


def resolve_name(name: str) -> str | None:
    """Return a trace's full name, given that name or a part up to a hyphen; None if unknown or ambiguous.

    Examples
    --------
    >>> resolve_name("kth-sp2"), resolve_name("CTC"), resolve_name("nowhere")
    ('KTH-SP2-1996-2', 'CTC-SP2-1996-3.1-cln', None)
    """
    folded = name.casefold()
    names = sorted(KNOWN_TRACES)
    exact = [full for full in names if full.casefold() == folded]
    matches = exact or [full for full in names if full.casefold().startswith(f"{folded}-")]
    return matches[0] if len(matches) == 1 else None


def open_url(url: str, timeout_s: float) -> AbstractContextManager[IO[bytes]]:
    """Open a URL for reading; the timeout applies to each response from the server."""
    import urllib.request  # loads HTTP and TLS code, which reading a trace does not need

    return cast("AbstractContextManager[IO[bytes]]", urllib.request.urlopen(url, timeout=timeout_s))


def fetch(name: str, *, folder: str | Path | None = None, opener: Opener = open_url) -> Fetched:
    """Download a trace, given its full or short name, to a folder (default: `cache_folder`), and verify its checksum.

    Raise InputError if the trace is unknown or the folder cannot be created. Raise UnavailableError if the network or
    the archive does not respond, or the checksum is wrong; no file is kept in this case.
    """
    full = resolve_name(name)
    if full is None:
        raise InputError(f"{name}: there is no trace with this name; traces are {', '.join(sorted(KNOWN_TRACES))}")
    trace = KNOWN_TRACES[full]
    target_folder = Path(folder) if folder is not None else cache_folder()
    target = target_folder / os.path.basename(trace.url)
    for path in sorted(target_folder.glob(f"{full}.swf*")):
        if path.suffix in (".swf", ".gz", ".xz") and _is_right(path, trace):
            return Fetched(full, path, downloaded=False, nodes=trace.nodes)
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target_folder}: cannot be created: {one_line(error)}; choose another folder") from None
    _download(full, trace, target, opener)
    return Fetched(full, target, downloaded=True, nodes=trace.nodes)


def _download(name: str, trace: KnownTrace, target: Path, opener: Opener) -> None:
    with new_file(target) as (temporary, stream):
        for block in _received(trace, target, opener):
            stream.write(block)
        stream.flush()
        if not _is_right(temporary, trace):
            raise UnavailableError(
                f"{name}: the content of {trace.url} does not have the expected SHA-256; nothing was kept"
            )


def _received(trace: KnownTrace, target: Path, opener: Opener) -> Iterator[bytes]:
    """Yield the content of the trace's URL in blocks."""
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
            f"{trace.url} cannot be fetched: {text}; download it in another way and save it as {target}"
        ) from None


def _is_right(path: Path, trace: KnownTrace) -> bool:
    """Whether a file's uncompressed content has the expected checksum."""
    digest = hashlib.sha256()
    try:
        with open_trace(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except TraceError:
        return False
    return digest.hexdigest() == trace.sha256
