"""The runner: start, watch, cancel and re-adopt the node tasks of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.job import SignalName
from gridweave.site.launch import (
    KEEP_OUTPUT,
    Launch,
    Outcome,
    OutputLimits,
    PieceEnded,
    PieceEvent,
    PieceReady,
    PieceStarted,
    PieceState,
    Removal,
    Used,
)
from gridweave.site.machine.folders import (
    CANCEL_NOW,
    CANCEL_SAVE,
    FULL,
    GATE,
    HEARD,
    JOBS,
    LAUNCH,
    NOTICES,
    SIGNAL,
    STATE,
    Key,
    Pace,
    check_way,
    close_folder,
    leave,
    one_line,
    piece_folder,
    piece_key,
    read_cancel,
    read_launch,
    read_state,
    room_problem,
    write_cancel,
    write_pace,
    write_state,
    write_whole,
)
from gridweave.site.machine.forks import Forks
from gridweave.site.machine.kept import KeptPiece, KeptPieces
from gridweave.site.machine.pieces import (
    SILENT_S,
    JobSpan,
    KnownPiece,
    end_group,
    end_strays,
    packed_ends,
    piece_bytes,
    remove_left,
    remove_piece,
    unstarted,
)
from gridweave.site.machine.processes import boot_id, open_process

logger = logging.getLogger("gridweave.live")

LOCK = "runner.lock"

SWEEP_S = 600.0
"""Interval of checks for output that is too old [s]."""

_LOOK_OVERDUE_S = 30.0

_GONE = ".gone-"
_REMEMBERED = 1 << 16
_LOOK_AGAIN_S = 0.02


class Runner:
    """Runs node tasks on this machine; they survive the runner.

    Parameters
    ----------
    root : pathlib.Path
        A folder on a local disk, used by this runner only. The next runner with this folder finds its tasks again.
    environment : mapping from str to str, optional
        The environment of all jobs; by default that of this process.
    others : bool
        Whether a launcher starts jobs as other users, who must be able to reach their folders.
    shared : bool
        Whether the group of the folder may read its contents.
    output : OutputLimits
        How long to keep the folders of ended tasks.

    Raises
    ------
    UnavailableError
        From `open`, if another runner uses this folder.
    InputError
        From `open`, if the folder cannot be created or written.

    Notes
    -----
    All calls may be repeated. Calls and events belong to one event loop. A task is started at most once, whatever
    crashes in between. Its end is reported at least once, and again by every runner that adopts it, until it is
    released or forgotten.

    Examples
    --------
    >>> import tempfile
    >>> from gridweave.site.launch import Launch, Rank
    >>> async def example(folder):
    ...     async with Runner(Path(folder)) as runner:
    ...         await runner.start(Launch(job_id=7, attempt=0, ranks=(Rank(0), Rank(1)), argv=("true",)))
    ...         async for event in runner.events():
    ...             if isinstance(event, PieceEnded):
    ...                 await runner.forget(event.job_id, event.attempt)
    ...                 return event.outcome
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(asyncio.run(example(folder)))
    finished
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str] | None = None,
        *,
        others: bool = False,
        shared: bool = False,
        output: OutputLimits = KEEP_OUTPUT,
    ) -> None:
        self.root = root.absolute()
        self._output = output
        self._kept: KeptPieces | None = None
        self._released: asyncio.Queue[Key] = asyncio.Queue()
        self._others, self._shared = others, shared
        self._forks = Forks(self.root, os.environ if environment is None else environment, self._on_shim)
        self._pieces: dict[Key, KnownPiece] = {}
        self._forgotten: dict[Key, None] = {}
        # Ended tasks that overlapped with one that is still running.
        self._over: list[JobSpan] = []
        self._events: asyncio.Queue[PieceEvent] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = -1
        self._notices = -1
        self._unread = b""

    async def __aenter__(self) -> Runner:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Lock the folder, listen for notices, and start a fork server."""
        try:
            self._make_folders()
            self._lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.root / NOTICES, 0o600)
            # Also open for writing, so that the pipe does not end when the last shim closes it.
            self._notices = os.open(self.root / NOTICES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            asyncio.get_running_loop().add_reader(self._notices, self._on_notice)
            self._kept = KeptPieces(self.root, self._output)
            self._background(self._keep_released())
            self._forks.open()
        except BlockingIOError as error:
            await self.close()
            raise UnavailableError(f"{self.root}: another runner uses this folder; give each runner its own") from error
        except OSError as error:
            await self.close()
            why = os.strerror(error.errno or 0)
            raise InputError(
                f"{self.root}: {why}; it must be a folder on a local disk that you can write to"
            ) from error

    def _make_folders(self) -> None:
        (self.root / JOBS).mkdir(parents=True, exist_ok=True)
        # Other users can pass through to their own folders, but cannot list these.
        for folder in (self.root, self.root / JOBS):
            close_folder(folder, passes=self._others, shared=self._shared)
        if self._others:
            check_way(self.root)

    async def close(self) -> None:
        """Stop watching; running tasks continue, and the next runner adopts them."""
        loop = asyncio.get_running_loop()
        await self._forks.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for piece in self._pieces.values():
            self._unwatch(piece)
        if self._kept is not None:
            self._kept.close()
        if self._notices >= 0:
            loop.remove_reader(self._notices)
            os.close(self._notices)
            self._notices = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def start(self, launch: Launch) -> None:
        """Start a node task, unless its job and attempt are known; events report its progress.

        Raises
        ------
        UnavailableError
            If the disk is full. The task is then unknown, and may be started later.
        """
        key = (launch.job_id, launch.attempt)
        folder = piece_folder(self.root, key)
        if key in self._pieces or key in self._forgotten:
            return
        if self.removal(*key) is not None:
            self._tell_removed(key)
            return
        if (folder / LAUNCH).exists() or (folder / STATE).exists():
            await self._find(key, folder)
            return
        problem = self.room_problem()
        if problem is not None:
            raise UnavailableError(problem)
        piece = self._pieces[key] = KnownPiece(key, folder)
        piece.alone_ms, piece.grace_ms, piece.since_s = launch.alone_ms, launch.grace_ms, time.time()
        try:
            folder.mkdir(exist_ok=True)
            close_folder(folder, passes=bool(launch.launcher), shared=self._shared)
            write_whole(folder / LAUNCH, msgspec.msgpack.encode(launch))
        except (ValueError, TypeError, OverflowError) as error:
            right = "texts must be Unicode, and the arguments of a callable what JSON can say"
            self._conclude(piece, "failed", f"the job cannot be written down ({error}); {right}")
            return
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno in FULL:
                del self._pieces[key]
                shutil.rmtree(folder, ignore_errors=True)
                raise UnavailableError(f"its folder cannot be written: {why}") from error
            self._conclude(piece, "failed", f"{folder} cannot be written: {why}")
            return
        self._forks.ask(folder)

    def room_problem(self, *, trial: bool = False) -> str | None:
        """Return why the disk has no room for another task, or None; ``trial`` writes a file, to detect a quota."""
        return room_problem(self.root, trial=trial)

    async def open_gate(self, job_id: int, attempt: int) -> None:
        """Open the gate of a task whose ranks wait there; ignore other tasks."""
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended or not piece.told_ready or piece.shim is None:
            return  # the caller repeats the order
        with contextlib.suppress(OSError):
            leave(piece.folder, GATE)
            signal.pidfd_send_signal(piece.shim, signal.SIGUSR1)

    def heard(self, job_id: int, attempt: int) -> None:
        """Confirm to a task that its start was noticed, and take over ending it; without this it would end itself."""
        piece = self._pieces.get((job_id, attempt))
        if piece is not None and piece.alone_ms is not None:
            with contextlib.suppress(OSError):
                leave(piece.folder, HEARD)

    def is_at_gate(self, job_id: int, attempt: int) -> bool:
        """Whether the ranks of a task are waiting at their gate."""
        state = self.state(job_id, attempt)
        return state is not None and state.at_gate

    async def cancel(
        self, job_id: int, attempt: int, reason: str, *, at_once: bool = False, saves: bool = False
    ) -> None:
        """End a task, or prevent the start of one that has not arrived yet; the first reason given is kept.

        The ranks have the job's grace period to end, unless ``at_once`` is set. With ``saves`` they get the job's
        checkpoint signal instead of TERM.
        """
        key = (job_id, attempt)
        folder = piece_folder(self.root, key)
        if key in self._forgotten or self.removal(*key) is not None:
            return
        if key not in self._pieces and folder.exists():
            await self._find(key, folder)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = KnownPiece(key, folder)
            with contextlib.suppress(OSError):
                folder.mkdir()
                close_folder(folder, shared=self._shared)
            self._conclude(piece, "cancelled", one_line(reason))
        if piece.ended:
            return
        piece.cancelled = True
        with contextlib.suppress(OSError):  # on a full disk the signal ends the task without the reason
            if at_once:
                leave(folder, CANCEL_NOW)
            if saves:
                leave(folder, CANCEL_SAVE)
            write_cancel(folder, reason)
        piece.wake(signal.SIGTERM)
        self._expect_end(piece)

    async def pace(self, job_id: int, attempt: int, *, runs: bool, at_unix_ms: int = 0, speed: float = 1.0) -> None:
        """Pause or resume all processes of a task together at a given time, and set its speed.

        Parameters
        ----------
        runs : bool
            Whether the task should run. A task that has not started yet is paused as soon as it has.
        at_unix_ms : int
            The time (Unix time); a past time means now. The last request counts, and it survives this runner.
        speed : float
            Fraction of full speed while the task runs, above 0 and up to 1. The task's limit counts this work. A task
            on fractions of nodes gets this fraction of its processors; for other tasks the slowdown comes from the
            jobs that share their nodes.
        """
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended:
            return
        with contextlib.suppress(OSError):  # on a full disk the caller repeats the order
            write_pace(piece.folder, Pace(runs, at_unix_ms, speed))
        piece.wake()
        piece.paced_at_s = max(time.time(), at_unix_ms / 1000)
        self._expect_end(piece)

    def signal(self, job_id: int, attempt: int, name: SignalName) -> None:
        """Send a signal to all processes of a task, if it runs."""
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended:
            return
        with contextlib.suppress(OSError):
            write_whole(piece.folder / SIGNAL, name.encode())
            piece.wake()  # a shim that does not exist yet checks when it starts

    async def adopt(self) -> tuple[Key, ...]:
        """Adopt the tasks that earlier runners of this folder have started; return those that are alive.

        Events report their starts, and the ends of dead tasks, as if they had just happened. A shim is identified by
        its pid, its start time and the machine's boot id, so a reused pid is never mistaken for it. A dead task that
        has not recorded its end is ``lost``, after its remaining processes have been killed. Released tasks are
        skipped.
        """
        for gone in sorted((self.root / JOBS).glob(f"{_GONE}*")):
            await asyncio.to_thread(remove_piece, gone)
        released = self._register.registered()
        for folder in sorted((self.root / JOBS).iterdir()):
            key = piece_key(folder)
            if key is not None and self.removal(*key) is not None:
                await self._clear(key)
            elif key is not None and key not in self._pieces and key not in released:
                await self._find(key, folder)
            await asyncio.sleep(0)  # let other coroutines run between folders
        return tuple(sorted(key for key, piece in self._pieces.items() if not piece.ended))

    async def forget(self, job_id: int, attempt: int) -> None:
        """Remove all records and the output of a task after its end was recorded."""
        key = (job_id, attempt)
        folder = piece_folder(self.root, key)
        if key not in self._pieces and folder.exists():
            await self._find(key, folder)
        piece = self._pieces.get(key)
        if piece is None:
            return
        if not piece.ended:
            raise UnavailableError(f"piece {job_id}.{attempt} has not ended; cancel it and wait for its end")
        await self._clear(key)

    async def _clear(self, key: Key) -> None:
        """Remove the folder of an ended task."""
        self._pieces.pop(key, None)
        self._forgotten[key] = None
        if len(self._forgotten) > _REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
        folder = piece_folder(self.root, key)
        # The rename is atomic; the removal may be interrupted.
        gone = folder.with_name(f"{_GONE}{folder.name}-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
            await asyncio.to_thread(remove_piece, gone)

    def release(self, job_id: int, attempt: int) -> None:
        """Stop reporting the end of a task, which the site has recorded; keep its folder while the limits allow.

        A task that has not ended is ignored.
        """
        piece = self._pieces.get((job_id, attempt))
        if piece is not None and piece.ended:
            self._released.put_nowait(piece.key)

    def removal(self, job_id: int, attempt: int) -> Removal | None:
        """Return when and why the folder of a released task was removed, or None."""
        return self._register.removal((job_id, attempt))

    async def report_again(self, job_id: int, attempt: int) -> None:
        """Report the end of a released task again, to a site that has lost it."""
        key = (job_id, attempt)
        folder = piece_folder(self.root, key)
        if self.removal(*key) is not None:
            self._tell_removed(key)
        elif key not in self._pieces and folder.exists():
            await self._find(key, folder)

    @property
    def _register(self) -> KeptPieces:
        assert self._kept is not None, "the runner is open"
        return self._kept

    async def _keep_released(self) -> None:
        """Register released tasks and remove those that exceed the limits, until the runner is closed."""
        keys: set[Key] = set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    keys.add(await self._released.get())
            while not self._released.empty():
                keys.add(self._released.get_nowait())
            try:
                excess = await asyncio.to_thread(self._register_pieces, sorted(keys))
            except OSError as error:
                logger.warning("%s: %s; it is tried again", self.root, error)
                continue
            for key in keys:
                self._pieces.pop(key, None)
            keys.clear()
            for key in excess:
                await self._clear(key)

    def _register_pieces(self, keys: Sequence[Key]) -> list[Key]:
        """Register ended tasks; return those to remove."""
        now_ms, pieces = int(time.time() * 1000), []
        for key in keys:
            folder = piece_folder(self.root, key)
            state, launch = read_state(folder), read_launch(folder)
            user = "" if launch is None else launch.user
            ended_ms = now_ms if state is None or state.ended_ms is None else state.ended_ms
            pieces.append(KeptPiece(key, user, ended_ms, piece_bytes(folder)))
        return self._register.register(pieces, now_ms)

    def knows(self, job_id: int, attempt: int) -> bool:
        """Whether a task is or was here, unless its folder was lost."""
        key = (job_id, attempt)
        if key in self._pieces or key in self._forgotten:
            return True
        return piece_folder(self.root, key).exists() or self.removal(*key) is not None

    def known(self) -> tuple[Key, ...]:
        """Return the keys of all tasks that run, or whose end has not been released or forgotten."""
        return tuple(sorted(self._pieces))

    async def events(self) -> AsyncIterator[PieceEvent]:
        """Yield events, forever."""
        while True:
            yield await self._events.get()

    def state(self, job_id: int, attempt: int) -> PieceState | None:
        """Return the recorded state of a task, with its usage updated every few seconds; None if there is none yet."""
        return read_state(piece_folder(self.root, (job_id, attempt)))

    # -- notices from shims and the fork server -----------------------------------------------------------------------

    def _on_shim(self, folder: Path, handle: int | None, reason: str) -> None:
        """Watch a new shim, or settle a task whose shim could not be started."""
        key = piece_key(folder)
        piece = self._pieces.get(key) if key is not None else None
        if piece is None:
            if handle is not None:
                os.close(handle)
        elif handle is None:
            self._later(piece, failed=reason)
        else:
            self._watch(piece, handle)

    def _on_notice(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unread += os.read(self._notices, 1 << 16)
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            name, _, started = line.decode(errors="replace").partition(" ")
            key = piece_key(Path(name))
            if key in self._pieces and started.isdecimal():
                self._tell_started(self._pieces[key], int(started))
            elif key in self._pieces and started == "ready":
                self._tell_ready(self._pieces[key])

    def _watch(self, piece: KnownPiece, handle: int) -> None:
        piece.shim = handle
        asyncio.get_running_loop().add_reader(handle, self._on_exit, piece)
        if piece.cancelled:
            piece.wake(signal.SIGTERM)
        # Requests may have arrived before the shim existed.
        piece.wake()
        self._expect_end(piece)

    def _unwatch(self, piece: KnownPiece) -> None:
        if piece.shim is not None:
            asyncio.get_running_loop().remove_reader(piece.shim)
            os.close(piece.shim)
            piece.shim = None
        if piece.look is not None:
            piece.look.cancel()

    def _on_exit(self, piece: KnownPiece) -> None:
        self._unwatch(piece)
        self._later(piece)

    def _later(self, piece: KnownPiece, failed: str = "") -> None:
        self._background(self._settle(piece, failed))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the state of a task ------------------------------------------------------------------------------------------

    async def _find(self, key: Key, folder: Path) -> None:
        """Adopt a task from its folder."""
        piece = self._pieces[key] = KnownPiece(key, folder)
        piece.cancelled = read_cancel(folder) is not None
        launch = read_launch(folder)
        if launch is not None:
            piece.alone_ms, piece.grace_ms = launch.alone_ms, launch.grace_ms
        await self._settle(piece)

    async def _settle(self, piece: KnownPiece, failed: str = "") -> None:
        """Watch a task whose shim is alive; conclude one whose shim is dead."""
        while True:
            state = read_state(piece.folder)
            if state is not None:
                break
            if self._conclude_unstarted(piece, failed):
                return
            # A shim holds the lock and has not written its first state yet.
            await asyncio.sleep(_LOOK_AGAIN_S)
        if state.phase == "ended":
            self._tell_ended(piece, state)
            return
        here = state.boot_id == boot_id()
        handle = open_process(state.shim_pid, state.shim_start_ticks) if here else None
        if handle is not None:
            if state.at_gate:
                self._tell_ready(piece)
            elif state.phase != "waiting" and state.started_ms is not None:
                self._tell_started(piece, state.started_ms)
            self._watch(piece, handle)
            return
        last = read_state(piece.folder)
        if last is not None and last.phase == "ended":  # the shim ended after the first check
            self._tell_ended(piece, last)
            return
        if here:
            await asyncio.to_thread(end_group, piece.folder)  # first, because signals do not end frozen processes
            await end_strays(state)
        why = "its supervising process was killed" if here else "the machine was restarted while it ran"
        reason = read_cancel(piece.folder)
        # A task with a requested end is not lost, because lost tasks run again.
        end: tuple[Outcome, str] = ("lost", why) if reason is None else ("cancelled", f"{reason}; {why}")
        self._conclude(piece, *(piece.forced or end), state)

    # -- overdue tasks ------------------------------------------------------------------------------------------------

    def _expect_end(self, piece: KnownPiece) -> None:
        """Schedule a check that the task has ended when KILL is due, which each change of pace may move."""
        now_s, due_ms = time.time(), piece.due_ms()
        instants_s = [] if due_ms is None else [due_ms / 1000]
        if piece.paced_at_s + SILENT_S > now_s:
            instants_s.append(piece.paced_at_s + SILENT_S)
        if instants_s and not piece.ended:
            self._look_later(piece, min(instants_s) - now_s)

    def _look_later(self, piece: KnownPiece, pause_s: float) -> None:
        """Check a task after a pause; this replaces an earlier timer."""
        if piece.look is not None:
            piece.look.cancel()
        loop = asyncio.get_running_loop()
        piece.look = loop.call_later(max(0.0, pause_s), lambda: self._background(self._look_overdue(piece)))

    async def _look_overdue(self, piece: KnownPiece) -> None:
        """Kill a task that should have ended, if its supervisor is silent."""
        due_ms = piece.due_ms()
        if piece.ended or piece.shim is None:
            return
        if due_ms is None or time.time() * 1000 < due_ms:
            self._expect_end(piece)
        elif await piece.is_silent():
            logger.warning("the supervisor of %s is silent; it is killed", piece.folder)
            piece.end_by_force()
        elif not piece.ended:
            # The supervisor works: the deadline may have moved, or the kernel is still ending its processes.
            self._look_later(piece, _LOOK_OVERDUE_S)

    def _conclude_unstarted(self, piece: KnownPiece, failed: str) -> bool:
        """Conclude a task without a state, unless a shim holds its lock."""
        with unstarted(piece.folder, failed) as end:
            if end is not None:
                self._conclude(piece, *end)
        return end is not None

    def _conclude(self, piece: KnownPiece, outcome: Outcome, reason: str, last: PieceState | None = None) -> None:
        """Write and report the end of a task that has no shim to do it."""
        if last is None:
            last = PieceState(job_id=piece.key[0], attempt=piece.key[1], phase="ended", boot_id=boot_id())
        state = msgspec.structs.replace(
            last, phase="ended", outcome=outcome, reason=reason, ended_ms=int(time.time() * 1000)
        )
        with contextlib.suppress(OSError):  # on a full disk the next runner reaches the same conclusion
            write_state(piece.folder, state)
        self._tell_ended(piece, state)

    def _tell_ready(self, piece: KnownPiece) -> None:
        if not (piece.told_ready or piece.told_started or piece.ended):
            piece.told_ready = True
            self._events.put_nowait(PieceReady(*piece.key))

    def _tell_started(self, piece: KnownPiece, started_ms: int) -> None:
        if not piece.told_started and not piece.ended:
            piece.told_started = True
            self._events.put_nowait(PieceStarted(*piece.key, started_ms, piece.alone_ms))
            self._expect_end(piece)

    def _clean_ipc(self, state: PieceState) -> None:
        """Remove IPC objects that ended tasks have left behind, and that no running task can have created."""
        if state.started_ms is not None and not state.has_own_ipc:
            self._over.append(JobSpan(state.started_ms / 1000, (state.ended_ms or 0) / 1000))
        if not self._over:
            return
        running = [JobSpan(piece.since_s, None) for piece in self._pieces.values() if not piece.ended]
        self._background(asyncio.to_thread(remove_left, [*self._over, *running]))
        first_s = min((job.start_s for job in running), default=math.inf)
        self._over = [job for job in self._over if job.end_s is not None and job.end_s >= first_s]

    def _tell_removed(self, key: Key) -> None:
        """Report a task whose record was removed; all that is known is that it ran here."""
        removal = self.removal(*key)
        assert removal is not None, "it was removed"
        reason = "it ended here before, and its record was removed with its output"
        self._events.put_nowait(PieceEnded(*key, "lost", reason, (), Used(), None, removal.at_ms))

    def _tell_ended(self, piece: KnownPiece, state: PieceState) -> None:
        """Report the end of a task once, after its start."""
        if piece.ended:
            return
        if state.started_ms is not None:
            self._tell_started(piece, state.started_ms)
        piece.ended = True
        if piece.look is not None:
            piece.look.cancel()
        self._clean_ipc(state)
        elements, interrupted = packed_ends(piece.folder)
        self._events.put_nowait(
            PieceEnded(
                *piece.key,
                outcome=state.outcome or "lost",
                reason=state.reason,
                ranks=state.ranks,
                usage=state.usage,
                started_ms=state.started_ms,
                ended_ms=state.ended_ms or 0,
                elements=elements,
                interrupted=interrupted,
            )
        )
