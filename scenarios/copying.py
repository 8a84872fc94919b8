"""How the frozen tables are copied and pickled, so that runs may go to other processes and come back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


class MadeAnew:
    """Base of a frozen dataclass whose copies are made from its fields, so that they are checked and frozen too.

    Read-only views of dictionaries cannot be pickled, and arrays forget in a pickle that they are read-only; what makes
    the object from plain fields sees to both.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how `copy` and `pickle` make the same object again."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return _made, (type(self), plain)


def _made(kind: type[Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)
