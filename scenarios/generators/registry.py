"""The workload models by name. Adding one adds an entry here and touches nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.generators.histogram import HistogramModel, generate_histogram, learn_histogram
from gridweave.scenarios.generators.hyper_erlang import HyperErlangModel, generate_hyper_erlang, learn_hyper_erlang
from gridweave.scenarios.generators.lublin import LublinModel, generate_lublin, lublin_model, with_alpha
from gridweave.scenarios.workload.table import Workload


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
        ``generate(model, jobs, rng, *, nodes=None, load=None, run_factor=1.0, interarrival_factor=1.0)`` returns a
        `Workload`; see `gridweave.scenarios.generators.histogram.generate_histogram`.
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


def generate(
    model: Model,
    jobs: int,
    rng: np.random.Generator,
    *,
    nodes: int | None = None,
    load: float | None = None,
    run_factor: float = 1.0,
    interarrival_factor: float = 1.0,
) -> Workload:
    """Generate a workload from a model of any kind.

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    nodes : int, optional
        Size of the machine; that of the model if left out. Jobs that are wider do not occur.
    load : float, optional
        Offered load before the two factors, > 0.
    run_factor, interarrival_factor : float
        Run times and estimates, and interarrival times, are multiplied by them; > 0.

    Raises
    ------
    OptionError
        If an argument is out of its bounds.
    """
    return GENERATORS[kind_of(model)].generate(
        model, jobs, rng, nodes=nodes, load=load, run_factor=run_factor, interarrival_factor=interarrival_factor
    )
