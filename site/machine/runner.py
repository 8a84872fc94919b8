"""The runner: starts, watches, cancels and re-adopts a machine's node tasks."""

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
    NodeTaskEnded,
    NodeTaskEvent,
    NodeTaskReady,
    NodeTaskStarted,
    NodeTaskState,
    Outcome,
    OutputLimits,
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
    disk_problem,
    leave,
    one_line,
    read_cancel,
    read_launch,
    read_state,
    task_folder,
    task_key,
    write_cancel,
    write_pace,
    write_state,
    write_whole,
)
from gridweave.site.machine.forks import Forks
from gridweave.site.machine.kept import KeptNodeTask, KeptNodeTasks
from gridweave.site.machine.node_tasks import (
    SILENT_S,
    JobSpan,
    LocalTask,
    end_group,
    end_strays,
    packed_ends,
    remove_left,
    remove_task,
    task_bytes,
    unstarted,
)
from gridweave.site.machine.processes import boot_id, open_process

logger = logging.getLogger("gridweave.live")

LOCK = "runner.lock"

SWEEP_S = 600.0
"""Interval between checks for output that is too old [s]."""

_LOOK_OVERDUE_S = 30.0

_GONE = ".gone-"
_REMEMBERED = 1 << 16
_LOOK_AGAIN_S = 0.02


