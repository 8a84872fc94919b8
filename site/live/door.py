"""How the methods of a desk are called from another process: arguments and answers as MessagePack."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import msgspec

from gridweave.errors import InputError


class Answered(msgspec.Struct, frozen=True):
    """What a method has answered: its answer, or what was wrong with the question."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str | None = None


class Door:
    """The methods of an object that may be called from elsewhere.

    Parameters
    ----------
    desk : object
    methods : sequence of str
        Names of them; the types of their parameters are what is taken in.

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
        """Call a method.

        Parameters
        ----------
        method : str
        data : bytes
            Its arguments (`question`).

        Returns
        -------
        bytes
            For `answer_of`. What is wrong with the question is an answer, too.
        """
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
    """Return what a method has answered.

    Parameters
    ----------
    data : bytes
        From `Door.ask`.
    decoder : msgspec.msgpack.Decoder
        Of the type of the answer.

    Raises
    ------
    InputError
        If something was wrong with the question.
    """
    answered = _ANSWERS.decode(data)
    if answered.problem is not None:
        raise InputError(answered.problem)
    return decoder.decode(answered.value)


_ENCODER = msgspec.msgpack.Encoder()
_ANSWERS = msgspec.msgpack.Decoder(Answered)
