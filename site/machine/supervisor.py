"""The supervisor in a shim: starts, watches and ends the ranks of a node task, independently of the runner."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.site.array_tasks import tasks_problem
from gridweave.site.launch import (
    DEFAULT_GRACE_MS,
    Call,
    Launch,
    NodeTaskState,
    Outcome,
    Phase,
    RankReport,
    UsageCurve,
    Used,
    launch_problem,
    total_usage,
)
from gridweave.site.machine.array_tasks import Packed, ended_tasks
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, around_of, group_name
from gridweave.site.machine.environment import (
    hold_meeting,
    rank_command,
    rank_environment,
    takes_socket,
    working_directory,
)
from gridweave.site.machine.folders import (
    ASK,
    CALL,
    CANCEL_NOW,
    CANCEL_SAVE,
    FULL,
    GATE,
    HEARD,
    NOTICES,
    Pace,
    error_path,
    note_rate,
    read_cancel,
    read_pace,
    read_regular,
    reserve,
    take_signal,
    user_folder,
    write_state,
    write_usage,
    write_whole,
)
from gridweave.site.machine.output import RankOutput
from gridweave.site.machine.processes import boot_id, process_stat, signal_pipe, steps_below
from gridweave.site.machine.rank import GO, HANDLED, READY, RankStart
from gridweave.site.machine.starter import LauncherStarter, OwnStarter, Starter
from gridweave.site.machine.usage import BoundedCurve, Meter
from gridweave.site.times import span_text

CLOSED = -1
"""Replaces the descriptor of a pipe that has been closed."""

_MAX_REASON = 500


class RankProcess:
    """The shim's view of a rank: its process, and the pipe on which it reports its start.

    A rank is ``ready`` once it has reached the gate, and has ``begun`` once its command is running. ``status`` is its
    wait status from wait4(2).
    """

    def __init__(self, rank: int, pid: int, start_ticks: int, report: int, output: RankOutput) -> None:
        self.rank = rank
        self.pid = pid
        self.start_ticks = start_ticks
        self.report = report
        self.output = output
        self.ready = False
        self.begun = False
        self.status: int | None = None
        self.ended_s: float | None = None

    @property
    def failed(self) -> bool:
        """Whether a signal or a nonzero exit code ended the rank."""
        return self.status is not None and self.status != 0

    def describe(self, folder: Path) -> str:
        """Describe in one line how the rank ended, including the exception if a callable raised one."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"rank {self.rank} was ended by {name}"
        lines = read_regular(error_path(folder, self.rank)).decode(errors="replace").strip().splitlines()
        raised = f": {lines[-1].strip()[:_MAX_REASON]}" if lines else ""
        return f"rank {self.rank} ended with exit code {code}{raised}"

    def report_at(self, meter: Meter, began_s: float | None) -> RankReport:
        """Return the rank's current report; ``began_s`` is its start time, or None if it has not started."""
        until_s = self.ended_s if self.ended_s is not None else time.monotonic()
        code = os.waitstatus_to_exitcode(self.status) if self.status is not None else None
        return RankReport(
            rank=self.rank,
            pid=self.pid,
            start_ticks=self.start_ticks,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            kept_bytes=self.output.kept_bytes,
            dropped_bytes=self.output.dropped_bytes,
            output_problem=self.output.problem,
            usage=meter.usage(self.rank, max(0.0, until_s - began_s) if began_s is not None else 0.0),
        )


_FIRST_SAMPLE_S = 0.5
_LAST_SAMPLE_S = 10.0
_SAMPLE_SHARE = 100
"""Minimum ratio of the pause after a sample to the sample's duration, so that sampling takes at most 1% of a core."""

_FIRST_KILL_AGAIN_S = 0.02
_LAST_KILL_AGAIN_S = 1.0
_CLOCK_LOOK_S = 1.0
_NOTICE_AGAIN_S = 0.05


