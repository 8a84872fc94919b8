"""What a journal keeps and gives back, and how events and messages become bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.settings import Change, Changeable, settings_changes


class Input(msgspec.Struct, frozen=True):
    """What a core was told in one call."""

    sequence: int  # from 1, without a gap, in the order of the calls
    now_ms: int
    events: tuple[Any, ...]
    decided: bytes | None = None  # a digest of the commands that it answered with


class ChannelState(msgspec.Struct, frozen=True):
    """What one end of a connection must know to go on after a failure (`gridweave.site.channel`)."""

    # Number of the first of the unacknowledged messages; where there is none, of the next that will be sent.
    first: int = 0
    unacknowledged: tuple[Any, ...] = ()  # messages that were sent, and of which it is not known that they have arrived
    received: int = 0  # how many messages of the other end have been taken in
    other: str = ""  # id of the other end's journal; empty: not heard of yet


class KeptAnswer(msgspec.Struct, frozen=True):
    """What was answered to a submission with an idempotency key."""

    key: str
    job_id: int
    at_ms: int
    answer: Any  # the first answer: every repetition gets this one


class Note(msgspec.Struct, frozen=True):
    """One event of the story of a job."""

    job_id: int
    at_ms: int
    kind: str  # ``submitted``, ``waits``, ``held``, ``started``, ``ended``, ``retried``, or another short word
    detail: str = ""  # why, where, how


class NumberedNote(msgspec.Struct, frozen=True):
    """One event of the story of a job, as `Note`, with its number among those of all jobs."""

    number: int
    job_id: int
    at_ms: int
    kind: str
    detail: str = ""


class JobUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has used."""

    job_id: int
    # Whose it was and of which class; a number is kept as its digits.
    user: str | int | None = None
    job_class: str | int | None = None
    at_ms: int  # when it ended
    width: int  # nodes
    estimate_ms: int
    run_ms: int
    cpu: float | None = None  # part of the time of its CPUs that it computed
    memory_bytes: int | None = None  # the most that it had on one node
    read_bytes: int | None = None
    write_bytes: int | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """How values are spread; quantiles as numpy works them out, linear between two values."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    most: float


class Experience(msgspec.Struct, frozen=True):
    """What jobs have used; of what nothing is known there is no spread."""

    count: int  # jobs
    # ``part_of_estimate``: run time by estimate, of the jobs with an estimate above 0.
    run_ms: Quantiles | None = None
    part_of_estimate: Quantiles | None = None
    cpu: Quantiles | None = None
    memory_bytes: Quantiles | None = None
    read_bytes: Quantiles | None = None
    write_bytes: Quantiles | None = None


class Group(msgspec.Struct, frozen=True):
    """A user and a job class of which there is experience, and of how many jobs."""

    user: str | None
    job_class: str | None
    count: int


class Codec:
    """Structs of a tagged union, or of one kind, to bytes (MessagePack) and back; of Any, builtins.

    ``what`` they are called in an error.
    """

    def __init__(self, kind: Any, what: str) -> None:
        self._what = what
        self._types = frozenset() if kind is Any else frozenset(get_args(kind) or (kind,))
        try:
            self._decoder = msgspec.msgpack.Decoder(kind)
            self._many = msgspec.msgpack.Decoder(tuple[kind, ...])
        except TypeError as error:
            raise OptionError(f"{what}_type", f"is not a struct or a union of tagged structs: {error}") from error

    def encode(self, message: object) -> bytes:
        """Return a message as bytes; what could not be read back is refused."""
        return self._checked(message, (message,), self._decoder)[0]

    def encode_all(self, messages: tuple[Any, ...]) -> bytes:
        """Return several messages as bytes, as `encode`."""
        return self._checked(messages, messages, self._many)[0]

    def keep_all(self, messages: tuple[Any, ...]) -> tuple[bytes, tuple[Any, ...]]:
        """Return several messages as bytes, as `encode`, and as they will be read back.

        The two are equal, but not always alike: msgspec leaves out what *is* the default of a field, and a text or a
        number of the caller may only be equal to it.
        """
        encoded, decoded = self._checked(messages, messages, self._many)
        return encoded, tuple(decoded)

    def _checked(
        self, value: object, each: Iterable[object], decoder: msgspec.msgpack.Decoder[Any]
    ) -> tuple[bytes, Any]:
        if self._types:
            for message in each:
                if type(message) not in self._types:
                    raise InputError(f"{message!r:.100} is no {self._what} that this journal keeps")
        try:
            encoded = _ENCODER.encode(value)
            decoded = decoder.decode(encoded)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise InputError(f"{self._what} {value!r:.100} cannot be kept: {error}") from error
        return encoded, decoded

    def decode(self, data: bytes, where: str) -> Any:
        """Return a message from its bytes."""
        return self._read(data, where, self._decoder)

    def decode_all(self, data: bytes, where: str) -> tuple[Any, ...]:
        """Return several messages from their bytes, as `decode`."""
        messages: tuple[Any, ...] = self._read(data, where, self._many)
        return messages

    def _read(self, data: bytes, where: str, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
        try:
            return decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{where}: the {self._what} there cannot be read: {error}; is it another journal?"
            ) from error


_ENCODER = msgspec.msgpack.Encoder()


def digest(value: object) -> bytes:
    """Return a short digest of anything that can become MessagePack."""
    try:
        return hashlib.blake2b(_ENCODER.encode(value), digest_size=8).digest()
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{value!r:.100} cannot be kept: {error}") from error


def identity_bytes(identity: object) -> bytes:
    """Return from what a core was made as the journal keeps it."""
    return _ENCODER.encode(identity)


def kept_settings(kept: bytes) -> Any:
    """Return from what a core was made, as plain values; InputError if what was kept is damaged."""
    try:
        return msgspec.msgpack.decode(kept)
    except msgspec.DecodeError as error:
        raise InputError(f"what was kept of the settings is damaged: {error}") from error


def identity_changes(kept: bytes, identity: object) -> list[Change]:
    """Return in what a core was made from something else; nothing, if it was not."""
    return list(settings_changes(kept_settings(kept), identity))


def refused_changes(kept: bytes, identity: object) -> list[str]:
    """Return which settings differ that may not change while a journal is used, each in one line."""
    try:
        changes = identity_changes(kept, identity)
    except InputError as error:
        return [str(error)]
    changeable: Changeable = getattr(identity, "changeable", {})
    return [change.text for change in changes if not change.is_allowed(changeable)]


def experience_of(jobs: Sequence[JobUsage]) -> Experience:
    """Return what jobs have used, all in all."""
    return Experience(
        count=len(jobs),
        run_ms=quantiles(used.run_ms for used in jobs),
        part_of_estimate=quantiles(used.run_ms / used.estimate_ms for used in jobs if used.estimate_ms > 0),
        cpu=quantiles(used.cpu for used in jobs),
        memory_bytes=quantiles(used.memory_bytes for used in jobs),
        read_bytes=quantiles(used.read_bytes for used in jobs),
        write_bytes=quantiles(used.write_bytes for used in jobs),
    )


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """Return how values are spread; None if there is none."""
    import numpy as np  # the gateway knows these records, and has no use for arrays

    # In order, so that the mean does not depend on the order in which they are given.
    known = np.sort(np.array([value for value in values if value is not None], np.float64))
    if not len(known):
        return None
    p10, p50, p90, p99 = np.quantile(known, (0.1, 0.5, 0.9, 0.99)).tolist()
    return Quantiles(len(known), float(known.mean()), p10, p50, p90, p99, float(known.max()))
