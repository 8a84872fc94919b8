"""The workload models by name, and learnt ones as small files: JSON, compressed where the name ends with .gz or .xz.

Adding a kind of model adds an entry here and touches nothing else.
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

# A model of a year of jobs has some tens of kilobytes; a file that unpacks to more than this is not one.
MAX_BYTES = 1 << 26

_SHIPPED_SUFFIX = ".json.gz"


class Model(Protocol):
    """What is common to all models: a `msgspec.Struct` with these fields."""

    @property
    def name(self) -> str:
        """What it was learnt from, or its own name."""

    @property
    def nodes(self) -> int:
        """Nodes of the machine."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of workload model.

    Parameters
    ----------
    model_type : type
        The model: a frozen `msgspec.Struct` that satisfies `Model`.
    generate : callable
        ``generate(model, jobs, rng, **scaling)`` returns a `Workload`; see
        `gridweave.scenarios.generators.common.Scaling`.
    learn : callable, optional
        ``learn(workload, *, nodes=None, **options)`` returns a model. None if the model is not learnt from a trace.
    learn_options : tuple of str
        Names of the further options that `learn` takes, all strings.
    default : callable, optional
        Returns a model that needs no file, known under the name of this entry.
    settings : mapping from str to callable
        Parameters that one may set before generating: ``set(model, value)`` returns the model with this value.
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
    """Return the name of the entry that a model belongs to: the first of those with its type."""
    for name, entry in GENERATORS.items():
        if isinstance(model, entry.model_type):
            return name
    raise TypeError(f"{type(model).__name__} is not a workload model of GENERATORS")


def with_settings(model: Model, settings: Mapping[str, float]) -> Model:
    """Return a model with some of its parameters set.

    Parameters
    ----------
    settings : mapping from str to float
        Parameters out of the ``settings`` of its kind, and their values.

    Raises
    ------
    OptionError
        If models of this kind have no such parameter, or the value is out of its bounds.
    """
    known = GENERATORS[kind_of(model)].settings
    for name, value in settings.items():
        if name not in known:
            raise OptionError(name, f"a {kind_of(model)} model has no such parameter; leave it out")
        model = known[name](model, value)
    return model


def generate(model: Model, jobs: int, rng: np.random.Generator, **scaling: Unpack[Scaling]) -> Workload:
    """Generate a workload from a model of any kind.

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    **scaling
        As of `gridweave.scenarios.generators.common.Scaling`.

    Raises
    ------
    OptionError
        If an argument is out of its bounds.
    """
    return GENERATORS[kind_of(model)].generate(model, jobs, rng, **scaling)


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
        Of one of the kinds in `GENERATORS`.
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
    """Load a model: one that comes with gridweave, by its name out of `model_names`, or one that `save_model` wrote.

    A `pathlib.Path` is always a file; a text is a name first. InputError if there is no such model, or the file is
    damaged, of another version, or no model file.
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
        raise InputError(f"{source}: there is no such file, and no such model; known models are {known}")
    return _read(Path(source))


def model_names() -> list[str]:
    """Return the names, in order, of the models that need no file: they come with gridweave or are not learnt."""
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
        raise InputError(f"{path}: is not a model file, or is damaged: {one_line(error)}") from None
    if envelope.format != FORMAT:
        raise InputError(f"{path}: is not a model file: its format is not {FORMAT!r}")
    if envelope.version != VERSION:
        raise InputError(f"{path}: is of version {envelope.version}; this gridweave reads version {VERSION}")
    if envelope.kind not in GENERATORS:
        raise InputError(f"{path}: is of an unknown kind; there are {', '.join(GENERATORS)}")
    try:
        model = msgspec.json.decode(envelope.model, type=GENERATORS[envelope.kind].model_type)
    except (msgspec.DecodeError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: the {envelope.kind} model in it is damaged: {one_line(error)}") from None
    return cast("Model", model)


def _limited(stream: IO[bytes], path: Path) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: is too large for a model file, which has {MAX_BYTES} bytes at most")
    return data
