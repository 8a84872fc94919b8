"""Calls to the actors of a grid: actor names, encoding, deadlines and errors.

Every call inside a Ray cluster is a Ray call to a named actor. Questions that arrive during a call are batched into
the next call, so sending many small messages costs little more than sending a few.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import msgspec
from typing_extensions import override

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.shared_calls import SharedCalls
from gridweave.site.machine.processes import protect_ray_worker
from gridweave.site.query_messages import LoggedFault
from gridweave.site.service.faults import LAST_FAULT, LOG_FORMAT, fault_in, recent_fault
from gridweave.site.times import span_text
from gridweave.version import __version__

logger = logging.getLogger("gridweave.live")

NAMESPACE = "gridweave"
GRID_ACTOR, GATEWAY_ACTOR = "grid", "gateway"

SITE_LABEL = "gridweave.io/site"
MACHINE_LABEL = "gridweave.io/machine"
"""Labels of a Ray node: its site, and its machine name if the site has several machines."""

GRID_LABEL = "gridweave.io/grid"
"""Label of the Ray node that hosts the meta-scheduler; its value is the grid's name."""

CALL_S = 10.0
"""Default time limit of a call between actors [s]."""


def site_actor(site: str) -> str:
    """Return the name of a site's actor."""
    return f"site:{site}"


FIRST_MACHINE = "m0"
"""Name of every site's first machine."""


def agent_actor(site: str, machine: str) -> str:
    """Return the name of a machine's agent actor."""
    return f"agent:{site}/{machine}"


class Calls(Protocol):
    """Calls methods of a grid's actors."""

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call a method of a named actor; raise UnavailableError if the actor does not answer."""

    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a question to an actor's `Door`; set ``alone`` to send a slow question in a call of its own."""


class ActorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and health of an actor."""

    name: str
    grid_id: str  # distinguishes grids in the same namespace
    version: str  # version of gridweave
    host: str
    pid: int
    since_ms: int  # Unix time at which the actor was created
    problem: str = ""  # why the actor is not working; empty if it is working
    fault: LoggedFault | None = None  # the last fault, if logged within the past day


class LiveActor:
    """Base class of a grid's actors: reports the actor's identity, and logs its warnings and errors to a file.

    Parameters
    ----------
    name
        The actor's name in Ray.
    grid_id
        A random string shared by all actors of a grid.
    logs
        Folder for the actor's log file; if empty, no log file is written, and only Ray keeps the output.
    """

    def __init__(self, name: str, *, grid_id: str = "", logs: str = "") -> None:
        self._name, self._grid_id, self._since_ms = name, grid_id, time.time_ns() // 1_000_000
        self._tasks: list[asyncio.Task[Any]] = []
        protect_ray_worker()
        if logs:
            log_to(Path(logs) / log_name(name))

    @property
    def problem(self) -> GridweaveError | None:
        """Why the actor is not working, or None."""
        return None

    async def about(self) -> bytes:
        """Return the encoded `ActorInfo`."""
        info = ActorInfo(
            name=self._name,
            grid_id=self._grid_id,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
            since_ms=self._since_ms,
            problem=str(self.problem or ""),
            fault=recent_fault(),
        )
        return encode(info)

    async def process(self) -> int:
        """Return the process id of the actor."""
        return os.getpid()


def log_name(actor: str) -> str:
    """Return the file name of an actor's log.

    Examples
    --------
    >>> log_name("agent:north/m0")
    'agent-north-m0.log'
    """
    return f"{re.sub('[:/]', '-', actor)}.log"


_LOG_BYTES, _OLD_LOGS = 4 << 20, 2


def log_to(path: Path) -> None:
    """Also write this process's warnings and errors to a log file.

    `LAST_FAULT` keeps the latest fault; at first, this is the last fault that an earlier process logged to the file.
    """
    if LAST_FAULT.fault is None:
        LAST_FAULT.fault = fault_in(path)
    logging.getLogger("gridweave").addHandler(LAST_FAULT)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_OLD_LOGS, delay=True)
    except OSError as error:
        logger.warning("%s: cannot log there: %s", path, error.strerror)
        return
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    handler.setLevel(logging.WARNING)
    logging.getLogger("gridweave").addHandler(handler)


def run_forever(name: str, *works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run an actor's coroutines in the background; if a coroutine fails, exit so that Ray restarts the actor.

    The restarted actor continues from the state in the journal.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda done: _ended(name, done))
    return tasks


RESTART_PAUSE_S = 1.0
"""Pause before a failed actor exits [s]; keeps an actor that always fails from restarting in a tight loop."""


def _ended(name: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("%s has failed and is restarted", name, exc_info=task.exception())
        logging.shutdown()
        time.sleep(RESTART_PAUSE_S)
        os._exit(1)


def journal_place(place: str, password_file: str = "") -> str:
    """Return a journal's location: a file path, whose folder is created if missing, or a database URL with password."""
    if "://" not in place:
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{place}: {error.strerror}; name a file in a folder that you can write to") from error
        return place
    if not password_file:
        return place
    from gridweave.site.journal.store import checked_url

    try:
        password = Path(password_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is not text"
        raise OptionError(
            "journal_password_file", f"{password_file}: {problem}; name a file that you can read"
        ) from None
    return checked_url("journal", place).set(password=password).render_as_string(hide_password=False)


def encode(value: object) -> bytes:
    """Encode a value as MessagePack; Ray passes bytes more cheaply than objects."""
    return msgspec.msgpack.encode(value)


def actor_options(name: str, namespace: str, labels: Mapping[str, str], ip: str = "") -> dict[str, Any]:
    """Return the Ray options of a grid's actor, which is named, detached, and restarted without limit.

    Parameters
    ----------
    name, namespace
        The actor's name and namespace in Ray.
    labels
        Labels that the actor's Ray node must have.
    ip
        Address of the machine on which the actor must run; empty for any machine.
    """
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 1000,
        # Callers retry lost calls; without a bound, calls to an actor on a lost node would pile up.
        "max_pending_calls": 1000,
        "num_cpus": 0,
        # Otherwise Ray would keep an entry for each of the last hundred thousand calls.
        "enable_task_events": False,
        "label_selector": dict(labels),
        # Every Ray node has this resource, whose name survives a restart of Ray, unlike a node id.
        "resources": {f"node:{ip}": 0.001} if ip else {},
    }


def node_ip() -> str:
    """Return this machine's IP address as known to Ray."""
    import ray

    ip: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return ip


MOST_IN_A_CALL = 500
"""Maximum number of questions per call."""


