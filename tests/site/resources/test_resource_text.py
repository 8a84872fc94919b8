"""What people type for memory, GPUs and other resources, and what they read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError
from gridweave.site.resources.chunks import MAX_AMOUNT, Chunk, NodeKind
from gridweave.site.resources.text import chunk_text, kind_text, memory_text, parse_gpus, parse_gres, parse_memory


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [("8GB", 8000), ("8 gb", 8000), ("8G", 8000), ("1GiB", 1074), ("1.5 TB", 1_500_000), ("1B", 1), ("1000001B", 2)],
)
def test_memory_is_counted_in_mb_rounded_up(text: str, memory_mb: int) -> None:
    assert parse_memory("--memory", text) == memory_mb


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-8GB", "'-8GB' is not an amount of data"),
        ("4096", "'4096' has no unit; write for example 4096MB"),
        ("0GB", "'0GB' must be more than 0"),
        ("8 GB/s", "is not an amount of data"),
        ("2000PB", "'2000PB' is too much; expected at most 1 PB"),
        ("", "is not an amount of data"),
    ],
)
def test_invalid_memory_is_refused_with_an_example(text: str, problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_memory("--memory", text)
    assert refused.value.option == "--memory"
    assert problem in refused.value.problem


@given(st.integers(1, MAX_AMOUNT))
def test_memory_is_shown_with_four_digits(memory_mb: int) -> None:
    assert parse_memory("--memory", memory_text(memory_mb)) == pytest.approx(memory_mb, rel=1e-3, abs=1)


@pytest.mark.parametrize(("value", "gpus"), [("4", (4, "")), (4, (4, "")), (0, (0, "")), ("a100:4", (4, "a100"))])
def test_gpus_are_a_number_with_or_without_a_type(value: str | int, gpus: tuple[int, str]) -> None:
    assert parse_gpus("--gpus", value) == gpus


@pytest.mark.parametrize("value", ["0.5", "-1", "a100", "a100:0", "a100:0.5", ":4", "", "a 100:4", "4:a100:4"])
def test_fractions_and_negative_numbers_of_gpus_are_refused(value: str) -> None:
    with pytest.raises(OptionError, match="is not a number of GPUs; expected a whole number such as 4"):
        parse_gpus("--gpus", value)


def test_other_resources_have_a_name_and_a_number() -> None:
    assert [parse_gres("--gres", text) for text in ("fpga:2", "fpga")] == [("fpga", 2), ("fpga", 1)]
    for text in ("fpga:-1", "fpga:1.5", ":2", "fpga:2:3", ""):
        with pytest.raises(OptionError, match="is not a resource; expected a name and a number such as fpga:2"):
            parse_gres("--gres", text)


def test_a_chunk_is_described_with_all_that_it_asks_for() -> None:
    chunk = Chunk(
        cores=4,
        memory_mb=8000,
        gpus=1,
        gpu_type="a100",
        others=(("fpga", 2),),
        labels=("ib", "ssd"),
        per_node=2,
        exclusive=True,
    )
    assert chunk_text(chunk) == (
        "4 cores, 8 GB, 1 a100 GPU, 2 fpga with ib and ssd, 2 per node, no other job on its nodes"
    )
    assert chunk_text(Chunk()) == "1 core"


def test_a_kind_of_nodes_is_described_with_all_that_it_has() -> None:
    kind = NodeKind(name="big", count=3, cores=128, memory_mb=2_000_000, gpus=8, others=(("fpga", 1),), labels=("ib",))
    assert kind_text(kind) == "128 cores, 2 TB, 8 GPUs, 1 fpga (ib)"
    assert kind_text(NodeKind(name="plain", count=1)) == "1 core"
