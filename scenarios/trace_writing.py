"""How every trace format is written: whole or not at all, and so that it is read back exactly."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.scenarios.trace_text import MAX_WHOLE, one_line
from gridweave.scenarios.workload import MS_PER_S


def seconds_text(ms: int) -> str:
    """Return milliseconds as seconds, with decimals only where they are needed.

    Parameters
    ----------
    ms : int
        Milliseconds, >= 0.

    Returns
    -------
    str

    Examples
    --------
    >>> seconds_text(1500), seconds_text(60_000)
    ('1.5', '60')
    """
    whole, rest = divmod(ms, MS_PER_S)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def check_exact(path: str | Path, name: str, values: npt.NDArray[np.generic]) -> None:
    """Refuse to write whole numbers that could not be read back exactly.

    Parameters
    ----------
    path : str or pathlib.Path
        The file that is to be written.
    name : str
        What the numbers are.
    values : numpy.ndarray of int64
        The numbers.

    Raises
    ------
    InputError
        If one of them is beyond `MAX_WHOLE`.
    """
    numbers = values.astype(np.int64, copy=False)
    beyond = (numbers > MAX_WHOLE) | (numbers < -MAX_WHOLE)
    if beyond.any():
        value = numbers[int(np.argmax(beyond))]
        raise InputError(f"{path}: cannot be written: {name} {value} is beyond {MAX_WHOLE}, the largest kept exactly")


def write_file(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that either all of it is there or nothing.

    Parameters
    ----------
    path : str or pathlib.Path
        The file; one that is there is replaced. The suffixes ``.gz`` and ``.xz`` compress it.
    write : callable
        Takes a binary file object and writes the uncompressed content into it.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    with new_file(path) as (_, raw), _compressor(raw, Path(path).suffix.lower()) as stream:
        write(stream)


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a file under another name beside it, and rename it at the end of the ``with``; after an error, remove it.

    Parameters
    ----------
    path : str or pathlib.Path
        The file; one that is there is replaced.

    Yields
    ------
    pathlib.Path, binary file object
        The other name, and the file open for writing.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    target = Path(os.path.realpath(path))  # a link stays a link, and what it points to is replaced
    if target.exists() and not target.is_file():
        raise InputError(f"{path}: cannot be written: it is not a regular file; give the name of a file")
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb") as raw:
            yield temporary, raw
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {one_line(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _compressor(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    """Yield a stream that compresses into `raw` as the suffix says. No clock: equal content gives equal files."""
    if suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif suffix == ".xz":
        with lzma.open(raw, "wb") as stream:
            yield stream
    else:
        yield raw