class ActorCalls(Calls):
    """Calls actors in one namespace of the Ray cluster that this process has joined.

    An instance can be pickled until its first call.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._handles: dict[str, Any] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}

    @override
    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call an actor's method. After an UnavailableError, the method may have run."""
        import ray

        if not ray.is_initialized():  # otherwise Ray would start a cluster of its own
            raise UnavailableError(f"actor {actor} does not answer: this process has not joined Ray")
        reference = None
        try:
            async with asyncio.timeout(timeout_s):
                if actor not in self._handles:
                    self._handles[actor] = await asyncio.to_thread(ray.get_actor, actor, self.namespace)
                reference = getattr(self._handles[actor], method).remote(*arguments)
                return await reference
        except TimeoutError as error:
            if reference is not None:
                ray.cancel(reference)  # otherwise Ray would keep the call until the actor is back
            raise UnavailableError(f"actor {actor} does not answer within {span_text(timeout_s * 1000)}") from error
        except (ray.exceptions.RayError, ValueError) as error:
            if not isinstance(error, ray.exceptions.RayTaskError):
                self._handles.pop(actor, None)  # by now, the name may belong to a new actor
            raise UnavailableError(f"actor {actor} does not answer: {reason_of(error)}") from error

    @override
    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a question to an actor; questions for the same method may share a call unless ``alone``."""
        if alone:
            answers = await self.call(actor, "ask_all", method, [data], timeout_s=timeout_s)
            return bytes(answers[0])
        lane = self._lanes.get((actor, method))
        if lane is None:
            lane = self._lanes[actor, method] = _Lane(self, actor, method)
        return await lane.ask(data, timeout_s)


class _Lane:
    """Batches questions for one method of one actor into shared calls."""

    def __init__(self, calls: Calls, actor: str, method: str) -> None:
        self._calls, self._actor, self._method = calls, actor, method
        self._shared = SharedCalls(self._call, most_together=MOST_IN_A_CALL)

    async def ask(self, data: bytes, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._shared.ask((data, timeout_s))
        except TimeoutError as error:
            raise UnavailableError(
                f"actor {self._actor} does not answer within {span_text(timeout_s * 1000)}"
            ) from error

    async def _call(self, questions: list[tuple[bytes, float]]) -> list[bytes]:
        timeout_s = max(timeout_s for _, timeout_s in questions)
        data = [question for question, _ in questions]
        answers: list[bytes] = await self._calls.call(self._actor, "ask_all", self._method, data, timeout_s=timeout_s)
        return answers


def reason_of(error: BaseException) -> str:
    """Return why a Ray call failed: the first line of the actor's error message, or of Ray's."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).splitlines()
    return lines[0] if lines else type(cause).__name__


class Answered(msgspec.Struct, frozen=True):
    """The return value of a method, or why the question was invalid."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str | None = None


class Door:
    """Exposes some methods of an object to other processes; arguments are decoded by the parameters' types.

    Examples
    --------
    >>> import asyncio
    >>> class Adder:
    ...     async def add(self, left: int, right: int) -> int:
    ...         return left + right
    >>> door = Door(Adder(), ("add",))
    >>> answer = asyncio.run(door.ask("add", question(2, 3)))
    >>> answer_of(answer, msgspec.msgpack.Decoder(int))
    5
    """

    def __init__(self, queries: object, methods: Sequence[str]) -> None:
        self._methods: dict[str, tuple[Callable[..., Any], msgspec.msgpack.Decoder[Any]]] = {}
        for name in methods:
            method = getattr(queries, name)
            hints = get_type_hints(method)
            hints.pop("return", None)
            self._methods[name] = method, msgspec.msgpack.Decoder(tuple[tuple(hints.values())])  # type: ignore[misc]

    async def ask(self, method: str, data: bytes) -> bytes:
        """Call a method with arguments from `question`; return its result or an InputError, encoded for `answer_of`."""
        try:
            if method not in self._methods:
                expected = ", ".join(sorted(self._methods))
                raise InputError(f"{method!r:.100} is not a method for callers; expected one of {expected}")
            called, decoder = self._methods[method]
            try:
                arguments = decoder.decode(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise InputError(f"{method}: the question cannot be read: {error}") from error
            value = called(*arguments)
            if inspect.isawaitable(value):
                value = await value
        except InputError as error:
            return _ENCODER.encode(Answered(problem=str(error)))
        return _ENCODER.encode(Answered(msgspec.Raw(_ENCODER.encode(value))))

    async def ask_all(self, method: str, questions: Sequence[bytes]) -> list[bytes]:
        """Call a method concurrently for several questions, as `ask` does; return the answers in order."""
        return list(await asyncio.gather(*(self.ask(method, data) for data in questions)))


def question(*arguments: object) -> bytes:
    """Encode call arguments for `Door.ask`."""
    return _ENCODER.encode(arguments)


def answer_of(data: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """Decode an answer from `Door.ask`; raise InputError if it reports a problem."""
    answered = _ANSWERED.decode(data)
    if answered.problem is not None:
        raise InputError(answered.problem)
    return decoder.decode(answered.value)


_ENCODER = msgspec.msgpack.Encoder()
_ANSWERED = msgspec.msgpack.Decoder(Answered)
