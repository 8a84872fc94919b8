"""A journal's records, and the encoding of events and messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.settings import Change, Changeable, settings_changes


class Input(msgspec.Struct, frozen=True):
    """The events passed to one call of a core's ``handle``."""

    sequence: int  # counts the calls from 1, without gaps
    now_ms: int
    events: tuple[Any, ...]
    decided: bytes | None = None  # a digest of the commands that the core returned


class ChannelState(msgspec.Struct, frozen=True):
    """The state from which one end of a channel continues after a failure (`gridweave.site.channel`)."""

    # Number of the first unacknowledged message, or of the next message to send if all are acknowledged.
    first: int = 0
    unacknowledged: tuple[Any, ...] = ()
    received: int = 0  # number of messages from the other end that have been applied
    other: str = ""  # id of the other end's journal; empty until it is known


class KeptAnswer(msgspec.Struct, frozen=True):
    """The first answer to a submission with an idempotency key."""

    key: str
    job_id: int
    at_ms: int
    answer: Any  # repeated submissions get the same answer


class Note(msgspec.Struct, frozen=True):
    """One event in a job's history."""

    job_id: int
    at_ms: int
    kind: str  # ``submitted``, ``waits``, ``held``, ``started``, ``ended``, ``retried``, ...
    detail: str = ""  # a readable sentence


class NumberedNote(msgspec.Struct, frozen=True):
    """A `Note` with its number among all jobs' history events."""

    number: int
    job_id: int
    at_ms: int
    kind: str
    detail: str = ""


class JobUsage(msgspec.Struct, frozen=True, kw_only=True):
    """An ended job's resource use."""

    job_id: int
    # Numbers are stored as text.
    user: str | int | None = None
    job_class: str | int | None = None
    at_ms: int  # when the job ended
    width: int  # nodes
    estimate_ms: int
    run_ms: int
    cpu: float | None = None  # fraction of its CPU time during which the job was computing
    memory_bytes: int | None = None  # peak on one node
    read_bytes: int | None = None
    write_bytes: int | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """The distribution of some values; quantiles are interpolated linearly, as in numpy by default."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    most: float


class Experience(msgspec.Struct, frozen=True):
    """The resource use of a group of jobs; a field is None if there is no data."""

    count: int  # jobs
    # ``part_of_estimate`` is run time divided by estimate, for jobs with an estimate above 0.
    run_ms: Quantiles | None = None
    part_of_estimate: Quantiles | None = None
    cpu: Quantiles | None = None
    memory_bytes: Quantiles | None = None
    read_bytes: Quantiles | None = None
    write_bytes: Quantiles | None = None


class Group(msgspec.Struct, frozen=True):
    """A user and job class, with the number of recorded jobs."""

    user: str | None
    job_class: str | None
    count: int


class Codec:
    """Encode structs of a type or tagged union as MessagePack, and decode them; the type Any decodes to builtins.

    ``what`` names the structs in error messages.
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
        """Encode a message; raise InputError if it cannot be decoded again."""
        return self._checked(message, (message,), self._decoder)[0]

    def encode_all(self, messages: tuple[Any, ...]) -> bytes:
        """Encode several messages together, with the check of `encode`."""
        return self._checked(messages, messages, self._many)[0]

    def keep_all(self, messages: tuple[Any, ...]) -> tuple[bytes, tuple[Any, ...]]:
        """Encode several messages; return the bytes and the messages decoded from the bytes.

        Use only the decoded messages afterwards: msgspec omits a field only if its value *is* the default object, so a
        message with an equal but different object may be encoded differently from its decoded copy.
        """
        encoded, decoded = self._checked(messages, messages, self._many)
        return encoded, tuple(decoded)

    def _checked(
        self, value: object, messages: Iterable[object], decoder: msgspec.msgpack.Decoder[Any]
    ) -> tuple[bytes, Any]:
        if self._types:
            for message in messages:
                if type(message) not in self._types:
                    raise InputError(f"{message!r:.100} is not of this journal's {self._what} type")
        try:
            encoded = _ENCODER.encode(value)
            decoded = decoder.decode(encoded)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise InputError(f"{self._what} {value!r:.100} cannot be stored: {error}") from error
        return encoded, decoded

    def decode(self, data: bytes, where: str) -> Any:
        """Decode a message; ``where`` names its location in error messages."""
        return self._read(data, where, self._decoder)

    def decode_all(self, data: bytes, where: str) -> tuple[Any, ...]:
        """Decode several messages that were encoded together."""
        messages: tuple[Any, ...] = self._read(data, where, self._many)
        return messages

    def _read(self, data: bytes, where: str, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
        try:
            return decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{where}: the {self._what} cannot be read: {error}; is this the right journal?"
            ) from error


_ENCODER = msgspec.msgpack.Encoder()


def digest(value: object) -> bytes:
    """Return an 8-byte digest of a value's MessagePack encoding."""
    try:
        return hashlib.blake2b(_ENCODER.encode(value), digest_size=8).digest()
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{value!r:.100} cannot be stored: {error}") from error


def identity_bytes(identity: object) -> bytes:
    """Encode the settings from which a core is created."""
    return _ENCODER.encode(identity)


def kept_settings(kept: bytes) -> Any:
    """Decode the settings from which a core was created, as builtins; raise InputError if they are damaged."""
    try:
        return msgspec.msgpack.decode(kept)
    except msgspec.DecodeError as error:
        raise InputError(f"the recorded settings are damaged: {error}") from error


def identity_changes(kept: bytes, identity: object) -> list[Change]:
    """Return the differences between the recorded settings and ``identity``."""
    return list(settings_changes(kept_settings(kept), identity))


def refused_changes(kept: bytes, identity: object) -> list[str]:
    """Return the changes to settings that are forbidden while the journal is in use, one line each."""
    try:
        changes = identity_changes(kept, identity)
    except InputError as error:
        return [str(error)]
    changeable: Changeable = getattr(identity, "changeable", {})
    return [change.text for change in changes if not change.is_allowed(changeable)]


def experience_of(jobs: Sequence[JobUsage]) -> Experience:
    """Summarize the resource use of some jobs."""
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
    """Return the distribution of the values that are not None; None if there are no such values."""
    import numpy as np  # imported here because the gateway loads this module and needs no arrays

    # Sort first, so that the rounding of the mean does not depend on the order of the values.
    sorted_values = np.sort(np.array([value for value in values if value is not None], np.float64))
    if not len(sorted_values):
        return None
    p10, p50, p90, p99 = np.quantile(sorted_values, (0.1, 0.5, 0.9, 0.99)).tolist()
    return Quantiles(len(sorted_values), float(sorted_values.mean()), p10, p50, p90, p99, float(sorted_values.max()))
