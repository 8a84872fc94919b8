"""What goes on while a long computation runs: a progress bar that appears only when there is something to wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 1.0

Report = Callable[[int, int, str], None]
"""How much is done, how much there is, and what is going on."""


@contextmanager
def delayed_progress(description: str) -> Iterator[Report]:
    """Show a bar on stderr, on terminals alone, once the block has taken longer than a second.

    Parameters
    ----------
    description : str
        What is going on, until the first report says more.

    Yields
    ------
    Report
        To be called now and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # rich takes FORCE_COLOR for a terminal, which is right for colours and wrong for what moves.
        disable=not (console.is_terminal and console.file.isatty()),
    )
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
    """Return what a function returns, and hear Ctrl-C at once while it runs.

    Compiled code hears no signal before it returns, which may be minutes later. So it runs in a thread of its own,
    which an interrupt leaves behind: the process is then to end.

    Parameters
    ----------
    work : callable
        Takes no argument. What it raises is raised here.
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
