"""Common functions for reading and writing all trace formats.

Readers accept compressed files, check every number, and report errors by line. Writes are atomic, and files can be read
back exactly.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import lzma
import math
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, TraceError
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, MS_PER_S

FloatArray = npt.NDArray[np.float64]

MAX_TIME_S = MAX_TIME_MS // MS_PER_S
# Tables are parsed as float64. All whole numbers up to this limit are exact, and no larger number is rounded to one.
MAX_WHOLE = 2**53 - 1

_BLOCK_BYTES = 4 << 20  # about 45,000 records: large enough for speed, small compared with the kept columns
_WORTH_COMPILED_BYTES = 2 << 20
_MAX_LINE_BYTES = 1 << 20
_ROWS_AT_ONCE = 10_000
_PLAIN_BYTES = bytes([0x09, 0x0A, 0x0D, *range(0x20, 0x7F)])
_ODD_CHARACTER = re.compile(r"[^\t\x20-\x7e]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table: a name that ends in the unit, and the range of allowed values."""

    name: str
    low: float
    high: float
    whole: bool


def whole_field(name: str, *, low: float = -MAX_WHOLE) -> Field:
    """Return a field of whole numbers that a float64 can hold exactly."""
    return Field(name, low, MAX_WHOLE, whole=True)


def width_field(name: str) -> Field:
    """Return a field of node or processor counts."""
    return Field(name, -MAX_WIDTH, MAX_WIDTH, whole=True)


def time_field(name: str) -> Field:
    """Return a field of times in seconds, possibly fractional."""
    return Field(name, -MAX_TIME_S, MAX_TIME_S, whole=False)


def amount_field(name: str) -> Field:
    """Return a field of finite amounts, possibly fractional."""
    return Field(name, -MAX_WHOLE, MAX_WHOLE, whole=False)


def trace_stem(path: str | Path) -> str:
    """Return a trace's file name without its format and compression suffixes.

    Examples
    --------
    >>> trace_stem("traces/KTH-SP2-1996-2.swf.xz")
    'KTH-SP2-1996-2'
    """
    return re.sub(r"(\.(swf|mupsie|txt))?(\.(gz|xz))?$", "", Path(path).name, flags=re.IGNORECASE) or Path(path).name


