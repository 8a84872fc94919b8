"""Settings that may change while a journal is used: which they are, and how a core takes them (docs/journal.md)."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

Changeable = Mapping[str, tuple[Any, ...] | None]
"""The settings that may change: path without indexes, e.g. ``policy.order``, to allowed values; None allows any."""

_ENCODER = msgspec.msgpack.Encoder()


class SettingsChanged(msgspec.Struct, frozen=True, tag="SettingsChanged"):
    """The operator has changed settings of a core: of all that may change, these are the values from now on."""

    settings: dict[str, Any]  # as the journal keeps what a core was made from


class Change(NamedTuple):
    """A setting that has another value than was kept, or that this release does not know."""

    path: str
    before: Any
    now: Any = msgspec.UNSET

    @property
    def text(self) -> str:
        """The change in one line."""
        if self.now is msgspec.UNSET:
            return f"{self.path} is not known"
        return f"{self.path or 'it'} is {self.now!r:.100}, and was {self.before!r:.100}"

    def is_allowed(self, changeable: Changeable) -> bool:
        """Return whether the setting may change in this way while a journal is used."""
        found = _named(self.path, changeable)
        if found is None:
            return False
        values = changeable[found]
        return values is None or (self.before in values and self.now in values)


def _named(path: str, changeable: Changeable) -> str | None:
    """Return which entry is about a setting: that of its own path, or of what it is a part of."""
    plain = re.sub(r"\[\d+\]", "", path)
    return next((name for name in changeable if plain == name or plain.startswith(f"{name}.")), None)


def plain(value: object) -> Any:
    """Return settings as a journal keeps them: as dicts, lists, numbers and texts."""
    return None if value is msgspec.NODEFAULT else msgspec.msgpack.decode(_ENCODER.encode(value))


def settings_changes(kept: Any, now: Any, path: str = "") -> Iterator[Change]:
    """Yield in what settings differ from plain ones that were kept.

    What was kept may be of an older release: a field that was not there had its default.
    """
    if isinstance(now, msgspec.Struct) and isinstance(kept, dict):
        left = kept | {}
        for name, default in _defaults(now).items():
            yield from settings_changes(left.pop(name, plain(default)), getattr(now, name), f"{path}.{name}".strip("."))
        yield from (Change(f"{path}.{more}".strip("."), value) for more, value in left.items())
    elif isinstance(now, tuple | list) and isinstance(kept, list) and len(now) == len(kept):
        for number, (before, value) in enumerate(zip(kept, now, strict=True)):
            yield from settings_changes(before, value, f"{path}[{number}]")
    elif (value := plain(now)) != kept:
        yield Change(path, kept, value)


def settings_as(now: T, kept: Any, changeable: Changeable, path: str = "") -> T:
    """Return settings in which all that may change is as it was kept.

    Parameters
    ----------
    now : msgspec.Struct or dataclass
        Settings.
    kept : dict
        Others, as `plain` returns them; what they do not say has its default.

    Raises
    ------
    msgspec.ValidationError
        If a value that was kept is of another type.
    """
    if isinstance(now, tuple):
        pairs = zip(now, kept, strict=True) if isinstance(kept, list) and len(kept) == len(now) else ()
        return typing.cast("T", tuple(settings_as(each, before, changeable, path) for each, before in pairs) or now)
    if (path and not any(name.startswith(f"{path}.") for name in changeable)) or now is None:
        return now
    kinds, values = typing.get_type_hints(type(now)), kept if isinstance(kept, dict) else {}
    taken = {}
    for name, default in _defaults(now).items():
        at = f"{path}.{name}".strip(".")
        if at in changeable:
            taken[name] = msgspec.convert(values[name], kinds[name]) if name in values else default
        else:
            taken[name] = settings_as(getattr(now, name), values.get(name), changeable, at)
    return type(now)(**taken)


def _defaults(settings: Any) -> dict[str, Any]:
    """Return the fields of settings, each with its default; NODEFAULT where there is none."""
    if isinstance(settings, msgspec.Struct):
        fields = msgspec.structs.fields(settings)
        return {
            field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            for field in fields
        }
    missing = dataclasses.MISSING
    return {
        field.name: msgspec.NODEFAULT if field.default is missing else field.default
        for field in dataclasses.fields(settings)
    }
