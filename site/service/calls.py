"""Calls to actors by their names: over lines on one machine, over Ray and their hosts to others; and to their desks.

An actor is a process that a host has started (`gridweave.site.service.host`); only hosts are on Ray. A call over Ray
passes through half a dozen threads of both processes, each of which has to wait for the interpreter; on a busy machine
that takes longer than what the call is about. So whoever calls an actor asks its host for a line to it: a connection
over the loopback interface, opened with a secret that only Ray, which knows who may ask, and the host hand out. Where
there can be no line (another machine or container) calls go over the host, and mean the same: each may be lost, or
come late.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import inspect
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import msgspec

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError

logger = logging.getLogger("gridweave.live")

LOOPBACK = "127.0.0.1"

SECRET_BYTES = 32
"""Length of the secret that a line begins with."""

_LENGTH_BYTES = 4
_GREETING_S = 10.0
_BUFFER_BYTES = 1 << 20


@functools.cache
def own_network() -> str:
    """Return by what processes know that they share a loopback interface: their kernel, and their network in it.

    Ray nodes do not say it: several may be on one machine, and containers on one kernel. Empty: it is not known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


class NearAddress(msgspec.Struct, frozen=True):
    """Where an actor answers on its machine."""

    network: str  # whose loopback interface it is (`own_network`)
    port: int
    secret: bytes  # what a line begins with


class _Call(msgspec.Struct, frozen=True, array_like=True):
    """A call: its number on this line, the method, and the arguments, which are plain data."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """What became of a call: what the method returned, or why it failed."""

    number: int
    value: Any
    problem: str | None = None
    is_input: bool = False  # whether what was given could not be used, as nothing will change


_ENCODER = msgspec.msgpack.Encoder()
_CALLS = msgspec.msgpack.Decoder(_Call)
_ANSWERS = msgspec.msgpack.Decoder(_Answer)


class NearDoor:
    """Answers calls on this machine, of methods that are coroutines, and take and return what MessagePack knows.

    Or, with a ``host``, at an address of this machine; and under a ``secret`` that was given.

    Examples
    --------
    >>> class Adder:
    ...     async def add(self, left: int, right: int) -> int:
    ...         return left + right
    >>> async def example() -> int:
    ...     door = NearDoor(Adder(), ("add",), own_network())
    ...     line = await NearLine.open(await door.address())
    ...     try:
    ...         return await line.call("add", 2, 3)
    ...     finally:
    ...         line.end()
    ...         await door.close()
    >>> asyncio.run(example())
    5
    """

    def __init__(
        self,
        actor: object,
        methods: Sequence[str],
        network: str,
        *,
        host: str = LOOPBACK,
        secret: bytes | None = None,
    ) -> None:
        self._methods: dict[str, Callable[..., Awaitable[object]]] = {name: getattr(actor, name) for name in methods}
        self._network = network
        self._host, self._secret = host, secret or secrets.token_bytes(SECRET_BYTES)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def address(self) -> NearAddress:
        """Return where it answers; from the first time on it does."""
        async with self._opening:
            if self._server is None:
                self._server = await asyncio.start_server(self._meet, self._host, 0, limit=_BUFFER_BYTES)
        return NearAddress(self._network, self._server.sockets[0].getsockname()[1], self._secret)

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A coroutine in its place would be asyncio's own task, and complained of when the loop ends under it.
        self._begin(self._greet(reader, writer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve whoever knows the secret; the connection of anybody else ends without a word."""
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_GREETING_S):
                said = await reader.readexactly(SECRET_BYTES)
            if hmac.compare_digest(said, self._secret):
                while True:
                    call = _CALLS.decode(await _read(reader))
                    self._begin(self._answer(call, writer))
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            logger.debug("a line ended: %r", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, call: _Call, writer: asyncio.StreamWriter) -> None:
        answer = await self._answered(call)
        if not writer.is_closing():
            _write(writer, answer)
            with contextlib.suppress(OSError):
                await writer.drain()

    async def _answered(self, call: _Call) -> bytes:
        try:
            if call.method not in self._methods:
                raise UnavailableError(f"{call.method!r:.100} cannot be called")
            return _ENCODER.encode(_Answer(call.number, await self._methods[call.method](*call.arguments)))
        except InputError as error:
            return _ENCODER.encode(_Answer(call.number, None, str(error), is_input=True))
        except Exception as error:
            # As on Ray, where whoever called hears of it, whatever it is.
            logger.debug("%s failed", call.method, exc_info=error)
            problem = str(error) if isinstance(error, UnavailableError) else f"{type(error).__name__}: {error}"
            return _ENCODER.encode(_Answer(call.number, None, problem))

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            await self._server.wait_closed()