class Supervisor:
    """Supervises a node task; the caller must hold the lock of the task's folder."""

    has_own_ipc = False
    # The rendezvous socket, kept open until the ranks start, so that no other program takes the port.
    meeting: socket.socket | None = None

    def __init__(self, folder: Path, launch: Launch, base: Mapping[str, str]) -> None:
        self.folder = folder
        self.launch = launch
        self.base = base
        own = process_stat(os.getpid())
        self.start_ticks = own.start_ticks if own else 0
        self.token = f"{launch.job_id}.{launch.attempt}-{os.urandom(12).hex()}"
        self.phase: Phase = "waiting"
        self.outcome: Outcome | None = None
        self.reason = ""
        self.started_ms: int | None = None
        self.started_s = 0.0
        self.kill_at_s: float | None = None
        self.kill_again_s = _FIRST_KILL_AGAIN_S
        self.announce_at_s: float | None = None
        self.at_gate = False
        self.heard_by_s: float | None = None
        self.gate_by_s: float | None = None
        self.sample_s = _FIRST_SAMPLE_S
        self.sample_at_s: float | None = None
        # The last request to pause or run, the start of the current pause, and the total time of earlier pauses.
        self.pace: Pace | None = None
        self.paused_at_s: float | None = None
        self.is_frozen = False
        self.paused_s = 0.0
        # The work done until `worked_at_s`, in seconds at full speed, and the speed since then unless paused.
        self.worked_s = self.worked_at_s = 0.0
        self.speed = 1.0
        self.starter: Starter | None = None
        self.group: ControlGroup | None = None
        self.is_warned = False  # whether the signal before the limit was sent
        # A batch system or container may limit the memory of all processes on this machine.
        self.around = ControlGroup(around_of("memory"))
        self.killed_before = self.around.oom_kills()
        self.user_folder = user_folder(folder, launcher=launch.launcher)
        self.processes: list[RankProcess] = []
        self.meter = Meter(os.getpid())
        self.curve = BoundedCurve()
        self.selector = selectors.DefaultSelector()
        self.gate: tuple[int, int] | None = None

    def run(self) -> None:
        """Start the ranks, wait until all processes have ended, and record the final state."""
        self._hear_signals()
        self._obey_cancel()
        self.pace = read_pace(self.folder)
        if self.outcome is None:
            self._prepare()
        while self.outcome is None or not self.nothing_left:
            for key, _ in self.selector.select(self._pause_s()):
                key.data(key.fd)
            self._collect()
            self._keep_time()
        if self.group is not None:
            self._look_for_memory()
            with contextlib.suppress(OSError):  # the launcher's rank parent has killed processes of other users
                self.group.kill()
            self.group.remove()
        self._write_end()

    @property
    def nothing_left(self) -> bool:
        """Whether all processes of the task have ended."""
        return self.starter is None or self.starter.nothing_left

    # -- signals ------------------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        """Receive signals as bytes on a pipe, so that none is lost from now on."""
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.selector.register(signal_pipe(HANDLED), selectors.EVENT_READ, self._on_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _on_signal(self, reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if int(signal.SIGTERM) in os.read(reader, 4096):
                self._obey_cancel(by_signal=True)
        # SIGCHLD also announces requests, because it is harmless to a shim that has no handler yet.
        self.pace = read_pace(self.folder)
        self._pass_on_signal()
        self._answer()

    def _answer(self) -> None:
        """Answer the runner's status request by writing the current state."""
        if (self.folder / ASK).exists():
            with contextlib.suppress(OSError):  # a full disk
                self._write()
            with contextlib.suppress(OSError):
                (self.folder / ASK).unlink()

    def _pass_on_signal(self) -> None:
        """Send a requested signal to all processes; discard the request if the task is not running."""
        number = take_signal(self.folder)
        if number is not None and self.phase == "running":
            self._signal(number)

    def _obey_cancel(self, *, by_signal: bool = False) -> None:
        """Cancel the task if a file in its folder requests that, or if SIGTERM arrived (``by_signal``)."""
        reason = read_cancel(self.folder)
        at_once = (self.folder / CANCEL_NOW).exists()
        if reason is None and by_signal:
            reason = "its supervisor got SIGTERM"
        if reason is not None and (self.outcome is None or at_once):
            self._end("cancelled", reason, at_once=at_once)

    # -- the start ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Fork all ranks, which then wait at the gate."""
        problem = launch_problem(self.launch)
        if problem is not None:
            self._end("failed", problem)
            return
        try:
            self.meeting, self.launch = hold_meeting(self.launch)
        except UnavailableError as error:
            self._end("lost", str(error), at_once=True)  # the next attempt gets another port
            return
        try:
            reserve(self.folder, len(self.launch.ranks))
            self._choose_starter()
            self.gate = os.pipe2(os.O_CLOEXEC)
            for local_rank in range(len(self.launch.ranks)):
                self._fork(local_rank)
            os.close(self.gate[0])
            if self.launch.start_at_unix_ms is not None:
                self._write()
        except GridweaveError as error:
            self._end("failed", str(error), at_once=True)
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            self._end(_blamed(error), f"the machine cannot start {len(self.launch.ranks)} processes: {why}")

    def _choose_starter(self) -> None:
        """Create the control group, and choose whether the shim or the launcher starts the ranks."""
        launch = self.launch
        if launch.limits is not None and launch.groups:
            self.group = Cgroups(ControlGroup(launch.groups)).make(group_name(self.folder), launch.limits)
            self.group.confine(launch.bound_threads, launch.denied or ())
        if launch.launcher:
            self.starter = starter = LauncherStarter(launch, self.folder, is_grouped=self.group is not None)
            self.selector.register(starter.news, selectors.EVENT_READ, lambda _: None)
            self.meter = Meter(starter.root)
        else:
            self.starter = OwnStarter(self.group)
            if launch.working_directory is None:
                (self.folder / "work").mkdir(exist_ok=True)
        self.has_own_ipc = self.starter.has_own_ipc
        if launch.call is not None:
            self._write_call(launch.call, self.starter)

    def _write_call(self, call: Call, starter: Starter) -> None:
        """Write the call to a file that the ranks' Python processes can read."""
        path = self.folder / CALL
        write_whole(path, msgspec.msgpack.encode((call, self.launch.output_limit_bytes)))
        with path.open("rb") as file:
            starter.give(file.fileno())

    def _fork(self, local_rank: int) -> None:
        assert self.gate is not None
        assert self.starter is not None
        rank, launch = self.launch.ranks[local_rank], self.launch
        own, array_tasks = str(self.user_folder), launch.array_tasks
        start = RankStart(
            rank.rank,
            rank_command(launch, self.folder, rank),
            rank_environment(launch, self.user_folder, rank, local_rank, self.token, self.base),
            working_directory(launch, self.user_folder),
            rank.threads,
            None if array_tasks is None else Packed(own, array_tasks, launch.output_limit_bytes),
        )
        output = RankOutput(self.folder, rank.rank, launch.output_limit_bytes, self.starter.give)
        descriptors = [*output.writers]
        if self.meeting is not None and takes_socket(launch, rank):
            descriptors.append(self.meeting.fileno())
        pid, start_ticks, report = self.starter.start(start, self.gate, descriptors)
        output.close_writers()
        process = RankProcess(rank.rank, pid, start_ticks, report, output)
        self.processes.append(process)
        self.meter.add_rank(rank.rank, pid)
        self.selector.register(report, selectors.EVENT_READ, lambda _: self._on_report(process))
        for reader in output.readers:
            self.selector.register(reader, selectors.EVENT_READ, lambda fd: self._on_output(output, fd))

    def _on_report(self, process: RankProcess) -> None:
        """Read a rank's report that it is ready, cannot start, or has started."""
        try:
            report = os.read(process.report, 8192)
        except BlockingIOError:
            return
        process.ready = process.ready or report.startswith(READY)
        problem = report.removeprefix(READY)
        if problem:
            self._refuse(problem.decode(errors="replace"))
        if report:
            return
        self.selector.unregister(process.report)
        os.close(process.report)
        process.report = CLOSED
        process.begun = process.ready and self.gate is None
        if self.phase == "running" and all(other.begun for other in self.processes):
            self.announce_at_s = time.monotonic()

    def _refuse(self, problem: str) -> None:
        """Fail the task because a rank cannot start; kill the other ranks immediately."""
        if self.outcome is None or (self.outcome == "failed" and self.started_ms is not None):
            self.outcome, self.reason, self.started_ms = "failed", problem, None
            self._end("failed", problem, at_once=True)

    def _open_gate(self) -> None:
        """Open the gate for all ranks, after writing the state needed to find them again."""
        assert self.gate is not None
        self.phase = "running"
        self.started_ms, self.worked_at_s = int(time.time() * 1000), time.monotonic()
        self._write()
        self.started_s = self.worked_at_s = time.monotonic()
        self.started_ms = int(time.time() * 1000)
        if self.launch.alone_ms is not None:
            self.heard_by_s = self.started_s + self.launch.alone_ms / 1000
        if self.meeting is not None:
            self.meeting.close()
        self._note_rate()
        os.write(self.gate[1], GO * len(self.processes))
        os.close(self.gate[1])
        self.gate = None
        self.sample_at_s = self.started_s + self.sample_s

    # -- time ---------------------------------------------------------------------------------------------------------

    def _pause_s(self) -> float | None:
        """Return how long to wait for events [s]; None: without a limit."""
        if self.outcome is not None and self.nothing_left:
            return 0.0
        now_s = time.monotonic()
        instants = [self.kill_at_s, self.announce_at_s, self.sample_at_s, self.heard_by_s, self._limit_at_s()]
        instants.append(self.gate_by_s if self.gate is not None else None)
        instants.append(self._warn_at_s())
        pauses = [instant - now_s for instant in instants if instant is not None]
        if self._waits() and not self._is_closed():
            left_s = (self.launch.start_at_unix_ms or 0) / 1000 - time.time()
            pauses.append(min(left_s, _CLOCK_LOOK_S))  # the clock may be changed in the meantime
        if self._is_to_change():
            assert self.pace is not None, "a change of pace was requested"
            pauses.append(min(self.pace.at_unix_ms / 1000 - time.time(), _CLOCK_LOOK_S))
        return max(0.0, min(pauses)) if pauses else None

    def _waits(self) -> bool:
        """Whether all ranks are ready and waiting for the agreed start time or the order to open the gate."""
        return self.outcome is None and self.gate is not None and all(process.ready for process in self.processes)

    def _is_closed(self) -> bool:
        """Whether the ranks must wait for the order to open their gate, which arrives as a file and a signal."""
        return self.launch.alone_ms is not None and not (self.folder / GATE).exists()

    def _limit_at_s(self) -> float | None:
        """Return when the task will reach its limit at its current speed; None if paused, not running or unlimited."""
        if self.phase != "running" or self.launch.limit_ms is None or self.paused_at_s is not None:
            return None
        return self.worked_at_s + (self.launch.limit_ms / 1000 - self.worked_s) / self.speed

    def _warn_at_s(self) -> float | None:
        """Return when to send the signal before the limit; None if it was already sent or will never be due."""
        limit_at_s, ahead = self._limit_at_s(), self.launch.limit_signal
        if limit_at_s is None or ahead is None or self.is_warned or self.outcome is not None:
            return None
        return limit_at_s - ahead.ahead_ms / 1000

    def _warn(self, now_s: float) -> None:
        """Send the signal before the limit if it is due."""
        warn_at_s, ahead = self._warn_at_s(), self.launch.limit_signal
        if warn_at_s is None or now_s < warn_at_s or ahead is None or self.starter is None:
            return
        self.is_warned = True
        ranks = [process.pid for process in self.processes]
        if ahead.to == "steps":
            ranks = [pid for rank in ranks for pid in steps_below(rank)]
        if ranks:
            only, but = ranks if ahead.to in ("rank", "steps") else (), ranks if ahead.to == "below" else ()
            self.starter.signal(signal.Signals[f"SIG{ahead.name}"], only=only, but=but)

    def _is_to_change(self) -> bool:
        """Whether the task is running, and a request to pause, resume or slow it is pending, for now or later."""
        if self.phase != "running" or self.pace is None:
            return False
        return self.pace.runs == (self.paused_at_s is not None) or self.pace.speed != self.speed

    def _change_pace(self, pace: Pace) -> None:
        """Pause or resume all processes of the task, and set its speed."""
        if self.starter is None:
            return  # all processes have ended
        self._count_work()
        if pace.speed != self.speed:
            self.speed = pace.speed
            self._give_cpus()
        if pace.runs != (self.paused_at_s is not None):
            self._note_rate()
            return
        if self.paused_at_s is None:
            self.is_frozen = self._freeze(self.starter)
            if not self.is_frozen:
                self.starter.pause()
            self.paused_at_s = time.monotonic()
        else:
            self._count_pause()
            if self.is_frozen:
                self._thaw()
            else:
                self.starter.resume()
        self._note_rate()
        with contextlib.suppress(OSError):  # a full disk does not matter here
            self._write()

    def _note_rate(self) -> None:
        """Record the task's current rate in a file that its ranks can read."""
        speed = self.speed if self.paused_at_s is None else 0.0
        with contextlib.suppress(OSError):  # a full disk
            note_rate(self.folder, self.launch.rate * speed)

    def _count_work(self) -> None:
        now_s = time.monotonic()
        if self.paused_at_s is None:
            self.worked_s += (now_s - self.worked_at_s) * self.speed
        self.worked_at_s = now_s

    def _give_cpus(self) -> None:
        """Limit the CPU time of a task on fractions of nodes according to its speed; ignore other tasks."""
        limits = self.launch.limits if self.launch.part is not None else None
        if self.group is not None and limits is not None and limits.cpus is not None:
            with contextlib.suppress(OSError):
                self.group.limit_cpus(limits.cpus * self.speed)

    def _freeze(self, starter: Starter) -> bool:
        """Pause the task's control group; return False if that is impossible and signals must be used instead."""
        try:
            if self.group is None:
                self.group = Cgroups(ControlGroup(self.launch.groups)).make_freezer(group_name(self.folder))
            if self.group is None or not self.group.can_pause:
                return False
            if self.launch.limits is None:
                starter.gather(self.group)
            return self.group.stop()
        except (OSError, UnavailableError):
            return False

    def _thaw(self) -> None:
        assert self.group is not None, "frozen without a control group"
        self.is_frozen = False
        with contextlib.suppress(OSError):
            self.group.freeze(frozen=False)

    def _count_pause(self) -> None:
        if self.paused_at_s is not None:
            self.paused_s += time.monotonic() - self.paused_at_s
            self.paused_at_s = None

    def _keep_time(self) -> None:
        self._keep_gate()
        if self._is_to_change() and self.pace is not None and time.time() * 1000 >= self.pace.at_unix_ms:
            self._change_pace(self.pace)
        now_s = time.monotonic()
        self._warn(now_s)
        limit_at_s = self._limit_at_s()
        if limit_at_s is not None and now_s >= limit_at_s:
            self._end("limit", f"ended at its limit of {span_text(self.launch.limit_ms or 0)}")
        if self.announce_at_s is not None and now_s >= self.announce_at_s:
            self.announce_at_s = None if self._announce() else now_s + _NOTICE_AGAIN_S
        if self.heard_by_s is not None and now_s >= self.heard_by_s:
            self.heard_by_s = None
            if not (self.folder / HEARD).exists():
                self._end("lost", "no runner recorded its start in time", at_once=True)
        if self.gate_by_s is not None and self._waits() and now_s >= self.gate_by_s:
            self._end("lost", f"its gate was not opened within {span_text(self.launch.gate_ms or 0)}")
        if self.kill_at_s is not None and now_s >= self.kill_at_s:
            self._kill(now_s)
        if self.sample_at_s is not None and now_s >= self.sample_at_s:
            took_s = self.meter.sample()
            self._note_usage()
            self._look_for_memory()
            self.sample_s = min(self.sample_s * 2, _LAST_SAMPLE_S)
            self.sample_at_s = now_s + max(self.sample_s, _SAMPLE_SHARE * took_s)
            with contextlib.suppress(OSError):  # a full disk; space for the final state is reserved
                self._write()

    def _keep_gate(self) -> None:
        """Open the gate if all ranks are ready, the agreed start time has been reached, and the order has arrived."""
        if not self._waits():
            return
        try:
            if not self._is_closed():
                if time.time() * 1000 >= (self.launch.start_at_unix_ms or 0):
                    self._open_gate()
            elif not self.at_gate:
                self.at_gate = True
                self._write()
                self.announce_at_s = time.monotonic()
                if self.launch.gate_ms is not None:
                    self.gate_by_s = self.announce_at_s + self.launch.gate_ms / 1000
        except OSError as error:
            self.started_ms = None
            why = os.strerror(error.errno or 0)
            problem = f"its start could not be recorded, or its ranks ended before it: {why}"
            self._end(_blamed(error), problem)

    def _announce(self) -> bool:
        """Notify the runner that the ranks are running or waiting at their gate; return False to try again later."""
        try:
            notices = os.open(self.folder.parent.parent / NOTICES, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return True  # no runner listens; the next one reads the state
        try:
            what = "ready" if self.started_ms is None else str(self.started_ms)
            os.write(notices, f"{self.launch.job_id}.{self.launch.attempt} {what}\n".encode())
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            os.close(notices)
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, reason: str, *, at_once: bool = False) -> None:
        """End all processes: send TERM or the checkpoint signal, then KILL after the grace period."""
        if self.outcome is None:
            self.outcome, self.reason = outcome, reason
        elif self.kill_at_s is not None and not at_once:
            return
        self.phase = "ending"
        self._count_pause()
        if self.gate is not None:
            # No rank has started yet: close the gate, and skip the grace period.
            os.close(self.gate[1])
            self.gate = None
            at_once = True
        now_s = time.monotonic()
        if at_once or self.launch.grace_ms == 0:
            self._kill(now_s)
            return
        grace_ms = min(self.launch.grace_ms, DEFAULT_GRACE_MS) if self.is_warned else self.launch.grace_ms
        self.kill_at_s = now_s + grace_ms / 1000
        saves = (self.folder / CANCEL_SAVE).exists()
        self._signal(signal.Signals[f"SIG{self.launch.checkpoint_signal}"] if saves else signal.SIGTERM)
        with contextlib.suppress(OSError):
            self._write()

    def _kill(self, now_s: float) -> None:
        """Kill all processes, and schedule another round for processes forked in the meantime."""
        self._signal(signal.SIGKILL)
        self.kill_at_s = now_s + self.kill_again_s
        self.kill_again_s = min(2 * self.kill_again_s, _LAST_KILL_AGAIN_S)

    def _signal(self, number: int) -> None:
        if self.starter is not None:
            self.starter.signal(number)
        if self.is_frozen:
            self._thaw()

    def _collect(self) -> None:
        """Process the exits of ranks and their descendants."""
        if self.starter is None:
            return
        try:
            reaped = self.starter.collect() if self.processes else []
        except UnavailableError as error:
            self.outcome, self.reason = self.outcome or "lost", self.reason or str(error)
            self.starter = None
            return
        for ended in reaped:
            self.meter.collect(ended)
            for process in self.processes:
                if process.pid == ended.pid and process.status is None:
                    process.status, process.ended_s = ended.status, time.monotonic()
        if any(ended.status == signal.SIGKILL for ended in reaped):
            self._look_for_memory()
        self._judge()

    def _look_for_memory(self) -> None:
        """Fail the task if the kernel has killed one of its processes at the memory limit."""
        if self.group is None or self.outcome not in (None, "finished") or not self.group.oom_kills():
            return
        assert self.launch.limits is not None
        limit_bytes = self.launch.limits.memory_bytes or 0
        advice = "request more nodes, or use less memory"
        reason = f"out of memory: it used all of its {limit_bytes >> 20:,} MiB on this machine; {advice}"
        if self.nothing_left:
            self.outcome, self.reason = "failed", reason
        else:
            self._end("failed", reason, at_once=True)

    def _judge(self) -> None:
        """Determine the outcome of the task once its ranks have ended."""
        if self.outcome is not None or not self.processes or not self._all_reports_heard():
            return
        failed = next((process for process in self.processes if process.failed), None)
        if all(process.status is not None for process in self.processes):
            outcome: Outcome = "failed" if failed else "finished"
            reason = self._why(failed) if failed else ""
            array_tasks = self.launch.array_tasks
            if array_tasks and (problem := tasks_problem(ended_tasks(self.user_folder, array_tasks))):
                outcome, reason = "failed", "; ".join(filter(None, (problem, reason)))
            if self.nothing_left:
                self.outcome, self.reason = outcome, reason
            else:
                left = "its remaining processes were ended"
                self._end(outcome, f"{reason}; {left}" if reason else left)
        elif failed is not None and self.launch.end_on_failure:
            self._end("failed", f"{self._why(failed)}; the other ranks were ended")

    def _why(self, failed: RankProcess) -> str:
        """Return why a rank failed: out of memory if KILL ended it or its shell's command, and an OOM kill occurred."""
        description = failed.describe(self.user_folder)
        was_killed = os.waitstatus_to_exitcode(failed.status or 0) in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if not was_killed or self.around.oom_kills() <= self.killed_before:
            return description
        used = "the jobs on this machine used all memory allowed for jobs"
        return f"{description}; out of memory: {used}; request more, or use less"

    def _all_reports_heard(self) -> bool:
        """Read ended ranks' reports, which explain more than exit codes; return whether the outcome is still open."""
        ended = [process for process in self.processes if process.status is not None]
        for process in ended:
            while process.report != CLOSED:  # terminates, because no other process has the pipe open
                self._on_report(process)
        if self.gate is not None and ended:
            self._end("failed", f"{ended[0].describe(self.user_folder)} before the start")
        return self.outcome is None

    # -- records ------------------------------------------------------------------------------------------------------

    def _on_output(self, output: RankOutput, reader: int) -> None:
        if not output.pump(reader):
            self.selector.unregister(reader)

    def _state(self, ended_ms: int | None = None) -> NodeTaskState:
        began_s = self.started_s if self.started_ms is not None else None
        reports = tuple(process.report_at(self.meter, began_s) for process in self.processes) if self._has_run() else ()
        usage = total_usage((*(report.usage for report in reports), self.meter.unowned())) if reports else Used()
        return NodeTaskState(
            job_id=self.launch.job_id,
            attempt=self.launch.attempt,
            phase="ended" if ended_ms is not None else self.phase,
            boot_id=boot_id(),
            token=self.token,
            shim_pid=os.getpid(),
            shim_start_ticks=self.start_ticks,
            started_ms=self.started_ms,
            ended_ms=ended_ms,
            outcome=self.outcome if ended_ms is not None else None,
            reason=self.reason,
            at_gate=self.at_gate and self.phase == "waiting",
            ranks=reports,
            usage=usage,
            is_paused=self.paused_at_s is not None,
            paused_ms=round(self.paused_s * 1000),
            has_own_ipc=self.has_own_ipc,
            kill_due_ms=self._kill_due_ms(),
        )

    def _kill_due_ms(self) -> int | None:
        """Return the Unix time at which KILL is due: the scheduled one, or after the limit and the grace period."""
        due_s, limit_at_s = self.kill_at_s, self._limit_at_s()
        if due_s is None and limit_at_s is not None:
            due_s = limit_at_s + self.launch.grace_ms / 1000
        return None if due_s is None else round((time.time() + due_s - time.monotonic()) * 1000)

    def _has_run(self) -> bool:
        """Whether the ranks have passed the gate or can still pass it, so that their reports are meaningful."""
        return self.outcome is None or self.started_ms is not None

    def _write(self) -> None:
        write_state(self.folder, self._state())

    def _note_usage(self) -> None:
        """Write the task's resource use so far."""
        self.curve.add(int(time.time() * 1000), self.meter.cpu_s, self.meter.memory_bytes)
        ranks, size = [rank.rank for rank in self.launch.ranks], self.launch.size
        curve = UsageCurve(
            site=self.launch.site,
            host=os.uname().nodename,
            first_rank=min(ranks),
            last_rank=max(ranks),
            size=len(ranks) if size is None else size,
            start_ms=self.started_ms or 0,
            points=self.curve.points,
        )
        with contextlib.suppress(OSError):  # a full disk
            write_usage(self.folder, curve)

    def _write_end(self) -> None:
        """Write the final state once all processes have ended."""
        for process in self.processes:
            process.output.finish()
        if self.curve.points:  # a task that ended before the first sample has no curve, only totals in its state
            self._note_usage()
        write_state(self.folder, self._state(ended_ms=int(time.time() * 1000)))


def _blamed(error: Exception) -> Outcome:
    """Return the outcome of a task that could not start: a full disk is the machine's fault, not the job's."""
    return "lost" if isinstance(error, OSError) and error.errno in FULL else "failed"
