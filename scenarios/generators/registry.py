"""Registry of workload models, and files of fitted models: JSON, compressed if the file name ends in .gz or .xz.

To add a new kind of model, add an entry to `GENERATORS`.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any, Protocol, Unpack, cast

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.generators.common import Scaling
from gridweave.scenarios.generators.histogram import HistogramModel, generate_histogram, learn_histogram
from gridweave.scenarios.generators.hyper_erlang import HyperErlangModel, generate_hyper_erlang, learn_hyper_erlang
from gridweave.scenarios.generators.lublin import LublinModel, generate_lublin, lublin_model, with_alpha
from gridweave.scenarios.traces.text import one_line, open_trace, write_file
from gridweave.scenarios.workload.table import Workload

FORMAT = "gridweave-workload-model"
VERSION = 1

# A model of a year of jobs takes tens of kilobytes; a file above this limit is not a model.
MAX_BYTES = 1 << 26

_SHIPPED_SUFFIX = ".json.gz"


class Model(Protocol):
    """Fields that every model, a `msgspec.Struct`, must have."""

    @property
    def name(self) -> str:
        """Name of the workload to which the model was fitted, or the model's own name."""

    @property
    def nodes(self) -> int:
        """Number of nodes of the machine."""


@dataclass(frozen=True, slots=True)
class Generator:
    """An entry of the registry: one kind of workload model.

    Parameters
    ----------
    model_type : type
        Class of the model: a frozen `msgspec.Struct` that satisfies `Model`.
    generate : callable
        ``generate(model, jobs, rng, **scaling)`` returns a `Workload`; see
        `gridweave.scenarios.generators.common.Scaling`.
    learn : callable, optional
        ``learn(workload, *, nodes=None, **options)`` returns a model. None if models are not fitted to traces.
    learn_options : tuple of str
        Names of the options of `learn`, all strings.
    default : callable, optional
        Returns a model without reading a file; the model has the name of this entry.
    settings : mapping from str to callable
        Parameters that can be set before generating: ``set(model, value)`` returns the changed model.
    """

    model_type: type[msgspec.Struct]
    generate: Callable[..., Workload]
    learn: Callable[..., Any] | None = None
    learn_options: tuple[str, ...] = ()
    default: Callable[[], Any] | None = None
    settings: Mapping[str, Callable[[Any, float], Any]] = field(default_factory=dict)


GENERATORS: dict[str, Generator] = {
    "histogram": Generator(HistogramModel, generate_histogram, learn_histogram, ("weibull",)),
    "hyper-erlang": Generator(HyperErlangModel, generate_hyper_erlang, learn_hyper_erlang),
    **{
        name: Generator(
            LublinModel, generate_lublin, default=partial(lublin_model, kind), settings={"alpha": with_alpha}
        )
        for name, kind in (
            ("lublin", "whole"),
            ("lublin-batch", "batch"),
            ("lublin-interactive", "interactive"),
            ("lublin-types", "types"),
        )
    },
}


def kind_of(model: Model) -> str:
    """Return the name of the first registry entry for a model's type."""
    for name, entry in GENERATORS.items():
        if isinstance(model, entry.model_type):
            return name
    raise TypeError(f"{type(model).__name__} is not a workload model of GENERATORS")


def with_settings(model: Model, settings: Mapping[str, float]) -> Model:
    """Return a model with some parameters changed.

    Parameters
    ----------
    settings : mapping from str to float
        Parameter values by name; each name must be in the ``settings`` of the model's registry entry.

    Raises
    ------
    OptionError
        If the model has no such parameter, or a value is out of range.
    """
    setters = GENERATORS[kind_of(model)].settings
    for name, value in settings.items():
        if name not in setters:
            raise OptionError(name, f"a {kind_of(model)} model has no such parameter; leave it out")
        model = setters[name](model, value)
    return model


def generate(model: Model, jobs: int, rng: np.random.Generator, **scaling: Unpack[Scaling]) -> Workload:
    """Generate a workload from a model of any kind.

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    **scaling
        See `gridweave.scenarios.generators.common.Scaling`.

    Raises
    ------
    OptionError
        If an argument is out of range.
    """
    return GENERATORS[kind_of(model)].generate(model, jobs, rng, **scaling)


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outer structure of a model file, the same for all kinds."""

    format: str
    version: int
    kind: str
    model: msgspec.Raw


def save_model(model: Model, path: str | Path) -> None:
    """Write a model to a file, atomically.

    Parameters
    ----------
    model : Model
        The model; its type must be in `GENERATORS`.
    path : str or pathlib.Path
        An existing file is replaced. The suffixes ``.gz`` and ``.xz`` compress the file. Equal models give equal bytes.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    body = msgspec.json.encode(model)
    data = msgspec.json.encode(_Envelope(FORMAT, VERSION, kind_of(model), msgspec.Raw(body)))
    write_file(path, lambda stream: stream.write(data + b"\n"))


def load_model(source: str | Path) -> Model:
    """Load a model, given a name from `model_names` or a file written by `save_model`.

    A string is tried as a name first; a `pathlib.Path` is always a file. Raise InputError if there is no such model, or
    the file is damaged, has another version, or is not a model file.
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
        names = ", ".join(model_names())
        raise InputError(f"{source}: there is no such file or model; models are {names}")
    return _read(Path(source))


def model_names() -> list[str]:
    """Return the sorted names of the models that can be loaded by name."""
    return sorted({*_shipped(), *(name for name, entry in GENERATORS.items() if entry.default is not None)})


def _shipped() -> dict[str, Traversable]:
    """Return the model files that ship with the package, by model name."""
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
        raise InputError(f"{path}: is not a model file, or is damaged: {one_line(error)}") from None
    if envelope.format != FORMAT:
        raise InputError(f"{path}: is not a model file: its format is not {FORMAT!r}")
    if envelope.version != VERSION:
        raise InputError(f"{path}: has version {envelope.version}; this gridweave reads version {VERSION}")
    if envelope.kind not in GENERATORS:
        raise InputError(f"{path}: has an unknown kind; kinds are {', '.join(GENERATORS)}")
    try:
        model = msgspec.json.decode(envelope.model, type=GENERATORS[envelope.kind].model_type)
    except (msgspec.DecodeError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: the {envelope.kind} model in it is damaged: {one_line(error)}") from None
    return cast("Model", model)


def _limited(stream: IO[bytes], path: Path) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large for a model file; the limit is {MAX_BYTES} bytes")
    return data