class NearLine:
    """A connection to an actor of this machine; `open` makes one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        self._task = self._loop.create_task(self._read(reader))
        # Not by the task itself: one that is cancelled before it has begun runs none of its code.
        self._task.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: NearAddress, host: str = LOOPBACK) -> NearLine:
        """Return a line to an actor, on another host if one is named."""
        reader, writer = await asyncio.open_connection(host, address.port, limit=_BUFFER_BYTES)
        writer.write(address.secret)
        return cls(reader, writer)

    @property
    def is_open(self) -> bool:
        """Whether calls can go over it, as far as this end knows; in another event loop they cannot."""
        return not self._task.done() and asyncio.get_running_loop() is self._loop

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method. If there is no answer, or it failed (UnavailableError), it may have run all the same.

        InputError if the method has raised one.
        """
        if not self.is_open:
            raise UnavailableError("the connection has ended")
        self._number += 1
        number = self._number
        future = self._waiting[number] = self._loop.create_future()
        try:
            _write(self._writer, _ENCODER.encode(_Call(number, method, arguments)))
            await self._writer.drain()
            answer: _Answer = await future
        except OSError as error:
            raise UnavailableError(f"the connection has ended: {error}") from error
        finally:
            self._waiting.pop(number, None)
            self._end_if_idle()
        if answer.problem is not None:
            raise (InputError if answer.is_input else UnavailableError)(answer.problem)
        return answer.value

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand answers out, until the connection ends or the event loop does."""
        try:
            while True:
                answer = _ANSWERS.decode(await _read(reader))
                future = self._waiting.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            logger.debug("a line ended: %r", error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError("the connection has ended"))

    def end(self) -> None:
        """End the connection once nobody waits for an answer."""
        self._is_ending = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_ending and not self._waiting:
            self._task.cancel()


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # In one piece: each write may be a packet of its own, and wakes the other end.
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


NAMESPACE = "gridweave"
GRID_ACTOR = "grid"

SITE_LABEL = "gridweave.io/site"
MACHINE_LABEL = "gridweave.io/machine"
"""Labels of Ray nodes: which site a node belongs to, and which machine of it it is, if it has several."""

GRID_LABEL = "gridweave.io/grid"
"""Label of the Ray node on which the meta-scheduler of the grid of this name is to be."""

CALL_S = 10.0
"""After so long a call between actors counts as lost."""


def site_actor(site: str) -> str:
    """Return the name of a site's actor."""
    return f"site:{site}"


FIRST_MACHINE = "m0"
"""The name of the first machine of each site."""


def agent_actor(site: str, machine: str) -> str:
    """Return the name of the actor of a machine."""
    return f"agent:{site}/{machine}"


HOST_OF_ALL = "host"
"""The name on Ray of the host of a grid that is on one machine."""


def hosts_of(actor: str) -> tuple[str, str]:
    """Return by which names on Ray the host of an actor is found: that of its machine, or else the one of all.

    Examples
    --------
    >>> hosts_of("agent:north/m1"), hosts_of("site:north"), hosts_of("grid")
    (('host:north/m1', 'host'), ('host:north/m0', 'host'), ('host:grid', 'host'))
    """
    kind, _, place = actor.partition(":")
    # A site is on its first machine, as its journal is a file there.
    place = f"{place}/{FIRST_MACHINE}" if kind == "site" else place or kind
    return f"{HOST_OF_ALL}:{place}", HOST_OF_ALL


