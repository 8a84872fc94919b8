"""`simulate` takes what `simulate_site` and `simulate_grid` take, and passes it on."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import numpy as np
import pytest

import gridweave
from gridweave import OptionError, SitePolicy, Workload, simulate, simulate_grid, simulate_site
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_chunks import GridSite
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.scenarios.batch.simulate import GridInputs, PolicyOptions, SiteInputs

# Names that are imported for types alone.
TYPES = {each.__name__: each for each in (GridNet, GridPolicy)} | {"GridSite": GridSite}


def jobs() -> Workload:
    """Return jobs of which one is wider than a site of four nodes."""
    rng = np.random.default_rng(7)
    run_ms = rng.integers(1, 100, 40)
    submit_ms = np.sort(rng.integers(0, 500, 40))
    return Workload(np.arange(40), submit_ms, rng.integers(1, 6, 40), run_ms + 20, run_ms)


@pytest.mark.parametrize(("function", "inputs"), [(simulate_site, SiteInputs), (simulate_grid, GridInputs)])
def test_the_typed_inputs_are_the_keyword_arguments(function: Any, inputs: Any) -> None:
    """With the same types, so that `simulate` is checked as strictly."""
    hints = get_type_hints(function, localns=TYPES)
    keywords = [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert {name: hints[name] for name in keywords} == get_type_hints(inputs, localns=TYPES)


def test_the_options_of_a_policy_are_its_fields() -> None:
    """A field of `SitePolicy` can be given to `simulate` itself."""
    assert set(PolicyOptions.__annotations__) == set(SitePolicy.__struct_fields__)


def test_a_policy_decides_what_is_simulated() -> None:
    """A `GridPolicy` makes a grid of the sites, any other policy one site."""
    of_grid = GridPolicy(mode="multi-site", overhead=0.2, lower_bound=2)
    grid, same_grid = simulate(jobs(), [4, 4], of_grid), simulate_grid(jobs(), [4, 4], of_grid)
    assert grid.start_ms.tolist() == same_grid.start_ms.tolist()
    site, same_site = simulate(jobs(), 5, order="sjf"), simulate_site(jobs(), 5, SitePolicy(order="sjf"))
    assert site.start_ms.tolist() == same_site.start_ms.tolist()


@pytest.mark.parametrize(
    ("arguments", "inputs", "says"),
    [
        ((4,), {"home": [0] * 40}, "home: is not used by a site; leave it out, or give another policy"),
        (([4, 4], GridPolicy()), {"driver": "core"}, "driver: is not used by a grid; leave it out"),
        ((4, SitePolicy()), {"order": "sjf"}, "order: is part of the policy; set it there, or give no policy"),
        ((4,), {"cores": 2}, "cores: is not used by the discipline queue; leave it out"),
    ],
)
def test_an_input_without_effect_is_refused(arguments: Any, inputs: dict[str, Any], says: str) -> None:
    """By its name."""
    with pytest.raises(OptionError) as refused:
        gridweave.simulate(jobs(), *arguments, **inputs)
    assert says in str(refused.value)


def test_an_unknown_input_is_named() -> None:
    """As Python names an unknown keyword."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'nets'"):
        simulate(jobs(), 4, nets=None)  # type: ignore[call-arg]
