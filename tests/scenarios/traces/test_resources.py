"""Resources of jobs: the mixes of LOMARC, and files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.traces.resources import read_resources, write_resources
from gridweave.scenarios.workload.columns import (
    CACHE_BYTES,
    CPU_FLOAT,
    MIXES,
    RESOURCE_COLUMNS,
    ResourceMix,
    assign_resources,
    mix_named,
)
from gridweave.scenarios.workload.table import Workload

TIME_COLUMNS = ("cpu_fraction", "network_fraction", "disk_fraction")
HEADER = "job_id,cpu_fraction,network_fraction,disk_fraction,memory_fraction"


def jobs(n: int, *, first_id: int = 0) -> Workload:
    """Return jobs that differ only in their ids."""
    return Workload(
        job_id=np.arange(first_id, first_id + n),
        submit_ms=np.arange(n) * 1000,
        width=np.ones(n),
        estimate_ms=np.full(n, 1000),
        run_ms=np.full(n, 1000),
        columns={"user": np.arange(n)},
        name="jobs",
    )


def shares(workload: Workload) -> list[float]:
    """Return the shares of jobs that spend most time on CPU, network and disk."""
    largest = np.argmax([workload.columns[name] for name in TIME_COLUMNS], axis=0)
    return (np.bincount(largest, minlength=3) / len(workload)).tolist()


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_has_the_published_shares(name: str) -> None:
    mix = MIXES[name]
    drawn = assign_resources(jobs(100_000), name, np.random.default_rng(1))
    # Four standard deviations of a share of 100,000 draws are 0.0063 at most.
    assert shares(drawn) == pytest.approx([mix.cpu, mix.network, mix.disk], abs=0.0063)
    assert drawn.columns["user"].tolist() == list(range(100_000))


def test_the_named_mixes_are_the_published_ones() -> None:
    """Percentages mean the same."""
    assert MIXES["M1"] == ResourceMix(0.4, 0.3, 0.3) == mix_named("40/30/30")
    assert MIXES["M2"] == ResourceMix(0.4, 0.1, 0.5) == mix_named("40/10/50")
    assert MIXES["M3"] == ResourceMix(0.3, 0.5, 0.2) == mix_named("m3")


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 300),
    cpu=st.integers(0, 100),
    part=st.floats(0, 1),
    well=st.floats(0, 1),
)
def test_drawn_fractions_are_in_the_published_ranges(seed: int, n: int, cpu: int, part: float, well: float) -> None:
    """They sum to 1."""
    network = int((100 - cpu) * part)
    mix = ResourceMix(cpu / 100, network / 100, (100 - cpu - network) / 100)
    columns = assign_resources(jobs(n), mix, np.random.default_rng(seed), cpu_well=well).columns
    cpu_, network_, disk_ = (columns[name].astype(np.float64) for name in TIME_COLUMNS)
    assert np.allclose(cpu_ + network_ + disk_, 1, rtol=0, atol=1e-12)
    bound = np.argmax([cpu_, network_, disk_], axis=0) if n else np.zeros(0)
    for number, own, second, ranges in (
        (0, cpu_, disk_, ((0.5, 0.9), (0.05, 0.4), (0.6, 0.95))),
        (1, network_, disk_, ((0.4, 0.65), (0.05, 0.4), (0.5, 0.8))),
        (2, disk_, network_, ((0.4, 0.65), (0.05, 0.4), (0.5, 0.8))),
    ):
        rows = bound == number
        for values, (low, high) in zip((own, second, own + second), ranges, strict=True):
            assert ((values[rows] >= low) & (values[rows] < high)).all()
    memory = columns["memory_fraction"].astype(np.float64)
    assert ((memory >= 0.05) & (memory <= 1)).all()
    assert set(columns["cpu_kind"].tolist()) <= {0, 1}
    assert set(columns["cache_bytes"].tolist()) <= set(CACHE_BYTES)


def test_fractions_are_uniform_in_the_allowed_region() -> None:
    drawn = assign_resources(jobs(100_000), "100/0/0", np.random.default_rng(2)).columns
    cpu, disk = drawn["cpu_fraction"].astype(np.float64), drawn["disk_fraction"].astype(np.float64)
    # The region: the rectangle [0.5, 0.9) x [0.05, 0.4) without the corner below 0.6 and the one above 0.95.
    area = 0.4 * 0.35 - 0.05**2 / 2 - 0.35**2 / 2
    assert np.mean((cpu < 0.55) & (disk >= 0.1)) == pytest.approx(0.05 * 0.3 / area, abs=0.0063)
    assert np.mean((cpu >= 0.7) & (disk < 0.15)) == pytest.approx((0.2 * 0.1 - 0.1**2 / 2) / area, abs=0.0063)
    assert np.mean((cpu >= 0.6) & (disk >= 0.3)) == pytest.approx(0.05**2 / 2 / area, abs=0.0016)


def test_without_dominance_some_network_bound_jobs_are_cpu_bound() -> None:
    """7.8% of them spend most time on the CPU."""
    drawn = assign_resources(jobs(100_000), "0/100/0", np.random.default_rng(3), dominant=False)
    # The corner where 1 - network - disk > network has the area 0.004375 of 0.05625.
    assert shares(drawn) == pytest.approx([0.0778, 0.9222, 0], abs=0.0040)


def test_memory_has_the_published_distribution() -> None:
    """70% of the jobs use up to half of the memory, 25% up to 0.8, 5% more; uniform within each range."""
    memory = assign_resources(jobs(100_000), "M1", np.random.default_rng(4)).columns["memory_fraction"]
    found = np.histogram(memory.astype(np.float64), [0.05, 0.275, 0.5, 0.65, 0.8, 0.9, 1.0])[0] / 100_000
    assert found.tolist() == pytest.approx([0.35, 0.35, 0.125, 0.125, 0.025, 0.025], abs=0.0061)


@pytest.mark.parametrize("cpu_well", [0.0, 0.33, 1.0])
def test_pairs_are_compatible_with_the_given_probability(cpu_well: float) -> None:
    n = 100_000
    kinds = assign_resources(jobs(n), "M1", np.random.default_rng(5), cpu_well=cpu_well).columns["cpu_kind"]
    floating = int((kinds == CPU_FLOAT).sum())
    poorly = floating * (floating - 1) / (n * (n - 1))
    assert 1 - poorly == pytest.approx(cpu_well, abs=0.008)


def test_columns_draw_from_separate_streams() -> None:
    """Another mix changes neither memory, kind nor cache."""
    one, other = (assign_resources(jobs(200), mix, np.random.default_rng(6)).columns for mix in ("M1", "M3"))
    again, third = (assign_resources(jobs(200), "M1", np.random.default_rng(seed)).columns for seed in (6, 7))
    for name in RESOURCE_COLUMNS:
        assert np.array_equal(one[name], again[name])
        assert not np.array_equal(one[name], third[name])
        assert np.array_equal(one[name], other[name]) == (name not in TIME_COLUMNS)


@pytest.mark.parametrize("text", ["", "M4", "40/30", "40/30/31", "40/30/3O", "-10/60/50", "1e1/40/50", "٤٠/30/30"])
def test_unknown_mixes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="M1, M2, M3"):
        assign_resources(jobs(2), text, np.random.default_rng(1))


@pytest.mark.parametrize("parts", [(0.5, 0.5, 0.1), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)])
def test_invalid_probabilities_are_refused(parts: tuple[float, float, float]) -> None:
    with pytest.raises(OptionError, match="sum to 1"):
        ResourceMix(*parts)
    with pytest.raises(OptionError, match="cpu_well"):
        assign_resources(jobs(2), "M1", np.random.default_rng(1), cpu_well=parts[0] * 3)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.xz"])
def test_drawn_resources_survive_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"r{suffix}"
    drawn = assign_resources(jobs(5000, first_id=7), "M2", np.random.default_rng(8))
    drawn = drawn.replace(columns={**drawn.columns, "message_bytes": np.arange(5000)})
    write_resources(drawn, path)
    read = read_resources(path, jobs(5000, first_id=7))
    assert set(read.columns) == set(drawn.columns)
    for name, values in drawn.columns.items():
        assert np.array_equal(read.columns[name], values), name


@settings(max_examples=60)
@given(data=st.data())
def test_any_resources_survive_a_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 5))
    unit = st.floats(0, 1, allow_subnormal=False)
    cpu = np.array(data.draw(st.lists(unit, min_size=n, max_size=n)))
    network = (1 - cpu) * np.array(data.draw(st.lists(unit, min_size=n, max_size=n)))
    columns = {
        "cpu_fraction": cpu,
        "network_fraction": network,
        "disk_fraction": np.maximum(1 - cpu - network, 0),
        "memory_fraction": np.array(data.draw(st.lists(st.floats(1e-300, 1), min_size=n, max_size=n))),
    }
    if data.draw(st.booleans()):
        columns["cpu_kind"] = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    path = tmp_path_factory.mktemp("any") / "r.csv"
    write_resources(jobs(n).replace(columns=columns), path)
    read = read_resources(path, jobs(n))
    for name, values in columns.items():
        assert np.array_equal(read.columns[name], values), name


def test_the_order_of_columns_and_lines_does_not_matter(tmp_path: Path) -> None:
    """Neither do blanks, quotes and line ends."""
    path = tmp_path / "r.csv"
    text = (
        'memory_fraction, job_id ,disk_fraction,cpu_fraction,network_fraction\r\n\r\n0.5,8,0.1,0.7,"0.2"\r\n1,7,1,0,0'
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    workload = assign_resources(jobs(2, first_id=7), "M1", np.random.default_rng(1))
    read = read_resources(path, workload)
    assert read.columns["disk_fraction"].tolist() == [1.0, 0.1]
    assert read.columns["memory_fraction"].tolist() == [1.0, 0.5]
    # The columns that the file does not have are not left over from what was drawn.
    assert set(read.columns) == {"user", *TIME_COLUMNS, "memory_fraction"}


def test_rounded_fractions_are_normalized(tmp_path: Path) -> None:
    """A larger deviation is refused."""
    path = tmp_path / "r.csv"
    path.write_text(f"{HEADER}\n0,.333,.333,.333,1\n")
    read = read_resources(path, jobs(1))
    assert [read.columns[name][0] for name in TIME_COLUMNS] == pytest.approx([1 / 3] * 3, rel=1e-12)
    path.write_text(f"{HEADER}\n0,.333,.333,.332,1\n")
    with pytest.raises(TraceError, match=r"sum to 0\.998"):
        read_resources(path, jobs(1))


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        ("", None, None, "is empty"),
        ("\n \n", None, None, "is empty"),
        ("job_id,cpu_fraction\n", 1, "network_fraction", "missing"),
        (f"{HEADER},job_id\n", 1, "job_id", "twice"),
        (f"{HEADER},colour\n", 1, None, "'colour'"),
        (f"{HEADER}\n0,.5,.5,0,.1\n1,.5,.5,0\n", 3, None, "has 4 fields"),
        (f"{HEADER}\n0,.5,.5,0,.1\n\n1,.5,half,0,.1\n", 4, "network_fraction", "'half'"),
        (f"{HEADER}\n0,nan,.5,.5,.1\n", 2, "cpu_fraction", "'nan'"),
        (f"{HEADER}\n0,inf,.5,.5,.1\n", 2, "cpu_fraction", "'inf'"),
        (f"{HEADER}\n0,,.5,.5,.1\n", 2, "cpu_fraction", "''"),
        (f"{HEADER}\n0,1.5,-.5,0,.1\n", 2, "cpu_fraction", "'1.5'"),
        (f"{HEADER}\n0,1,-0.1,.1,.1\n", 2, "network_fraction", "'-0.1'"),
        (f"{HEADER}\n0,.5,.4,0,.1\n", 2, " + ".join(TIME_COLUMNS), "sum to 0.9"),
        (f"{HEADER}\n0,.5,.5,0,1.1\n", 2, "memory_fraction", "'1.1'"),
        (f"{HEADER}\n0,.5,.5,0,0\n", 2, "memory_fraction", "'0'"),
        (f"{HEADER}\n5,.5,.5,0,.1\n", 2, "job_id", "5 is not a job of jobs"),
        (f"{HEADER}\n-1,.5,.5,0,.1\n", 2, "job_id", "'-1'"),
        (f"{HEADER}\n0.0,.5,.5,0,.1\n", 2, "job_id", "'0.0'"),
        (f"{HEADER}\n1,.5,.5,0,.1\n1,.5,.5,0,.1\n", 3, "job_id", "line 2"),
        (f"{HEADER}\n1,.5,.5,0,.1\n", None, None, "has no line for job 0 of jobs"),
        (f"{HEADER}\n", None, None, "has no line for job 0 and 1 more of jobs"),
        (f"{HEADER},cpu_kind\n0,.5,.5,0,.1,float\n", 2, "cpu_kind", "'float'"),
        (f"{HEADER},cache_bytes\n0,.5,.5,0,.1,4e4\n", 2, "cache_bytes", "'4e4'"),
        (f'{HEADER}\n0,.5,.5,0,".1\n', 2, None, "CSV"),
        (f"{HEADER}\n0,.5,{'9' * 200000},0,.1\n", 2, None, "CSV"),
        (f"{HEADER}\n0,.5,{'9' * 2000},0,.1\n", 2, "network_fraction", "..."),
    ],
)
def test_invalid_files_are_refused_in_one_line(
    tmp_path: Path, text: str, line: int | None, field: str | None, words: str
) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_resources(path, jobs(2))
    assert (caught.value.path, caught.value.line, caught.value.field) == (path, line, field)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_invalid_utf8_is_reported_at_its_field(tmp_path: Path) -> None:
    """Damaged archives and folders are refused as well."""
    path = tmp_path / "r.csv"
    path.write_bytes(f"{HEADER}\n0,.5,.5,0,.1\n".encode() + b"1,.5,\xff,0,.1\n")
    with pytest.raises(TraceError, match=r"r\.csv:3: network_fraction"):
        read_resources(path, jobs(2))
    path.write_bytes(gzip.compress(f"{HEADER}\n".encode())[:-9])
    with pytest.raises(TraceError, match="damaged"):
        read_resources(path, jobs(2))
    for wrong in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(TraceError):
            read_resources(wrong, jobs(2))


def test_incomplete_resources_are_not_written(tmp_path: Path) -> None:
    drawn = assign_resources(jobs(3), "M1", np.random.default_rng(1))
    columns = {name: values for name, values in drawn.columns.items() if name != "disk_fraction"}
    with pytest.raises(InputError, match="disk_fraction"):
        write_resources(drawn.replace(columns=columns), tmp_path / "r.csv")
    with pytest.raises(InputError, match="job 0"):
        write_resources(drawn.replace(columns={**drawn.columns, "disk_fraction": np.zeros(3)}), tmp_path / "r.csv")
    with pytest.raises(InputError, match="cannot be written"):
        write_resources(drawn, tmp_path / "none" / "r.csv")
    assert not list(tmp_path.iterdir())
