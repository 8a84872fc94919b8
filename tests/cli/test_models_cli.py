"""The commands `trace learn` and `trace generate`, run as from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gridweave.cli.trace import app
from gridweave.errors import GridweaveError
from gridweave.scenarios.generators.common import measure
from gridweave.scenarios.generators.histogram import WEIBULL_TABLE
from gridweave.scenarios.generators.hyper_erlang import HyperErlangModel
from gridweave.scenarios.generators.registry import load_model
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.traces.swf import write_swf
from gridweave.scenarios.workload.table import Workload
from gridweave.site.times import span_text


def run(*arguments: object) -> Result:
    """Run a command line; an exception that it ends with is in the result."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(result: Result) -> str:
    """Return the one line of the error that a command ended with."""
    assert isinstance(result.exception, GridweaveError), result.exception
    assert result.exception.exit_status == 2
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of 300 jobs on 64 nodes."""
    rng = np.random.default_rng(1)
    run_ms = rng.integers(1, 500, 300) * 1000
    workload = Workload(
        job_id=np.arange(300),
        submit_ms=np.cumsum(rng.integers(0, 200, 300)) * 1000,
        width=rng.integers(1, 65, 300),
        estimate_ms=rng.choice([600, 3600], 300) * 1000,
        run_ms=run_ms,
        nodes=64,
        name="t",
    )
    path = tmp_path / "t.swf"
    write_swf(workload, path)
    return path


def test_a_workload_is_generated_without_any_trace(tmp_path: Path) -> None:
    """Without a model the shipped one is used; the line says how many jobs, over what time, with what load."""
    out = tmp_path / "w.swf"
    result = run("generate", out, "--jobs", 500)
    assert result.exit_code == 0, result.exception
    workload, report = load_workload(out)
    assert (len(workload), workload.nodes) == (500, 430)
    assert report.kept == report.records
    over = span_text(int(workload.submit_ms[-1]))
    load = measure(workload).offered_load
    expected = f"500 jobs over {over}, offered load {load:.3f} on 430 nodes, written to {out} (swf)\n"
    assert result.stdout == expected


@pytest.mark.parametrize("name", ["w.swf", "w.swf.gz", "w.mupsie"])
def test_same_seed_same_file(tmp_path: Path, name: str) -> None:
    """Two runs with one seed write the same bytes, in every format; another seed writes others."""
    files = []
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / name)
        result = run("generate", files[-1], "--jobs", 200, "--seed", seed, "--estimates", "phi:0.2")
        assert result.exit_code == 0, result.exception
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_both_formats_hold_the_same_jobs(tmp_path: Path) -> None:
    """SWF and MuPSiE files of one seed are read back as the same jobs."""
    for name in ("w.swf", "w.mupsie"):
        assert run("generate", tmp_path / name, "--jobs", 200).exit_code == 0
    one, other = (load_workload(tmp_path / name)[0] for name in ("w.swf", "w.mupsie"))
    for column in ("submit_ms", "width", "estimate_ms", "run_ms"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column


def test_options_of_generate_reach_the_workload(tmp_path: Path) -> None:
    """Load, shrinking factor, run factor, nodes and estimates have the effects that the help states."""

    def made(*options: object) -> Workload:
        out = tmp_path / "w.swf"
        result = run("generate", out, "--jobs", 1000, *options)
        assert result.exit_code == 0, result.exception
        return load_workload(out)[0]

    plain = made()
    assert measure(made("--load", 0.5)).offered_load == pytest.approx(0.5, rel=1e-3)
    assert measure(made("--load", 0.5, "--run-factor", 1.4)).offered_load == pytest.approx(0.7, rel=1e-3)
    assert measure(made("--load", 0.5, "--shrink", 0.8)).offered_load == pytest.approx(0.5 / 0.8, rel=1e-3)
    assert made("--nodes", 32).width.max() <= 32
    perfect = made("--estimates", "perfect")
    assert np.array_equal(perfect.estimate_ms, plain.run_ms)
    assert np.array_equal(perfect.run_ms, plain.run_ms)
    assert not perfect.overran.any()
    omega = made("--estimates", "omega:3")
    assert np.array_equal(omega.run_ms, plain.run_ms)
    assert np.all(omega.estimate_ms <= 4 * omega.run_ms)
    assert np.mean(made("--estimates", "phi:0.2").estimate_ms == plain.run_ms) == pytest.approx(0.2, abs=0.05)


def test_generate_prints_for_machines(tmp_path: Path) -> None:
    """With --json the figures come as one JSON object."""
    out = tmp_path / "w.mupsie"
    result = run("generate", out, "--jobs", 50, "--seed", 9, "--json")
    workload, _ = load_workload(out)
    assert json.loads(result.stdout) == {
        "out": str(out),
        "format": "mupsie",
        "jobs": 50,
        "nodes": 430,
        "span_ms": int(workload.submit_ms[-1]),
        "offered_load": pytest.approx(measure(workload).offered_load),
        "model": "ctc-sp2",
        "seed": 9,
    }


def test_one_job_has_no_load(tmp_path: Path) -> None:
    """A single job is written, and no load is claimed."""
    result = run("generate", tmp_path / "w.swf", "--jobs", 1)
    assert result.stdout == f"1 job over 0 s, written to {tmp_path / 'w.swf'} (swf)\n"
    printed = json.loads(run("generate", tmp_path / "w.swf", "--jobs", 1, "--json").stdout)
    assert printed["offered_load"] is None


def test_what_is_learnt_can_be_generated_from(tmp_path: Path, trace: Path) -> None:
    """A model learnt from a trace is a file from which jobs like the trace's are generated."""
    model, out = tmp_path / "m.json.gz", tmp_path / "w.swf"
    result = run("learn", trace, model)
    assert result.exit_code == 0, result.exception
    workload, _ = load_workload(trace)
    load = measure(workload).offered_load
    assert result.stdout == f"histogram model of 300 jobs, offered load {load:.3f} on 64 nodes, written to {model}\n"
    assert run("generate", out, "--model", model, "--jobs", 400).exit_code == 0
    made, _ = load_workload(out)
    assert made.nodes == 64
    assert set(made.width.tolist()) <= set(workload.width.tolist())
    assert set(made.estimate_ms.tolist()) <= set(workload.estimate_ms.tolist())


