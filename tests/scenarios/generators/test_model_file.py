"""Files of learnt models, models by name, and the registry of kinds."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError
from gridweave.scenarios.generators import registry
from gridweave.scenarios.generators.histogram import HistogramModel, learn_histogram
from gridweave.scenarios.generators.registry import (
    GENERATORS,
    Generator,
    generate,
    kind_of,
    load_model,
    model_names,
    save_model,
)
from gridweave.scenarios.workload.table import Workload
from support.builders import workload_of_gaps


def shipped() -> HistogramModel:
    """Return the model that ships with gridweave."""
    model = load_model("ctc-sp2")
    assert isinstance(model, HistogramModel)
    return model


@pytest.mark.parametrize("name", ["m.json", "m.json.gz", "m.json.xz"])
def test_models_survive_a_file(tmp_path: Path, name: str) -> None:
    """Saving a loaded model gives the same bytes."""
    path, again = tmp_path / name, tmp_path / f"again-{name}"
    save_model(shipped(), path)
    assert load_model(path) == shipped()
    save_model(shipped(), again)
    assert path.read_bytes() == again.read_bytes()


def _spoilt(change: dict[str, object]) -> bytes:
    model = {**msgspec.json.decode(msgspec.json.encode(shipped())), **change}
    return msgspec.json.encode({"format": registry.FORMAT, "version": 1, "kind": "histogram", "model": model})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\x02",
        b"[1, 2]",
        b'{"format": "gridweave-workload-model"}',
        msgspec.json.encode({"format": "other", "version": 1, "kind": "histogram", "model": {}}),
        msgspec.json.encode({"format": registry.FORMAT, "version": 99, "kind": "histogram", "model": {}}),
        msgspec.json.encode({"format": registry.FORMAT, "version": 1, "kind": "oracle", "model": {}}),
        msgspec.json.encode({"format": registry.FORMAT, "version": 1, "kind": "histogram", "model": {}}),
        b"\x1f\x8b" + b"not gzip",
        _spoilt({"counts": [1]}),
        _spoilt({"counts": []}),
        _spoilt({"nodes": 10}),
        _spoilt({"nodes": 10**12}),
        _spoilt({"widths": [0] * len(shipped().widths)}),
        _spoilt({"widths": ["a"] * len(shipped().widths)}),
        _spoilt({"estimate_values": []}),
        _spoilt({"estimates": [-1000] * len(shipped().widths)}),
        _spoilt({"runs": [-3] * len(shipped().widths)}),
        _spoilt({"runs": [1000] * len(shipped().widths)}),
        _spoilt({"runs": [250] * len(shipped().widths)}),
        _spoilt({"counts": [1] * len(shipped().widths)}),
        _spoilt({"weibull": {"alpha": 0.0, "beta_ms": 1.0}}),
        _spoilt({"weibull": {"alpha": 0.5, "beta_ms": -1.0}}),
        _spoilt({"name": "two\nlines"}),
        _spoilt({"surprise": 1}),
    ],
)
def test_damaged_model_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_model(path)
    assert "bad.json" in str(error.value)
    assert "\n" not in str(error.value)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_damage_is_an_input_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    small = folder / "small.json.gz"
    save_model(learn_histogram(workload_of_gaps([(1, 1, 10, 5), (3, 2, 600, 600), (9, 4, 7, 2)])), small)
    packed = data.draw(st.booleans())
    content = bytearray(small.read_bytes() if packed else gzip.decompress(small.read_bytes()))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] = data.draw(st.integers(0, 255))
    path = folder / "damaged.json"
    path.write_bytes(bytes(content))
    try:
        made = generate(load_model(path), 50, np.random.default_rng(1))
    except InputError as error:
        message = str(error)
    else:
        message = f"{len(made)} jobs"
    assert message
    assert "\n" not in message


def test_a_file_that_unpacks_to_a_large_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.json.gz"
    path.write_bytes(gzip.compress(b" " * 5000))
    monkeypatch.setattr(registry, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match="too large"):
        load_model(path)


def test_an_unknown_name_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    """A path is never interpreted as a name."""
    assert "ctc-sp2" in model_names()
    for source in ("ctc", tmp_path, tmp_path / "none.json", Path("ctc-sp2"), "a\0b"):
        with pytest.raises(InputError, match="models are ctc-sp2"):
            load_model(source)


def test_a_model_cannot_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.json").mkdir()
    with pytest.raises(InputError):
        save_model(shipped(), tmp_path / "m.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.json"]


class FixedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that is not learnt: jobs of one node, one per second."""

    name: str = "fixed"
    nodes: int = 4


def _generate_fixed(model: FixedModel, jobs: int, rng: np.random.Generator, **options: float | None) -> Workload:
    return workload_of_gaps([(1, 1, 10, 5)] * jobs, nodes=model.nodes)


def test_a_new_kind_of_model_needs_one_registry_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATORS, "fixed", Generator(FixedModel, _generate_fixed, default=FixedModel))
    assert "fixed" in model_names()
    model = load_model("fixed")
    assert kind_of(model) == "fixed"
    assert len(generate(model, 7, np.random.default_rng(1))) == 7
    save_model(FixedModel(nodes=9), tmp_path / "f.json")
    assert load_model(tmp_path / "f.json") == FixedModel(nodes=9)


def test_an_unregistered_model_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="FixedModel"):
        kind_of(FixedModel())
