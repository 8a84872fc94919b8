"""The runner: starts, watches, ends and finds again the pieces of jobs on one machine."""

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
"""How often the machine looks for output that has become too old."""

_LOOK_OVERDUE_S = 30.0

_GONE = ".gone-"
_REMEMBERED = 1 << 16
_LOOK_AGAIN_S = 0.02


class Runner:
    """Runs pieces of jobs on this machine; they outlive it.

    Parameters
    ----------
    root : pathlib.Path
        A folder of its own on a local disk. What it holds is found again by the next runner of this folder.
    environment : mapping from str to str, optional
        What every job gets; ``None``: the environment of this process.
    others : bool
        Whether a launcher starts jobs as other users, who must reach their folders in this one.
    shared : bool
        Whether the group of the folder reads what is in it.
    output : OutputLimits
        How long the folders of ended pieces are kept.

    Raises
    ------
    UnavailableError
        From `open`, if another runner has this folder.
    InputError
        From `open`, if the folder cannot be made or written.

    Notes
    -----
    Every call may be repeated. Calls and events belong to one event loop. A piece is started at most once, whatever
    dies in between; its end is reported at least once, and again by every runner that adopts it, until it is released
    or forgotten.

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
        # Pieces that are over and overlapped with one that is not.
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
        """Take the folder, listen, and start a fork server."""
        try:
            self._make_folders()
            self._lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.root / NOTICES, 0o600)
            # Open for writing as well, so that it has no end when the last shim has closed it.
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
        # Other users pass through to what is their own, and see nothing on the way.
        for folder in (self.root, self.root / JOBS):
            close_folder(folder, passes=self._others, shared=self._shared)
        if self._others:
            check_way(self.root)

    async def close(self) -> None:
        """Stop watching; what runs goes on, for the next runner to adopt."""
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
        """Start a piece, unless it is known already by its job and attempt; what comes of it is told by events.

        If the disk has no room for it (UnavailableError) it is as if nobody had asked: the same may be started later.
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
        """Return why there is no room for another piece, or ``None``; a trial writes something, to see a quota."""
        return room_problem(self.root, trial=trial)

    async def open_gate(self, job_id: int, attempt: int) -> None:
        """Let the ranks of a piece begin that wait at their gate; nothing happens to any other."""
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended or not piece.told_ready or piece.shim is None:
            return  # whoever orders it does so again
        with contextlib.suppress(OSError):
            leave(piece.folder, GATE)
            signal.pidfd_send_signal(piece.shim, signal.SIGUSR1)

    def heard(self, job_id: int, attempt: int) -> None:
        """See to it from now on that a piece is not alone; else it would end by itself, for that nobody does."""
        piece = self._pieces.get((job_id, attempt))
        if piece is not None and piece.alone_ms is not None:
            with contextlib.suppress(OSError):
                leave(piece.folder, HEARD)

    def is_at_gate(self, job_id: int, attempt: int) -> bool:
        """Return whether the ranks of a piece wait at their gate."""
        state = self.state(job_id, attempt)
        return state is not None and state.at_gate

    async def cancel(
        self, job_id: int, attempt: int, reason: str, *, at_once: bool = False, saves: bool = False
    ) -> None:
        """End a piece, or keep one from starting that has not come yet; the first reason that is given stays.

        Its ranks have the time to end by themselves that the job wishes, unless it is to be `at_once`. If it `saves`,
        they are sent the job's checkpoint signal in place of TERM.
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
        with contextlib.suppress(OSError):  # on a full disk the signal alone ends it, without the reason
            if at_once:
                leave(folder, CANCEL_NOW)
            if saves:
                leave(folder, CANCEL_SAVE)
            write_cancel(folder, reason)
        piece.wake(signal.SIGTERM)
        self._expect_end(piece)

    async def pace(self, job_id: int, attempt: int, *, runs: bool, at_unix_ms: int = 0, speed: float = 1.0) -> None:
        """Have a piece stand still, or go on, from an instant on: all its processes at once.

        Parameters
        ----------
        runs : bool
            Whether it is to go on. A piece that has not begun stands still as soon as it has.
        at_unix_ms : int
            The instant, Unix time; one that has passed is now. The last wish counts, and it outlives this runner.
        speed : float
            The part of its full speed at which it works while it runs; above 0 and up to 1. Its limit counts that work.
            A piece on parts of nodes gets that part of its processors; others keep theirs, as others slow it.
        """
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended:
            return
        with contextlib.suppress(OSError):  # a full disk: whoever orders it does so again
            write_pace(piece.folder, Pace(runs, at_unix_ms, speed))
        piece.wake()
        piece.paced_at_s = max(time.time(), at_unix_ms / 1000)
        self._expect_end(piece)

    def signal(self, job_id: int, attempt: int, name: SignalName) -> None:
        """Have all processes of a piece get a signal, if it runs."""
        piece = self._pieces.get((job_id, attempt))
        if piece is None or piece.ended:
            return
        with contextlib.suppress(OSError):
            write_whole(piece.folder / SIGNAL, name.encode())
            piece.wake()  # if there is no shim yet, it looks when it is known

    async def adopt(self) -> tuple[Key, ...]:
        """Find again what other runners of this folder have started; return what lives and is watched from now on.

        Their starts, and the ends of those that live no more, are told by events, as if they had just come to pass.
        A shim is known by its number, its start and the start of the machine, so a number that was given anew is never
        taken for it. A piece that lives no more and has not told its end is ``lost``; whatever is left of it is
        ended first. Released pieces stay as they are.
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
            await asyncio.sleep(0)  # others are not kept waiting by many folders
        return tuple(sorted(key for key, piece in self._pieces.items() if not piece.ended))

    async def forget(self, job_id: int, attempt: int) -> None:
        """Remove all that is kept of a piece whose end has been taken note of, its output as well."""
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
        """Remove the folder of an ended piece."""
        self._pieces.pop(key, None)
        self._forgotten[key] = None
        if len(self._forgotten) > _REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
        folder = piece_folder(self.root, key)
        # One step that cannot be seen half done; the rest may be interrupted.
        gone = folder.with_name(f"{_GONE}{folder.name}-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
            await asyncio.to_thread(remove_piece, gone)

    def release(self, job_id: int, attempt: int) -> None:
        """Stop reporting the end of a piece, as the site has recorded it; keep its folder as long as the limits allow.

        Nothing happens to a piece that has not ended.
        """
        piece = self._pieces.get((job_id, attempt))
        if piece is not None and piece.ended:
            self._released.put_nowait(piece.key)

    def removal(self, job_id: int, attempt: int) -> Removal | None:
        """Return when and why the folder of a released piece was removed, or None."""
        return self._register.removal((job_id, attempt))

    async def report_again(self, job_id: int, attempt: int) -> None:
        """Report the end of a released piece once more, to a site that has lost it."""
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
        """Register released pieces, and remove what exceeds the limits, until the runner is closed."""
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
        """Register ended pieces; return those to be removed."""
        now_ms, pieces = int(time.time() * 1000), []
        for key in keys:
            folder = piece_folder(self.root, key)
            state, launch = read_state(folder), read_launch(folder)
            user = "" if launch is None else launch.user
            ended_ms = now_ms if state is None or state.ended_ms is None else state.ended_ms
            pieces.append(KeptPiece(key, user, ended_ms, piece_bytes(folder)))
        return self._register.register(pieces, now_ms)

    def knows(self, job_id: int, attempt: int) -> bool:
        """Return whether a piece is or was here, as far as this machine has not lost its folder."""
        key = (job_id, attempt)
        if key in self._pieces or key in self._forgotten:
            return True
        return piece_folder(self.root, key).exists() or self.removal(*key) is not None

    def known(self) -> tuple[Key, ...]:
        """Return job and attempt of all pieces that it runs, or whose end it has not forgotten."""
        return tuple(sorted(self._pieces))

    async def events(self) -> AsyncIterator[PieceEvent]:
        """Yield what happens, without end."""
        while True:
            yield await self._events.get()

    def state(self, job_id: int, attempt: int) -> PieceState | None:
        """Return what is written of a piece, its usage anew every few seconds; ``None`` if nothing is (yet)."""
        return read_state(piece_folder(self.root, (job_id, attempt)))

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _on_shim(self, folder: Path, handle: int | None, reason: str) -> None:
        """Watch a new shim, or hear that there is none."""
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
        # A wish that came before there was a shim to tell.
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

    # -- how it stands with a piece --------------------------------------------------------------------------------

    async def _find(self, key: Key, folder: Path) -> None:
        """Take up a piece that is on the disk."""
        piece = self._pieces[key] = KnownPiece(key, folder)
        piece.cancelled = read_cancel(folder) is not None
        launch = read_launch(folder)
        if launch is not None:
            piece.alone_ms, piece.grace_ms = launch.alone_ms, launch.grace_ms
        await self._settle(piece)

    async def _settle(self, piece: KnownPiece, failed: str = "") -> None:
        """Watch a piece whose shim lives; conclude one whose shim does not."""
        while True:
            state = read_state(piece.folder)
            if state is not None:
                break
            if self._conclude_unstarted(piece, failed):
                return
            # Somebody holds the lock and has not written yet: a shim between its first steps.
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
        if last is not None and last.phase == "ended":  # it wrote that after the first look, and ended
            self._tell_ended(piece, last)
            return
        if here:
            await asyncio.to_thread(end_group, piece.folder)  # first: what is frozen does not end by a signal
            await end_strays(state)
        why = "its supervising process was killed" if here else "the machine was restarted while it ran"
        reason = read_cancel(piece.folder)
        # What somebody wanted to end is not lost: it would be run again.
        end: tuple[Outcome, str] = ("lost", why) if reason is None else ("cancelled", f"{reason}; {why}")
        self._conclude(piece, *(piece.forced or end), state)

    # -- what should have ended ---------------------------------------------------------------------------------------

    def _expect_end(self, piece: KnownPiece) -> None:
        """See to it that a piece ends when KILL is due, which is known anew after each change of pace."""
        now_s, due_ms = time.time(), piece.due_ms()
        instants_s = [] if due_ms is None else [due_ms / 1000]
        if piece.paced_at_s + SILENT_S > now_s:
            instants_s.append(piece.paced_at_s + SILENT_S)
        if instants_s and not piece.ended:
            self._look_later(piece, min(instants_s) - now_s)

    def _look_later(self, piece: KnownPiece, pause_s: float) -> None:
        """Look at a piece after a while, and not at another time."""
        if piece.look is not None:
            piece.look.cancel()
        loop = asyncio.get_running_loop()
        piece.look = loop.call_later(max(0.0, pause_s), lambda: self._background(self._look_overdue(piece)))

    async def _look_overdue(self, piece: KnownPiece) -> None:
        """End a piece by force that should have ended, if its supervisor does not do it."""
        due_ms = piece.due_ms()
        if piece.ended or piece.shim is None:
            return
        if due_ms is None or time.time() * 1000 < due_ms:
            self._expect_end(piece)
        elif await piece.is_silent():
            logger.warning("the supervisor of %s is silent; it is killed", piece.folder)
            piece.end_by_force()
        elif not piece.ended:
            # It works, and the time may be another one; or the kernel does not let its processes go yet.
            self._look_later(piece, _LOOK_OVERDUE_S)

    def _conclude_unstarted(self, piece: KnownPiece, failed: str) -> bool:
        """Conclude a piece without a state, unless a shim has it in hand."""
        with unstarted(piece.folder, failed) as end:
            if end is not None:
                self._conclude(piece, *end)
        return end is not None

    def _conclude(self, piece: KnownPiece, outcome: Outcome, reason: str, last: PieceState | None = None) -> None:
        """Write the end of a piece that has no shim to do it, and tell it."""
        if last is None:
            last = PieceState(job_id=piece.key[0], attempt=piece.key[1], phase="ended", boot_id=boot_id())
        state = msgspec.structs.replace(
            last, phase="ended", outcome=outcome, reason=reason, ended_ms=int(time.time() * 1000)
        )
        with contextlib.suppress(OSError):  # on a full disk the next runner comes to the same end
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
        """Remove the IPC objects that pieces which are over have left, and no piece that runs can have made."""
        if state.started_ms is not None and not state.has_own_ipc:
            self._over.append(JobSpan(state.started_ms / 1000, (state.ended_ms or 0) / 1000))
        if not self._over:
            return
        running = [JobSpan(piece.since_s, None) for piece in self._pieces.values() if not piece.ended]
        self._background(asyncio.to_thread(remove_left, [*self._over, *running]))
        first_s = min((job.start_s for job in running), default=math.inf)
        self._over = [job for job in self._over if job.end_s is not None and job.end_s >= first_s]

    def _tell_removed(self, key: Key) -> None:
        """Tell of a piece whose record was removed: that it ran here once is all that is known."""
        removal = self.removal(*key)
        assert removal is not None, "it was removed"
        reason = "it ended here before, and its record was removed with its output"
        self._events.put_nowait(PieceEnded(*key, "lost", reason, (), Used(), None, removal.at_ms))

    def _tell_ended(self, piece: KnownPiece, state: PieceState) -> None:
        """Tell of an end, once, and of the start before it."""
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
