"""What is sent and kept, type by type: the tags of messages, and the names and types of their fields.

Run as a script, it writes `data/wire_format.json` anew, which shows what a change does to the wire and to journals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from gridweave.grid.messages import GridMessage, LiveGridCommand, LiveGridEvent
from gridweave.site.channel import Packet
from gridweave.site.job import Accepted, Declined, JobRecord
from gridweave.site.messages import LiveSiteCommand, LiveSiteEvent, Order, Report, SiteMessage

FILE = Path(__file__).with_name("data") / "wire_format.json"

# Of commands a digest is kept with the input that they answer.
EVENTS = (LiveSiteEvent, LiveGridEvent)
COMMANDS = (LiveSiteCommand, LiveGridCommand)
SENT = (SiteMessage, GridMessage, Order, Report, Packet)
KEPT = (Accepted | Declined, JobRecord)

# Values of a type, by the kind that msgspec finds.
_PLAIN = {
    inspect.AnyType: "any",
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
}


def name_of(cls: type[msgspec.Struct]) -> str:
    """Return by what a struct is known: its tag, which no renaming changes, or the name of its class."""
    return str(cls.__struct_config__.tag or cls.__name__)


def text_of(kind: inspect.Type) -> str:
    """Return a type as text."""
    match kind:
        case inspect.StructType(cls=cls):
            return name_of(cls)
        case inspect.UnionType(types=types):
            return " | ".join(sorted(map(text_of, types)))
        case inspect.LiteralType(values=values):
            return " | ".join(map(repr, values))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) | inspect.SetType(item_type=item):
            return f"[{text_of(item)}, ...]"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(map(text_of, items))}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{text_of(key)}: {text_of(value)}}}"
    return _PLAIN[type(kind)]


def structs_in(kind: inspect.Type, found: dict[str, inspect.StructType]) -> None:
    """Add the structs that a type is made of, and those that these are made of."""
    if isinstance(kind, inspect.StructType):
        name = name_of(kind.cls)
        if name in found:
            assert found[name].cls is kind.cls, f"{found[name].cls} and {kind.cls} are both known as {name}"
            return
        found[name] = kind
        parts = [field.type for field in kind.fields]
    else:
        parts = [getattr(kind, name) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
        parts += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    for part in parts:
        structs_in(part, found)


def written(*kinds: Any) -> dict[str, dict[str, str]]:
    """Return the fields of all structs that some types are made of, with their types and defaults."""
    found: dict[str, inspect.StructType] = {}
    for kind in kinds:
        structs_in(inspect.type_info(kind), found)
    return {name: _fields(found[name]) for name in sorted(found)}


def _fields(kind: inspect.StructType) -> dict[str, str]:
    fields = {} if kind.tag is None else {str(kind.tag_field): repr(kind.tag)}
    for field in kind.fields:
        default = "" if field.required else f" = {_default(field)}"
        fields[field.encode_name] = text_of(field.type) + default
    return fields


def _default(field: inspect.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        return json.dumps(msgspec.to_builtins(field.default))
    return json.dumps(msgspec.to_builtins(field.default_factory()))


def now() -> dict[str, dict[str, str]]:
    """Return what is sent and kept now."""
    return written(*EVENTS, *COMMANDS, *SENT, *KEPT)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(now(), indent=1) + "\n", encoding="utf-8")