class Runner:
    """Runs node tasks on this machine; the tasks survive the runner.

    Parameters
    ----------
    root : pathlib.Path
        A folder on a local disk, used only by this runner. The next runner that uses this folder adopts its tasks.
    environment : mapping from str to str, optional
        The environment of all jobs; by default, that of this process.
    others : bool
        Whether a launcher starts jobs as other users, who must be able to reach their folders.
    shared : bool
        Whether the folder's group may read its contents.
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
    All calls can safely be repeated. All calls and events must use the same event loop. A task is started at most once,
    despite crashes. Its end is reported at least once, and again by every runner that adopts it, until the task is
    released or forgotten.

    Examples
    --------
    >>> import tempfile
    >>> from gridweave.site.launch import Launch, Rank
    >>> async def example(folder):
    ...     async with Runner(Path(folder)) as runner:
    ...         await runner.start(Launch(job_id=7, attempt=0, ranks=(Rank(0), Rank(1)), argv=("true",)))
    ...         async for event in runner.events():
    ...             if isinstance(event, NodeTaskEnded):
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
        self._kept: KeptNodeTasks | None = None
        self._released: asyncio.Queue[Key] = asyncio.Queue()
        self._others, self._shared = others, shared
        self._forks = Forks(self.root, os.environ if environment is None else environment, self._on_shim)
        self._node_tasks: dict[Key, LocalTask] = {}
        self._forgotten: dict[Key, None] = {}
        # Ended tasks that overlapped in time with a task that is still running.
        self._over: list[JobSpan] = []
        self._events: asyncio.Queue[NodeTaskEvent] = asyncio.Queue()
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
            # Also open the pipe for writing, so that it does not reach its end when the last shim closes it.
            self._notices = os.open(self.root / NOTICES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            asyncio.get_running_loop().add_reader(self._notices, self._on_notice)
            self._kept = KeptNodeTasks(self.root, self._output)
            self._background(self._keep_released())
            self._forks.open()
        except BlockingIOError as error:
            await self.close()
            raise UnavailableError(f"{self.root}: another runner uses this folder; give each its own") from error
        except OSError as error:
            await self.close()
            why = os.strerror(error.errno or 0)
            raise InputError(f"{self.root}: {why}; expected a folder on a local disk that you can write to") from error

    def _make_folders(self) -> None:
        (self.root / JOBS).mkdir(parents=True, exist_ok=True)
        # Other users can reach their own folders through these folders, but cannot list them.
        for folder in (self.root, self.root / JOBS):
            close_folder(folder, passes=self._others, shared=self._shared)
        if self._others:
            check_way(self.root)

    async def close(self) -> None:
        """Stop watching the tasks; running tasks continue, and the next runner adopts them."""
        loop = asyncio.get_running_loop()
        await self._forks.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for node_task in self._node_tasks.values():
            self._unwatch(node_task)
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
        """Start a node task unless its job and attempt are known; events report its progress.

        Raises
        ------
        UnavailableError
            If the disk is full. The task then stays unknown, and may be started later.
        """
        key = (launch.job_id, launch.attempt)
        folder = task_folder(self.root, key)
        if key in self._node_tasks or key in self._forgotten:
            return
        if self.removal(*key) is not None:
            self._report_removed(key)
            return
        if (folder / LAUNCH).exists() or (folder / STATE).exists():
            await self._find(key, folder)
            return
        problem = self.disk_problem()
        if problem is not None:
            raise UnavailableError(problem)
        node_task = self._node_tasks[key] = LocalTask(key, folder)
        node_task.alone_ms, node_task.grace_ms, node_task.since_s = launch.alone_ms, launch.grace_ms, time.time()
        try:
            folder.mkdir(exist_ok=True)
            close_folder(folder, passes=bool(launch.launcher), shared=self._shared)
            write_whole(folder / LAUNCH, msgspec.msgpack.encode(launch))
        except (ValueError, TypeError, OverflowError) as error:
            right = "expected Unicode texts, and JSON values as arguments of a callable"
            self._conclude(node_task, "failed", f"the job cannot be stored ({error}); {right}")
            return
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno in FULL:
                del self._node_tasks[key]
                shutil.rmtree(folder, ignore_errors=True)
                raise UnavailableError(f"its folder cannot be written: {why}") from error
            self._conclude(node_task, "failed", f"{folder} cannot be written: {why}")
            return
        self._forks.ask(folder)

    def disk_problem(self, *, trial: bool = False) -> str | None:
        """Return why the disk cannot take another task, or None; ``trial`` writes a file to detect a full quota."""
        return disk_problem(self.root, trial=trial)

    async def open_gate(self, job_id: int, attempt: int) -> None:
        """Open the gate of a task whose ranks are waiting at it; ignore other tasks."""
        node_task = self._node_tasks.get((job_id, attempt))
        if node_task is None or node_task.ended or not node_task.ready_reported or node_task.shim is None:
            return  # the caller repeats the order
        with contextlib.suppress(OSError):
            leave(node_task.folder, GATE)
            signal.pidfd_send_signal(node_task.shim, signal.SIGUSR1)

    def heard(self, job_id: int, attempt: int) -> None:
        """Confirm to a task that its start was noticed, so that it does not end itself after its `Launch.alone_ms`."""
        node_task = self._node_tasks.get((job_id, attempt))
        if node_task is not None and node_task.alone_ms is not None:
            with contextlib.suppress(OSError):
                leave(node_task.folder, HEARD)

    def is_at_gate(self, job_id: int, attempt: int) -> bool:
        """Whether the ranks of a task are waiting at their gate."""
        state = self.state(job_id, attempt)
        return state is not None and state.at_gate

    async def cancel(
        self, job_id: int, attempt: int, reason: str, *, at_once: bool = False, saves: bool = False
    ) -> None:
        """Cancel a task, or prevent its start if it has not arrived yet; the reason of the first call is kept.

        The ranks have the job's grace period to exit, unless ``at_once`` is true. If ``saves`` is true, they get the
        job's checkpoint signal instead of TERM.
        """
        key = (job_id, attempt)
        folder = task_folder(self.root, key)
        if key in self._forgotten or self.removal(*key) is not None:
            return
        if key not in self._node_tasks and folder.exists():
            await self._find(key, folder)
        node_task = self._node_tasks.get(key)
        if node_task is None:
            node_task = self._node_tasks[key] = LocalTask(key, folder)
            with contextlib.suppress(OSError):
                folder.mkdir()
                close_folder(folder, shared=self._shared)
            self._conclude(node_task, "cancelled", one_line(reason))
        if node_task.ended:
            return
        node_task.cancelled = True
        with contextlib.suppress(OSError):  # on a full disk the signal ends the task without the reason
            if at_once:
                leave(folder, CANCEL_NOW)
            if saves:
                leave(folder, CANCEL_SAVE)
            write_cancel(folder, reason)
        node_task.wake(signal.SIGTERM)
        self._expect_end(node_task)

    async def pace(self, job_id: int, attempt: int, *, runs: bool, at_unix_ms: int = 0, speed: float = 1.0) -> None:
        """Pause or resume all processes of a task together at a given time, and set its speed.

        Parameters
        ----------
        runs : bool
            Whether the task should run. If it has not started yet, it is paused as soon as it starts.
        at_unix_ms : int
            Unix time of the change; a past time means now. The last request counts, and it survives this runner.
        speed : float
            Fraction of full speed while the task is running, above 0 and up to 1. The task's limit counts work at this
            speed. A task on fractions of nodes gets this fraction of its CPU time; other tasks are slowed down by the
            jobs that share their nodes.
        """
        node_task = self._node_tasks.get((job_id, attempt))
        if node_task is None or node_task.ended:
            return
        with contextlib.suppress(OSError):  # if the disk is full, the caller repeats the order
            write_pace(node_task.folder, Pace(runs, at_unix_ms, speed))
        node_task.wake()
        node_task.paced_at_s = max(time.time(), at_unix_ms / 1000)
        self._expect_end(node_task)

    def signal(self, job_id: int, attempt: int, name: SignalName) -> None:
        """Send a signal to all processes of a task; do nothing if the task is unknown or has ended."""
        node_task = self._node_tasks.get((job_id, attempt))
        if node_task is None or node_task.ended:
            return
        with contextlib.suppress(OSError):
            write_whole(node_task.folder / SIGNAL, name.encode())
            node_task.wake()  # a shim that does not exist yet checks when it starts

    async def adopt(self) -> tuple[Key, ...]:
        """Adopt the tasks started by earlier runners of this folder; return the keys of the tasks that are alive.

        Events report the tasks' starts, and the ends of dead tasks, as if they had just happened. A shim is identified
        by its pid, its start time and the machine's boot id, so a reused pid is never mistaken for it. A dead task
        without a recorded end is ``lost``, once its remaining processes have been killed. Released tasks are skipped.
        """
        for gone in sorted((self.root / JOBS).glob(f"{_GONE}*")):
            await asyncio.to_thread(remove_task, gone)
        released = self._register.registered()
        for folder in sorted((self.root / JOBS).iterdir()):
            key = task_key(folder)
            if key is not None and self.removal(*key) is not None:
                await self._clear(key)
            elif key is not None and key not in self._node_tasks and key not in released:
                await self._find(key, folder)
            await asyncio.sleep(0)  # let other coroutines run between folders
        return tuple(sorted(key for key, node_task in self._node_tasks.items() if not node_task.ended))

    async def forget(self, job_id: int, attempt: int) -> None:
        """Remove all records and the output of an ended task; raise UnavailableError if the task has not ended."""
        key = (job_id, attempt)
        folder = task_folder(self.root, key)
        if key not in self._node_tasks and folder.exists():
            await self._find(key, folder)
        node_task = self._node_tasks.get(key)
        if node_task is None:
            return
        if not node_task.ended:
            raise UnavailableError(f"node task {job_id}.{attempt} has not ended; cancel it and wait for its end")
        await self._clear(key)

    async def _clear(self, key: Key) -> None:
        """Remove the folder of an ended task."""
        self._node_tasks.pop(key, None)
        self._forgotten[key] = None
        if len(self._forgotten) > _REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
        folder = task_folder(self.root, key)
        # The rename is atomic; the removal may be interrupted.
        gone = folder.with_name(f"{_GONE}{folder.name}-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone)
            await asyncio.to_thread(remove_task, gone)

    def release(self, job_id: int, attempt: int) -> None:
        """Stop reporting the end of a task, which the site has recorded; keep its folder as long as the limits allow.

        Tasks that have not ended are ignored.
        """
        node_task = self._node_tasks.get((job_id, attempt))
        if node_task is not None and node_task.ended:
            self._released.put_nowait(node_task.key)

    def removal(self, job_id: int, attempt: int) -> Removal | None:
        """Return when and why a released task's folder was removed, or None if no removal is recorded."""
        return self._register.removal((job_id, attempt))

    async def report_again(self, job_id: int, attempt: int) -> None:
        """Report the end of a released task again, for a site that has lost the report."""
        key = (job_id, attempt)
        folder = task_folder(self.root, key)
        if self.removal(*key) is not None:
            self._report_removed(key)
        elif key not in self._node_tasks and folder.exists():
            await self._find(key, folder)

    @property
    def _register(self) -> KeptNodeTasks:
        assert self._kept is not None, "the runner is open"
        return self._kept

    async def _keep_released(self) -> None:
        """Register released tasks and remove tasks that exceed the output limits, until the runner is closed."""
        keys: set[Key] = set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    keys.add(await self._released.get())
            while not self._released.empty():
                keys.add(self._released.get_nowait())
            try:
                excess = await asyncio.to_thread(self._register_tasks, sorted(keys))
            except OSError as error:
                logger.warning("%s: %s; trying again", self.root, error)
                continue
            for key in keys:
                self._node_tasks.pop(key, None)
            keys.clear()
            for key in excess:
                await self._clear(key)

    def _register_tasks(self, keys: Sequence[Key]) -> list[Key]:
        """Register ended tasks; return the keys of the tasks to remove."""
        now_ms, node_tasks = int(time.time() * 1000), []
        for key in keys:
            folder = task_folder(self.root, key)
            state, launch = read_state(folder), read_launch(folder)
            user = "" if launch is None else launch.user
            ended_ms = now_ms if state is None or state.ended_ms is None else state.ended_ms
            node_tasks.append(KeptNodeTask(key, user, ended_ms, task_bytes(folder)))
        return self._register.register(node_tasks, now_ms)

    def knows(self, job_id: int, attempt: int) -> bool:
        """Whether this runner's folder has, or once had, a task; False if the task's folder was lost."""
        key = (job_id, attempt)
        if key in self._node_tasks or key in self._forgotten:
            return True
        return task_folder(self.root, key).exists() or self.removal(*key) is not None

    def task_keys(self) -> tuple[Key, ...]:
        """Return the keys of all tasks that are running, or have ended but were not released or forgotten."""
        return tuple(sorted(self._node_tasks))

    async def events(self) -> AsyncIterator[NodeTaskEvent]:
        """Yield events, forever."""
        while True:
            yield await self._events.get()

    def state(self, job_id: int, attempt: int) -> NodeTaskState | None:
        """Return the recorded state of a task, or None; its usage is updated every few seconds."""
        return read_state(task_folder(self.root, (job_id, attempt)))

    # -- notices from shims and the fork server -----------------------------------------------------------------------

    def _on_shim(self, folder: Path, handle: int | None, reason: str) -> None:
        """Watch a new shim, or record the end of a task whose shim could not be started."""
        key = task_key(folder)
        node_task = self._node_tasks.get(key) if key is not None else None
        if node_task is None:
            if handle is not None:
                os.close(handle)
        elif handle is None:
            self._later(node_task, failed=reason)
        else:
            self._watch(node_task, handle)

    def _on_notice(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unread += os.read(self._notices, 1 << 16)
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            name, _, started = line.decode(errors="replace").partition(" ")
            key = task_key(Path(name))
            if key in self._node_tasks and started.isdecimal():
                self._report_started(self._node_tasks[key], int(started))
            elif key in self._node_tasks and started == "ready":
                self._report_ready(self._node_tasks[key])

    def _watch(self, node_task: LocalTask, handle: int) -> None:
        node_task.shim = handle
        asyncio.get_running_loop().add_reader(handle, self._on_exit, node_task)
        if node_task.cancelled:
            node_task.wake(signal.SIGTERM)
        # Requests may have arrived before the shim existed.
        node_task.wake()
        self._expect_end(node_task)

    def _unwatch(self, node_task: LocalTask) -> None:
        if node_task.shim is not None:
            asyncio.get_running_loop().remove_reader(node_task.shim)
            os.close(node_task.shim)
            node_task.shim = None
        if node_task.look is not None:
            node_task.look.cancel()

    def _on_exit(self, node_task: LocalTask) -> None:
        self._unwatch(node_task)
        self._later(node_task)

    def _later(self, node_task: LocalTask, failed: str = "") -> None:
        self._background(self._settle(node_task, failed))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the state of a task ------------------------------------------------------------------------------------------

    async def _find(self, key: Key, folder: Path) -> None:
        """Adopt a task from its folder."""
        node_task = self._node_tasks[key] = LocalTask(key, folder)
        node_task.cancelled = read_cancel(folder) is not None
        launch = read_launch(folder)
        if launch is not None:
            node_task.alone_ms, node_task.grace_ms = launch.alone_ms, launch.grace_ms
        await self._settle(node_task)

    async def _settle(self, node_task: LocalTask, failed: str = "") -> None:
        """Watch a task whose shim is alive; record the end of a task whose shim is dead."""
        while True:
            state = read_state(node_task.folder)
            if state is not None:
                break
            if self._conclude_unstarted(node_task, failed):
                return
            # A shim holds the lock and has not written its first state yet.
            await asyncio.sleep(_LOOK_AGAIN_S)
        if state.phase == "ended":
            self._report_ended(node_task, state)
            return
        here = state.boot_id == boot_id()
        handle = open_process(state.shim_pid, state.shim_start_ticks) if here else None
        if handle is not None:
            if state.at_gate:
                self._report_ready(node_task)
            elif state.phase != "waiting" and state.started_ms is not None:
                self._report_started(node_task, state.started_ms)
            self._watch(node_task, handle)
            return
        last = read_state(node_task.folder)
        if last is not None and last.phase == "ended":  # the shim ended after the first check
            self._report_ended(node_task, last)
            return
        if here:
            await asyncio.to_thread(end_group, node_task.folder)  # first, because signals do not end frozen processes
            await end_strays(state)
        why = "its supervisor was killed" if here else "the machine was restarted while it ran"
        reason = read_cancel(node_task.folder)
        # A task with a cancel request is not lost, because lost tasks run again.
        end: tuple[Outcome, str] = ("lost", why) if reason is None else ("cancelled", f"{reason}; {why}")
        self._conclude(node_task, *(node_task.forced or end), state)

    # -- overdue tasks ------------------------------------------------------------------------------------------------

    def _expect_end(self, node_task: LocalTask) -> None:
        """Schedule a check that the task has ended by its kill time, which changes if the task is paused or slowed."""
        now_s, due_ms = time.time(), node_task.due_ms()
        instants_s = [] if due_ms is None else [due_ms / 1000]
        if node_task.paced_at_s + SILENT_S > now_s:
            instants_s.append(node_task.paced_at_s + SILENT_S)
        if instants_s and not node_task.ended:
            self._look_later(node_task, min(instants_s) - now_s)

    def _look_later(self, node_task: LocalTask, pause_s: float) -> None:
        """Schedule a check of a task after a pause, replacing an earlier timer."""
        if node_task.look is not None:
            node_task.look.cancel()
        loop = asyncio.get_running_loop()
        node_task.look = loop.call_later(max(0.0, pause_s), lambda: self._background(self._look_overdue(node_task)))

    async def _look_overdue(self, node_task: LocalTask) -> None:
        """Kill a task that should have ended if its supervisor does not respond."""
        due_ms = node_task.due_ms()
        if node_task.ended or node_task.shim is None:
            return
        if due_ms is None or time.time() * 1000 < due_ms:
            self._expect_end(node_task)
        elif await node_task.is_silent():
            logger.warning("the supervisor of %s is silent and is killed", node_task.folder)
            node_task.end_by_force()
        elif not node_task.ended:
            # The supervisor responds: the deadline may have moved, or the kernel is still killing the processes.
            self._look_later(node_task, _LOOK_OVERDUE_S)

    def _conclude_unstarted(self, node_task: LocalTask, failed: str) -> bool:
        """Record the end of a task that never started, unless a shim holds its lock; return whether it was recorded."""
        with unstarted(node_task.folder, failed) as end:
            if end is not None:
                self._conclude(node_task, *end)
        return end is not None

    def _conclude(self, node_task: LocalTask, outcome: Outcome, reason: str, last: NodeTaskState | None = None) -> None:
        """Record and report the end of a task that has no shim to record it."""
        if last is None:
            last = NodeTaskState(job_id=node_task.key[0], attempt=node_task.key[1], phase="ended", boot_id=boot_id())
        state = msgspec.structs.replace(
            last, phase="ended", outcome=outcome, reason=reason, ended_ms=int(time.time() * 1000)
        )
        with contextlib.suppress(OSError):  # if the disk is full, the next runner will reach the same conclusion
            write_state(node_task.folder, state)
        self._report_ended(node_task, state)

    def _report_ready(self, node_task: LocalTask) -> None:
        if not (node_task.ready_reported or node_task.started_reported or node_task.ended):
            node_task.ready_reported = True
            self._events.put_nowait(NodeTaskReady(*node_task.key))

    def _report_started(self, node_task: LocalTask, started_ms: int) -> None:
        if not node_task.started_reported and not node_task.ended:
            node_task.started_reported = True
            self._events.put_nowait(NodeTaskStarted(*node_task.key, started_ms, node_task.alone_ms))
            self._expect_end(node_task)

    def _clean_ipc(self, state: NodeTaskState) -> None:
        """Remove IPC objects that ended tasks have left behind and no running task can have created."""
        if state.started_ms is not None and not state.has_own_ipc:
            self._over.append(JobSpan(state.started_ms / 1000, (state.ended_ms or 0) / 1000))
        if not self._over:
            return
        running = [JobSpan(node_task.since_s, None) for node_task in self._node_tasks.values() if not node_task.ended]
        self._background(asyncio.to_thread(remove_left, [*self._over, *running]))
        first_s = min((job.start_s for job in running), default=math.inf)
        self._over = [job for job in self._over if job.end_s is not None and job.end_s >= first_s]

    def _report_removed(self, key: Key) -> None:
        """Report a task whose record was removed; only the fact that it ran on this machine is known."""
        removal = self.removal(*key)
        assert removal is not None, "the task was not removed"
        reason = "it ended here earlier, and its record was removed with its output"
        self._events.put_nowait(NodeTaskEnded(*key, "lost", reason, (), Used(), None, removal.at_ms))

    def _report_ended(self, node_task: LocalTask, state: NodeTaskState) -> None:
        """Report the end of a task once, after reporting its start."""
        if node_task.ended:
            return
        if state.started_ms is not None:
            self._report_started(node_task, state.started_ms)
        node_task.ended = True
        if node_task.look is not None:
            node_task.look.cancel()
        self._clean_ipc(state)
        array_tasks, interrupted = packed_ends(node_task.folder)
        self._events.put_nowait(
            NodeTaskEnded(
                *node_task.key,
                outcome=state.outcome or "lost",
                reason=state.reason,
                ranks=state.ranks,
                usage=state.usage,
                started_ms=state.started_ms,
                ended_ms=state.ended_ms or 0,
                array_tasks=array_tasks,
                interrupted=interrupted,
            )
        )