def test_learn_takes_the_other_model_and_published_arrivals(tmp_path: Path, trace: Path) -> None:
    """--model hyper-erlang learns that model, and --weibull table:KTH the published interarrival times."""
    assert run("learn", trace, tmp_path / "h.json", "--model", "hyper-erlang").exit_code == 0
    assert isinstance(load_model(tmp_path / "h.json"), HyperErlangModel)
    assert run("generate", tmp_path / "w.swf", "--model", tmp_path / "h.json", "--jobs", 50).exit_code == 0
    assert run("learn", trace, tmp_path / "k.json", "--weibull", "table:KTH").exit_code == 0
    assert load_model(tmp_path / "k.json").weibull == WEIBULL_TABLE["KTH"]  # type: ignore[attr-defined]


def test_learn_prints_for_machines(tmp_path: Path, trace: Path) -> None:
    """With --json the figures of the model and of the conversion come as one JSON object."""
    printed = json.loads(run("learn", trace, tmp_path / "m.json", "--nodes", 100, "--json").stdout)
    assert printed["jobs"] == 300
    assert printed["nodes"] == 100
    assert printed["model"] == "histogram"
    assert printed["conversion"]["kept"] == 300


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--jobs", "0"], "--jobs"),
        (["--seed", "-1"], "--seed"),
        (["--nodes", "0"], "--nodes"),
        (["--load", "-0.5"], "--load"),
        (["--load", "nan"], "--load"),
        (["--shrink", "0"], "--shrink"),
        (["--run-factor", "inf"], "--run-factor"),
        (["--estimates", "phi:1.5"], "--estimates phi"),
        (["--estimates", "guess"], "--estimates"),
        (["--model", "none"], "models are ctc-sp2"),
        (["--to", "csv"], "csv"),
    ],
)
def test_generate_refuses_and_writes_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    """An option that cannot be used is an error in one line that names it, and no file is left."""
    assert words in refusal(run("generate", tmp_path / "w.swf", *options))
    assert not list(tmp_path.iterdir())


def test_generate_refuses_unknown_formats_and_places(tmp_path: Path) -> None:
    """A file whose suffix stands for no format, or in a folder that is not there, is refused."""
    assert "w.csv" in refusal(run("generate", tmp_path / "w.csv", "--jobs", 10))
    assert "none" in refusal(run("generate", tmp_path / "none" / "w.swf", "--jobs", 10))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "oracle"], "histogram, hyper-erlang"),
        (["--model", "hyper-erlang", "--weibull", "fit"], "--weibull"),
        (["--weibull", "table:XYZ"], "PC2-2002"),
        (["--nodes", "0"], "--nodes"),
    ],
)
def test_learn_refuses_and_writes_nothing(tmp_path: Path, trace: Path, options: list[str], words: str) -> None:
    """An option that cannot be used is an error in one line, and no model is written."""
    assert words in refusal(run("learn", trace, tmp_path / "m.json", *options))
    assert not (tmp_path / "m.json").exists()


def test_learn_refuses_files_that_cannot_be_meant(tmp_path: Path, trace: Path) -> None:
    """A trace as the second file is not overwritten by a model, and a broken trace teaches nothing."""
    before = trace.read_bytes()
    assert ".json" in refusal(run("learn", trace, trace))
    assert trace.read_bytes() == before
    broken = tmp_path / "broken.swf"
    broken.write_text("1 2 3\n")
    assert "broken.swf" in refusal(run("learn", broken, tmp_path / "m.json"))
    assert not (tmp_path / "m.json").exists()
