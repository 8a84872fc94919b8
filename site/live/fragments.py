"""What the runner knows of one fragment, and what it does where the shim of one is missing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from gridweave.site.live.folders import STATE, Key, read_cancel, read_state
from gridweave.site.live.launch import FragmentState, Outcome
from gridweave.site.live.processes import open_process, strays


class Fragment:
    """What the runner knows of a fragment."""

    def __init__(self, key: Key, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.shim: int | None = None
        self.told_started = False
        self.cancelled = False
        self.ended = False


@contextlib.contextmanager
def unstarted(folder: Path, failed: str = "") -> Iterator[tuple[Outcome, str] | None]:
    """Hold a fragment that has no state, so that no shim starts it, while its end is written.

    Parameters
    ----------
    folder : pathlib.Path
    failed : str
        Why it could not be started, if that is known.

    Yields
    ------
    tuple of (outcome, reason) or None
        How it ended; ``None``: a shim has it in hand, or it has a state by now.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield "lost", "its folder was removed"
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield _unstarted_end(folder, failed)
    finally:
        os.close(lock)


def _unstarted_end(folder: Path, failed: str) -> tuple[Outcome, str] | None:
    """Say how a fragment ended that nobody has in hand, if it has not begun."""
    if (folder / STATE).exists():
        return None if read_state(folder) is not None else ("lost", "its state is damaged; it may have run")
    reason = read_cancel(folder)
    if reason is not None:
        return "cancelled", " ".join(reason.split()) or "cancelled"
    if failed:
        return "failed", failed
    return "lost", "its runner or its shim ended before the start; it never ran"


async def end_strays(state: FragmentState) -> None:
    """End what a killed shim has left, and wait until it is gone.

    Parameters
    ----------
    state : FragmentState
        The last that the shim wrote, since this start of the machine.
    """
    while found := strays(state.token, [(rank.pid, rank.start_ticks) for rank in state.ranks]):
        for stat in found:
            handle = open_process(stat.pid, stat.start_ticks)
            if handle is None:
                continue
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                await _readable(handle)
            except ProcessLookupError:
                pass
            except PermissionError:
                return  # a program that became somebody else (setuid); it cannot be ended from here
            finally:
                os.close(handle)


async def _readable(handle: int) -> None:
    """Wait until a descriptor is readable: of a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(handle, done.set_result, None)
    try:
        await done
    finally:
        loop.remove_reader(handle)
