"""The wire format: tags of messages and states, names and types of their fields, and types of their arrays.

Run as a script, it rewrites `tests/data/wire_format.json`, whose diff shows how a change affects messages and journals.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np
from msgspec import inspect

from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import PREFETCH
from gridweave.grid.messages import LiveGridCommand, LiveGridEvent
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.channel import Packet
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Accepted, Declined, JobRecord
from gridweave.site.known_times import KnownTimes
from gridweave.site.messages import GridMessage, LiveSiteCommand, LiveSiteEvent, Machine, Order, Report, SiteMessage
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import ArrayState

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.builders import drawn_model

FILE = Path(__file__).parents[1] / "tests" / "data" / "wire_format.json"

# Journals keep a digest of the commands with the input that led to them.
EVENTS = (LiveSiteEvent, LiveGridEvent)
COMMANDS = (LiveSiteCommand, LiveGridCommand)
SENT = (SiteMessage, GridMessage, Order, Report, Packet)
KEPT = (Accepted | Declined, JobRecord)
# The data in `DisciplineEdited`, which only a discipline that learns understands.
EDITS = (list[KnownTimes],)

# Policies for cores of every kind of discipline and every level of control, to cover all arrays.
SITES = (SitePolicy(), SitePolicy(discipline="planning"), SharedNodes())
GRIDS = (GridPolicy(backfill="conservative"), GridPolicy(control="limited"), GridPolicy(control="none"))

# Names of plain types, by the class with which msgspec describes them.
_PLAIN = {
    inspect.AnyType: "any",
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
}


_RECORDS = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType


def name_of(cls: Any) -> str:
    """Return the name of a record: its tag, which does not change if the class is renamed, or else its class name."""
    plain = get_origin(cls) or cls
    return str((issubclass(plain, msgspec.Struct) and plain.__struct_config__.tag) or plain.__name__)


def text_of(kind: inspect.Type) -> str:
    """Format a type as text."""
    match kind:
        case inspect.StructType(cls=cls) | inspect.DataclassType(cls=cls) | inspect.NamedTupleType(cls=cls):
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


def structs_in(kind: inspect.Type, found: dict[str, Any]) -> None:
    """Add all records that a type contains, directly or indirectly, to `found`."""
    if isinstance(kind, _RECORDS):
        name = name_of(kind.cls)
        if name in found:
            same = [get_origin(each.cls) or each.cls for each in (found[name], kind)]
            assert same[0] is same[1], f"{same[0]} and {same[1]} are both known as {name}"
            return
        found[name] = kind
        parts = [field.type for field in kind.fields]
    else:
        parts = [getattr(kind, name) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
        parts += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
    for part in parts:
        structs_in(part, found)


def written(*kinds: Any) -> dict[str, dict[str, str]]:
    """Return the fields of all records that the types contain, with their types and defaults."""
    found: dict[str, Any] = {}
    for kind in kinds:
        structs_in(inspect.type_info(kind), found)
    return {name: _fields(found[name]) for name in sorted(found)}


def _fields(kind: Any) -> dict[str, str]:
    fields = {} if getattr(kind, "tag", None) is None else {str(kind.tag_field): repr(kind.tag)}
    for field in kind.fields:
        default = "" if field.required else f" = {_default(field)}"
        fields[field.encode_name] = text_of(field.type) + default
    return fields


def _default(field: inspect.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        return json.dumps(msgspec.to_builtins(field.default))
    if field.default_factory is msgspec.NODEFAULT:  # an optional field that is left out if it is not set
        return "UNSET"
    return json.dumps(msgspec.to_builtins(field.default_factory()))


def arrays_in(state: Any, found: dict[str, dict[str, str]]) -> None:
    """Add the arrays of a state and of its nested states to `found`, with their types."""
    for name in state.__struct_fields__:
        value = getattr(state, name)
        if isinstance(value, msgspec.Struct):
            arrays_in(value, found)
        elif isinstance(value, dict) and any(isinstance(each, ArrayState) for each in value.values()):
            listed = found.setdefault(f"{name_of(type(state))}.{name}", {})
            listed |= {array: each.dtype for array, each in value.items()}


def now() -> dict[str, Any]:
    """Return the present wire format."""
    network = drawn_network(2)
    machines = (Machine(name="n0", nodes=2),)
    cores = [LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=policy)) for policy in SITES]
    sites = (("north", 2), ("south", 2))
    grids = [LiveGrid(GridSettings(sites=sites, policy=policy, network=network)) for policy in GRIDS]
    states: list[Any] = [core.state_type for core in (*cores, *grids)]
    arrays: dict[str, dict[str, str]] = {}
    for core in (*cores, *grids):
        arrays_in(core.state(), arrays)
    return {
        "messages": written(*EVENTS, *COMMANDS, *SENT, *KEPT, *EDITS),
        "states": written(*states),
        "arrays": dict(sorted(arrays.items())),
    }


def drawn_network(sites: int) -> GridNetwork:
    """Draw a network between sites."""
    model = drawn_model(np.random.default_rng(1), sites)
    return GridNetwork(model, earliest_end=True, staging=int(PREFETCH), exact_up_to=100)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(now(), indent=1) + "\n", encoding="utf-8")