class Calls(Protocol):
    """Carries calls to the actors of a grid, wherever they are."""

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor by its name; UnavailableError: there is no answer."""


def endure(name: str, *works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Keep the works of an actor going; if one ends by an error, end the process, so that it is started anew.

    The state is in the journal, so the new one goes on where this one stood.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda done: _ended(name, done))
    return tasks


def _ended(name: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("%s cannot go on", name, exc_info=task.exception())
        logging.shutdown()
        os._exit(1)


def journal_place(place: str, password_file: str = "") -> str:
    """Return where a journal is to be; the folder of a file is made, and a password put into a URL."""
    if "://" not in place:
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{place}: {error.strerror}; name a place in a folder that you can write to") from error
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
    """Return what goes into a call: bytes of MessagePack are cheaper for Ray than objects."""
    return msgspec.msgpack.encode(value)


def actor_options(name: str, namespace: str, labels: Mapping[str, str], ip: str = "") -> dict[str, Any]:
    """Return with which options a host is made: found by its name, outliving who made it, started anew.

    Labels are what its Ray node must have; ``ip`` is the address of its machine, empty for any.
    """
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 1000,
        "num_cpus": 0,
        # Ray would keep an entry for each of the last hundred thousand calls; the stories of jobs are in the journals.
        "enable_task_events": False,
        "label_selector": dict(labels),
        # Every Ray node has a little of this. It is the same when Ray was started anew there, as a number would not be.
        "resources": {f"node:{ip}": 0.001} if ip else {},
    }


class NearActor:
    """An actor that offers a line to whoever shares its loopback interface."""

    # Which of its methods may be called over it; they take and return what MessagePack knows.
    near_methods: tuple[str, ...] = ()
    near_door: NearDoor | None = None

    async def near(self) -> NearAddress:
        """Return where it answers on its machine."""
        if self.near_door is None:
            offered = [name for name in self.near_methods if hasattr(self, name)]
            self.near_door = NearDoor(self, offered, own_network())
        return await self.near_door.address()

    async def stop_near(self) -> None:
        """End all lines; what is called from now on is called over Ray."""
        if self.near_door is not None:
            await self.near_door.close()


class CallsOverLines(ABC):
    """Calls of actors by their names: over lines to those on this machine, another way to all others.

    Nobody waits for a line: until there is one calls go the other way. Who does not answer is looked up again.
    """

    def __init__(self) -> None:
        self._lines: dict[str, NearLine] = {}
        self._asked: set[str] = set()
        self._opening: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def far(self, actor: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method without a line; UnavailableError: there is no answer."""

    @abstractmethod
    async def address(self, actor: str) -> NearAddress:
        """Return where an actor answers on its machine; UnavailableError: it is not known."""

    @property
    def near(self) -> list[str]:
        """The actors to which there is a line, by name."""
        return sorted(actor for actor, line in self._lines.items() if line.is_open)

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor. If there is no answer (UnavailableError), it may have run all the same."""
        line = self._lines.get(actor)
        if line is not None and not line.is_open:
            self.forget(actor)
            line = None
        try:
            async with asyncio.timeout(timeout_s):
                if line is not None:
                    return await line.call(method, *arguments)
                self._come_near_soon(actor)
                return await self.far(actor, method, arguments)
        except (TimeoutError, GridweaveError) as error:
            # A method that fails says nothing against the line that told so, and nothing here against a newer line.
            is_broken = line is None or not line.is_open or isinstance(error, TimeoutError)
            if is_broken and self._lines.get(actor) is line:
                self.forget(actor)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnavailableError(f"actor {actor} does not answer: {reason}") from error

    def _come_near_soon(self, actor: str) -> None:
        if actor not in self._asked:
            self._asked.add(actor)
            task = asyncio.get_running_loop().create_task(self._come_near(actor))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _come_near(self, actor: str) -> None:
        """Open a line to an actor, if it is on this machine."""
        try:
            async with asyncio.timeout(CALL_S):
                address = await self.address(actor)
                if address.network == own_network() != "" and actor in self._asked:
                    self._lines[actor] = await NearLine.open(address)
        except (TimeoutError, OSError, GridweaveError):
            # Where it is not known now, it is asked anew with the next call.
            self._asked.discard(actor)

    def forget(self, actor: str) -> None:
        """Look an actor up anew with the next call."""
        self._asked.discard(actor)
        line = self._lines.pop(actor, None)
        if line is not None:
            # Others may wait for answers still.
            line.end()


class Handles(CallsOverLines):
    """Calls from a process that has joined Ray: what has no line goes over Ray to the host of the actor."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace
        self._hosts: dict[str, Any] = {}

    async def far(self, actor: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method over Ray."""
        return await self._ask_host(actor, "call", actor, method, arguments)

    async def address(self, actor: str) -> NearAddress:
        """Return where an actor answers on its machine, as its host says."""
        return msgspec.msgpack.decode(await self._ask_host(actor, "where", actor), type=NearAddress)

    async def _ask_host(self, actor: str, method: str, *arguments: Any) -> Any:
        import ray

        try:
            if actor not in self._hosts:
                self._hosts[actor] = await asyncio.to_thread(find_host, actor, self._namespace)
            return await getattr(self._hosts[actor], method).remote(*arguments)
        except (ray.exceptions.RayError, ValueError) as error:
            raise UnavailableError(str(getattr(error, "cause", None) or error)) from error

    def forget(self, actor: str) -> None:
        """Look an actor up anew with the next call, and its host too."""
        super().forget(actor)
        self._hosts.pop(actor, None)


class HostLines(CallsOverLines):
    """Calls from a process that a host has started: what has no line goes over its host, which is on Ray.

    Parameters
    ----------
    host
        Where its host answers.
    ip
        The IP address of this machine, as Ray knows it.
    """

    def __init__(self, host: NearAddress, ip: str) -> None:
        super().__init__()
        self.ip = ip
        self._host = host
        self._line: NearLine | None = None
        self._opening_line = asyncio.Lock()

    async def far(self, actor: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method over the host."""
        return await (await self._to_host()).call("call", actor, method, arguments)

    async def address(self, actor: str) -> NearAddress:
        """Return where an actor answers on its machine, as the host says."""
        return msgspec.msgpack.decode(await (await self._to_host()).call("where", actor), type=NearAddress)

    async def _to_host(self) -> NearLine:
        async with self._opening_line:
            if self._line is None or not self._line.is_open:
                try:
                    self._line = await NearLine.open(self._host)
                except OSError as error:
                    raise UnavailableError(f"the host does not answer: {error}") from error
            return self._line


def find_host(actor: str, namespace: str) -> Any:
    """Return the host of an actor, as a handle of Ray; ValueError: there is none."""
    import ray

    own, of_all = hosts_of(actor)
    try:
        return ray.get_actor(own, namespace=namespace)
    except ValueError:
        return ray.get_actor(of_all, namespace=namespace)


class Answered(msgspec.Struct, frozen=True):
    """What a method has answered: its answer, or what was wrong with the question."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str | None = None


class Door:
    """The methods of an object that may be called from elsewhere; the types of their parameters are what is taken in.

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

    def __init__(self, desk: object, methods: Sequence[str]) -> None:
        self._methods: dict[str, tuple[Callable[..., Any], msgspec.msgpack.Decoder[Any]]] = {}
        for name in methods:
            method = getattr(desk, name)
            hints = get_type_hints(method)
            hints.pop("return", None)
            self._methods[name] = method, msgspec.msgpack.Decoder(tuple[tuple(hints.values())])  # type: ignore[misc]

    async def ask(self, method: str, data: bytes) -> bytes:
        """Call a method with arguments from `question`; what is wrong with these is an answer for `answer_of`, too."""
        try:
            if method not in self._methods:
                raise InputError(f"{method!r:.100} cannot be asked; only {', '.join(sorted(self._methods))} can")
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


def question(*arguments: object) -> bytes:
    """Return the arguments of a call as bytes."""
    return _ENCODER.encode(arguments)


def answer_of(data: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    """Return what a method has answered (`Door.ask`); InputError: something was wrong with the question."""
    answered = _ANSWERED.decode(data)
    if answered.problem is not None:
        raise InputError(answered.problem)
    return decoder.decode(answered.value)


_ANSWERED = msgspec.msgpack.Decoder(Answered)
