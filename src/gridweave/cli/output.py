"""Output of all commands: results go to standard output, messages and progress bars to standard error."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from gridweave.cli.terminal import visible
from gridweave.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.progress import Progress


def say(text: str) -> None:
    """Print a message on standard error, so that a pipe gets only the result."""
    typer.echo(visible(text), err=True)


def print_json(value: object) -> None:
    """Print JSON on standard output; raise ValueError for NaN and infinity."""
    typer.echo(visible(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def print_table(
    rows: Iterable[Sequence[str]],
    *,
    headings: Sequence[str] | None = None,
    title: str | None = None,
    left: int = 1,
    right: Sequence[int] | None = None,
    wrap: bool = False,
) -> None:
    """Print a table on standard output.

    The first ``left`` columns are aligned to the left, the others to the right, unless ``right`` lists the columns
    that are aligned to the right. With ``wrap``, the last column is wrapped to the width of the terminal. Cells are
    never cut off, neither in a file nor in a narrow window.

    The table looks like rich's ``SIMPLE_HEAD``, and a test compares the two. rich itself would add 30 ms to each
    command for its import, and 0.55 ms for each row: 0.65 s instead of 0.1 s for a list of 1,000 jobs.
    """
    whole = ([list(headings)] if headings is not None else []) + list(rows)
    lines = [[visible(cell).split("\n") for cell in row] for row in whole]
    widths = [max(_width(line) for cell in column for line in cell) for column in zip_longest(*lines, fillvalue=[""])]
    if wrap and widths and sys.stdout.isatty():
        available_width = shutil.get_terminal_size().columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1) - 2
        widths[-1] = min(widths[-1], max(available_width, _LEAST_WRAPPED))
    at_right = [place >= left if right is None else place in right for place in range(len(widths))]
    if title:
        typer.secho(visible(title), bold=True)
    inner = sum(widths) + len(_GAP) * max(len(widths) - 1, 0)
    typer.echo(" " * (inner + 2))
    for number, row in enumerate(lines):
        is_heading = headings is not None and number == 0
        for line in _laid_out(row, widths, at_right):
            typer.echo(typer.style(line, bold=True) if is_heading else line)
        if is_heading:
            typer.echo(f" {'─' * inner} ")
    typer.echo(" " * (inner + 2))


_GAP = "   "
_LEAST_WRAPPED = 20
"""Space between two columns, and the least width of a wrapped column."""


def _laid_out(row: list[list[str]], widths: Sequence[int], at_right: Sequence[bool]) -> Iterator[str]:
    """Yield the lines of a table row; there are as many as in its highest cell."""
    cells = row + [[""]] * (len(widths) - len(row))
    if cells and any(_width(line) > widths[-1] for line in cells[-1]):
        cells[-1] = [part for line in cells[-1] for part in textwrap.wrap(line, widths[-1])]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = [
            (" " * (width - _width(part)) + part) if is_number else part + " " * (width - _width(part))
            for part, width, is_number in zip(parts, widths, at_right, strict=True)
        ]
        yield f" {_GAP.join(padded)} "


def _width(text: str) -> int:
    """Return the width of a text in terminal columns; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def check_folder(out: str) -> Path:
    """Raise OptionError before the work begins if the folder of ``--out`` cannot be written to."""
    import os

    if not out.strip():
        raise OptionError("--out", f"{out!r} is not the name of a folder")
    folder = Path(out).absolute()
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()
    except (OSError, ValueError):
        raise OptionError("--out", f"{out!r} cannot be the name of a folder") from None
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not nearest.is_dir():
        problem = f"{out} is a file" if nearest == folder else f"{out} is below {nearest}, which is a file"
        raise OptionError("--out", f"{problem}; name a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OptionError("--out", f"{out} cannot be written to")
    return folder


def picture_kind(option: str, out: str) -> str:
    """Return the image format of a file's suffix, such as ``png``; raise OptionError if matplotlib cannot write it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kind = Path(out).suffix.lower().removeprefix(".")
    if kind not in FigureCanvasAgg.get_supported_filetypes():
        raise OptionError(option, f"{out} is not the name of a picture; end it in .png, .svg or .pdf")
    return kind


def save_picture(figure: Figure, out: str, kind: str) -> None:
    """Write a figure to a file completely or not at all."""
    import io

    from gridweave.scenarios.traces.text import write_file

    picture = io.BytesIO()
    figure.savefig(picture, format=kind)
    write_file(out, lambda stream: stream.write(picture.getvalue()))


_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 1 << 20


def give_back_large_arrays() -> None:
    """Return the memory of freed arrays of 1 MB and more to the system at once; does nothing without glibc.

    By default glibc raises its threshold for mmap after each large free, up to 32 MB (mallopt(3),
    "M_MMAP_THRESHOLD"), and then allocates arrays of that size on the heap, which shrinks only at its end. The columns
    of a long trace are allocated and freed in turn, and gaps between them would take a third of the peak memory.
    """
    import ctypes

    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    except (OSError, AttributeError, TypeError):  # no such function, or no such library
        return


T = TypeVar("T")

PATIENCE_S = 1.0

Report = Callable[[int, int, str], None]
"""Called with the amount done, the total, and a description of the current step."""


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def delayed_progress(description: str) -> Iterator[Report]:
    """Show a progress bar on a terminal's stderr if the block takes longer than a second; yield its update function."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    bar = _bar()
    task = bar.add_task(description, total=1)
    timer = threading.Timer(PATIENCE_S, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def interruptible(work: Callable[[], T]) -> T:
    """Call a function in a thread, so that Ctrl-C interrupts the caller at once; return the function's result.

    Compiled code handles no signal until it returns, which may take minutes. After an interrupt the thread still runs,
    so the caller should end the process.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]
