"""Compare settings with the settings in a journal, and apply the allowed changes (docs/journal.md)."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

Changeable = Mapping[str, tuple[Any, ...] | None]
"""Maps the path of a setting that may change, e.g. ``policy.order``, to its allowed values; None allows any value.

Paths have no list indexes. An entry covers all settings below its path.
"""

_ENCODER = msgspec.msgpack.Encoder()


class SettingsChanged(msgspec.Struct, frozen=True, tag="SettingsChanged"):
    """The operator has changed a core's settings; `settings` contains the complete new settings."""

    settings: dict[str, Any]  # in the form that `plain` returns


class Change(NamedTuple):
    """A setting that differs from its value in the journal, or that is unknown to this release."""

    path: str
    before: Any
    now: Any = msgspec.UNSET

    @property
    def text(self) -> str:
        """A one-line description of the change."""
        if self.now is msgspec.UNSET:
            return f"{self.path} is not known"
        return f"{self.path or 'it'} is {self.now!r:.100}, and was {self.before!r:.100}"

    def is_allowed(self, changeable: Changeable) -> bool:
        """Whether the setting may change from its old to its new value while a journal is in use."""
        entry = _named(self.path, changeable)
        if entry is None:
            return False
        values = changeable[entry]
        return values is None or (self.before in values and self.now in values)


def _named(path: str, changeable: Changeable) -> str | None:
    """Return the path of the entry that covers a setting, i.e. the setting's path or a parent of it, or None."""
    plain = re.sub(r"\[\d+\]", "", path)
    return next((name for name in changeable if plain == name or plain.startswith(f"{name}.")), None)


def plain(value: object) -> Any:
    """Convert settings to the form used in journals: dicts, lists, numbers and strings; NODEFAULT becomes None."""
    return None if value is msgspec.NODEFAULT else msgspec.msgpack.decode(_ENCODER.encode(value))


def settings_changes(kept: Any, now: Any, path: str = "") -> Iterator[Change]:
    """Yield the differences between the current settings and the plain settings from a journal.

    A field that is missing in the journal, e.g. because an older release wrote the journal, has its default.
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
    """Return a copy of settings in which each setting that may change has its value from a journal.

    Parameters
    ----------
    now : msgspec.Struct or dataclass
        The current settings.
    kept : dict
        The settings from a journal, in the form that `plain` returns; missing fields have their defaults.
    changeable : Changeable
        The settings that may change.
    path : str
        Path of `now` within the core's settings.

    Raises
    ------
    msgspec.ValidationError
        If a value from the journal has the wrong type.
    """
    if isinstance(now, tuple):
        pairs = zip(now, kept, strict=True) if isinstance(kept, list) and len(kept) == len(now) else ()
        return typing.cast("T", tuple(settings_as(value, before, changeable, path) for value, before in pairs) or now)
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
    """Return the defaults of a settings object's fields by name; NODEFAULT for a field without a default."""
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