@contextlib.contextmanager
def open_trace(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to read its uncompressed content; detect gzip and xz, and skip a byte order mark.

    Errors in opening, reading or decompressing the file, even inside the ``with`` block, are raised as TraceError.
    """
    try:
        with open(path, "rb") as raw:
            magic = raw.peek(6)[:6]
            if magic.startswith(b"\x1f\x8b"):
                with gzip.open(raw, "rb") as stream:
                    yield _after_mark(stream)
            elif magic == b"\xfd7zXZ\x00":
                with lzma.open(raw, "rb") as stream:
                    yield _after_mark(stream)
            else:
                yield _after_mark(raw)
    except FileNotFoundError:
        raise TraceError(path, "there is no such file") from None
    except IsADirectoryError:
        raise TraceError(path, "is a folder; give a trace file") from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, f"cannot be decompressed, it is cut off or damaged: {one_line(error)}") from None
    except (OSError, ValueError) as error:
        raise TraceError(path, f"cannot be read: {one_line(error)}") from None


def _after_mark(stream: gzip.GzipFile | lzma.LZMAFile | io.BufferedReader) -> IO[bytes]:
    """Skip a UTF-8 byte order mark, which some editors and spreadsheets add."""
    if stream.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return cast("IO[bytes]", stream)


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file; raise TraceError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(path, f"cannot be read: {reason}") from None


def csv_rows(
    path: str | Path, lines: Iterable[str], *, delimiter: str = ",", strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV table with their line numbers; raise TraceError if a line is not valid CSV."""
    reader = csv.reader(lines, delimiter=delimiter, strict=strict)
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise TraceError(path, f"is not a line of CSV: {one_line(error)}", line=reader.line_num) from None
        if values is None:
            return
        yield reader.line_num, values


def read_table(
    path: str | Path, fields: Sequence[Field], *, keep: Sequence[str], comment: str, record: str
) -> tuple[dict[str, FloatArray], tuple[str, ...]]:
    """Read a table of numbers with one record per line; return the columns in ``keep`` and the comments.

    The file is read in blocks and only the columns in ``keep`` are stored, so memory use is proportional to their
    number. All fields of all records are checked. Comments are decoded as Latin-1, so they can contain any byte.
    """
    rows = [[field.name for field in fields].index(name) for name in keep]
    parts: list[list[FloatArray]] = [[] for _ in keep]
    comments: list[str] = []
    for block in _blocks(path):
        table = _parse_plain(block, fields, comment, comments)
        if table is None:
            table = _parse_lines(path, block, fields, comment, record, comments)
        for part, row in zip(parts, rows, strict=True):
            part.append(table[:, row].copy())
    columns = {name: _joined(part) for name, part in zip(keep, parts, strict=True)}
    return columns, tuple(comments)


def _parse_plain(block: _Block, fields: Sequence[Field], comment: str, comments: list[str]) -> FloatArray | None:
    """Parse a block of plain numbers with compiled code and append the comments at its beginning to ``comments``.

    Return None if the block contains anything else, or if the file is too small to be worth loading the compiler.
    """
    if block.first_line == 1 and len(block.data) < _WORTH_COMPILED_BYTES:
        return None
    from gridweave.scenarios.traces.kernels.numbers import NOT_PLAIN, read_plain

    head = re.match(rb"(?:%b[^\n]*\n)*" % re.escape(comment.encode()), block.data)
    start = head.end() if head else 0
    text = np.frombuffer(block.data, np.uint8, offset=start)
    table = np.empty((block.data.count(b"\n", start) + 1, len(fields)))
    n_rows = int(read_plain(text, table))
    if n_rows == NOT_PLAIN or not _is_valid(table[:n_rows], fields):
        return None
    comments += [line.strip(" \t\r") for line in block.data[:start].decode("latin-1").split("\n") if line]
    return table[:n_rows]


def _parse_lines(
    path: str | Path, block: _Block, fields: Sequence[Field], comment: str, record: str, comments: list[str]
) -> FloatArray:
    """Parse a block line by line and append its comments to ``comments``."""
    jobs: list[str] = []
    found_comments: list[str] = []
    for line in block.lines:
        text = line.strip(" \t\r")
        if text:
            (found_comments if text.startswith(comment) else jobs).append(text)
    comments += found_comments
    if not jobs:
        return np.empty((0, len(fields)))
    odd = block.odd and any(_ODD_CHARACTER.search(text) for text in jobs)
    table = None if odd else _parse(jobs, fields)
    return _parse_slowly(path, block, fields, comment, record) if table is None else table


@dataclass(frozen=True, slots=True)
class _Block:
    first_line: int
    data: bytes

    @property
    def lines(self) -> list[str]:
        return self.data.decode("latin-1").split("\n")

    @property
    def odd(self) -> bool:
        """Whether the block contains a byte that is not printable ASCII."""
        return bool(self.data.translate(None, _PLAIN_BYTES))


def _blocks(path: str | Path) -> Iterator[_Block]:
    """Yield the lines of a file in blocks of a few megabytes."""
    first_line, rest = 1, b""
    with open_trace(path) as stream:
        while data := stream.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            lines = whole.count(b"\n") + len(newline)
            if len(rest) > _MAX_LINE_BYTES:
                problem = f"is longer than {_MAX_LINE_BYTES} bytes; a trace is text with one record per line"
                raise TraceError(path, problem, line=first_line + lines)
            if newline:
                yield _Block(first_line, whole)
            first_line += lines
    if rest:
        yield _Block(first_line, rest)


def _parse(jobs: list[str], fields: Sequence[Field]) -> FloatArray | None:
    """Parse records with numpy; None if any record is invalid."""
    try:
        table = np.loadtxt(jobs, np.float64, comments=None, ndmin=2)
    except ValueError:
        return None
    return table if table.shape == (len(jobs), len(fields)) and _is_valid(table, fields) else None


def _is_valid(table: FloatArray, fields: Sequence[Field]) -> bool:
    """Whether every number in a table is in its field's range, and is whole if the field requires whole numbers."""
    low = np.array([field.low for field in fields], np.float64)
    high = np.array([field.high for field in fields], np.float64)
    if not ((table >= low) & (table <= high)).all():  # false for NaN, too
        return False
    whole = table[:, [field.whole for field in fields]]
    return bool((whole == np.floor(whole)).all())


def _parse_slowly(path: str | Path, block: _Block, fields: Sequence[Field], comment: str, record: str) -> FloatArray:
    """Parse records one by one, which is slow but reports the line and field of an error."""
    table = []
    for number, line in enumerate(block.lines, block.first_line):
        text = line.strip(" \t\r")
        if not text or text.startswith(comment):
            continue
        odd = _ODD_CHARACTER.search(text)
        if odd:
            raise TraceError(path, f"byte 0x{ord(odd[0]):02x} in a record; records are plain text", line=number)
        values = text.split()
        if len(values) != len(fields):
            raise TraceError(path, f"has {_count(len(values), 'field')}; {record} has {len(fields)}", line=number)
        table.append([_value(path, number, field, value) for field, value in zip(fields, values, strict=True)])
    return np.array(table, np.float64)


def _value(path: str | Path, line: int, field: Field, text: str) -> float:
    """Parse one field of a record; raise TraceError if it is invalid."""

    def wrong(problem: str) -> TraceError:
        return TraceError(path, f"{short(text)} {problem}", line=line, field=field.name)

    value = float(text) if NUMBER.fullmatch(text) else math.nan
    if math.isnan(value):
        raise wrong("is not a number; only decimal numbers are allowed here, and -1 for unknown")
    if not field.low <= value <= field.high:
        raise wrong(f"is not within {field.low} to {field.high}")
    if field.whole and value != math.floor(value):
        raise wrong("is not a whole number")
    return value


def short(text: str) -> str:
    """Shorten text from a file for an error message."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def _joined(parts: list[FloatArray]) -> FloatArray:
    """Concatenate the parts of a column, and free the parts."""
    column = np.concatenate(parts) if parts else np.zeros(0, np.float64)
    parts.clear()
    return column


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def leading_number(text: str) -> int | None:
    """Return the whole number at the beginning of a text, or None."""
    match = re.match(r"\s*([+-]?\d{1,18})(?!\d)", text)
    return int(match[1]) if match else None


def one_line(error: BaseException) -> str:
    """Format an error from the operating system or a library as a single line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def seconds_text(ms: int) -> str:
    """Format milliseconds as seconds, with as few decimals as needed.

    Examples
    --------
    >>> seconds_text(1500), seconds_text(60_000)
    ('1.5', '60')
    """
    whole, rest = divmod(ms, MS_PER_S)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def check_exact(path: str | Path, name: str, values: npt.NDArray[np.generic]) -> None:
    """Raise InputError if a number's magnitude exceeds `MAX_WHOLE`; larger numbers do not survive a round trip."""
    numbers = values.astype(np.int64, copy=False)
    beyond = (numbers > MAX_WHOLE) | (numbers < -MAX_WHOLE)
    if beyond.any():
        value = numbers[int(np.argmax(beyond))]
        raise InputError(f"{path}: cannot be written: {name} {value} is beyond {MAX_WHOLE}, the largest kept exactly")


def write_file(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically, replacing an existing one; the suffixes ``.gz`` and ``.xz`` compress it.

    Calls ``write`` with a binary stream that accepts the uncompressed content.
    """
    with new_file(path) as (_, raw), _compressor(raw, Path(path).suffix.lower()) as stream:
        write(stream)


def write_records(
    path: str | Path, head: str, columns: Sequence[npt.NDArray[np.generic]], line: Callable[..., str]
) -> None:
    """Write a trace: the comments in ``head``, then one line per job, formatted from its column values."""

    def write(stream: IO[bytes]) -> None:
        stream.write(head.encode("ascii", "backslashreplace"))
        for start in range(0, len(columns[0]), _ROWS_AT_ONCE):
            rows = zip(*(column[start : start + _ROWS_AT_ONCE].tolist() for column in columns), strict=True)
            stream.write("".join(line(*row) for row in rows).encode("ascii"))

    write_file(path, write)


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open a temporary file next to the target, and rename it to the target if the ``with`` block succeeds.

    Yields the temporary path and the open file. If the block fails, the temporary file is removed.
    """
    target = Path(os.path.realpath(path))  # replace the target of a symbolic link, not the link
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
    """Yield a stream that compresses to `raw` according to the suffix, without a time stamp, to be reproducible."""
    if suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif suffix == ".xz":
        with lzma.open(raw, "wb") as stream:
            yield stream
    else:
        yield raw
