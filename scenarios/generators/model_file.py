"""Learnt models as small files: JSON, compressed where the name ends with .gz or .xz."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, cast

import msgspec

from gridweave.errors import InputError
from gridweave.scenarios.generators.registry import GENERATORS, Model, kind_of
from gridweave.scenarios.traces.text import open_trace, write_file

FORMAT = "gridweave-workload-model"
VERSION = 1

# A model of a year of jobs has some tens of kilobytes; a file that unpacks to more than this is not one.
MAX_BYTES = 1 << 26

_SHIPPED_SUFFIX = ".json.gz"


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands around every model, whatever its kind."""

    format: str
    version: int
    kind: str
    model: msgspec.Raw


def save_model(model: Model, path: str | Path) -> None:
    """Write a model to a file, whole or not at all.

    Parameters
    ----------
    model : Model
        Of one of the kinds in `gridweave.scenarios.generators.registry.GENERATORS`.
    path : str or pathlib.Path
        The file; one that is there is replaced. The suffixes ``.gz`` and ``.xz`` compress it. Equal models give equal
        bytes.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    body = msgspec.json.encode(model)
    data = msgspec.json.encode(_Envelope(FORMAT, VERSION, kind_of(model), msgspec.Raw(body)))
    write_file(path, lambda stream: stream.write(data + b"\n"))


def load_model(source: str | Path) -> Model:
    """Load a model: one that comes with gridweave, by its name, or one from a file.

    Parameters
    ----------
    source : str or pathlib.Path
        A name out of `model_names`, or a file that `save_model` wrote. A `pathlib.Path` is always a file; a text is a
        name first.

    Raises
    ------
    InputError
        If there is no such model, or the file is damaged, of another version, or no model file.
    """
    if isinstance(source, str):
        entry = GENERATORS.get(source)
        if entry is not None and entry.default is not None:
            model: Model = entry.default()
            return model
        if source in _shipped():
            with importlib.resources.as_file(_shipped()[source]) as path:
                return _read(path)
    try:
        is_file = Path(source).is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        known = ", ".join(model_names())
        raise InputError(f"{source}: there is no such file, and no such model; known by name are {known}")
    return _read(Path(source))


def model_names() -> list[str]:
    """Return the names of the models that need no file.

    Returns
    -------
    list of str
        Those that come with gridweave and those that are not learnt, in alphabetical order.
    """
    return sorted({*_shipped(), *(name for name, entry in GENERATORS.items() if entry.default is not None)})


def _shipped() -> dict[str, Traversable]:
    """Return the model files of the package by their names."""
    folder = importlib.resources.files("gridweave.scenarios") / "data"
    return {
        entry.name.removesuffix(_SHIPPED_SUFFIX): entry
        for entry in folder.iterdir()
        if entry.name.endswith(_SHIPPED_SUFFIX)
    }


def _read(path: Path) -> Model:
    with open_trace(path) as stream:
        data = _limited(stream, path)
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not a model file, or is damaged: {_one_line(error)}") from None
    if envelope.format != FORMAT:
        raise InputError(f"{path}: is not a model file: its format is not {FORMAT!r}")
    if envelope.version != VERSION:
        raise InputError(f"{path}: is of version {envelope.version}; this gridweave reads version {VERSION}")
    if envelope.kind not in GENERATORS:
        raise InputError(f"{path}: is of an unknown kind; known are {', '.join(GENERATORS)}")
    try:
        model = msgspec.json.decode(envelope.model, type=GENERATORS[envelope.kind].model_type)
    except (msgspec.DecodeError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: the {envelope.kind} model in it is damaged: {_one_line(error)}") from None
    return cast("Model", model)


def _limited(stream: IO[bytes], path: Path) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large for a model file, which has {MAX_BYTES} bytes at most")
    return data


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
