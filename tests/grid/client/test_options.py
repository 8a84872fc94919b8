"""The options of a job, each written once: what is made from them."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import msgspec
import pytest
from typer.testing import CliRunner

from gridweave import Client, InputError, OptionError, SyncClient
from gridweave.cli import grid_client
from gridweave.cli.arguments import QuickCommand
from gridweave.grid.client import options as of_jobs
from gridweave.grid.client.job_options import JobOptions
from gridweave.grid.client.option import Option, Sbatch
from gridweave.grid.client.options import FLAG_OF_FIELD, JOB_OPTIONS, OPTIONS, SBATCH, joined, read_flags, read_sbatch
from gridweave.grid.client.requests import job_request
from gridweave.site.job import ArrayPlace, JobForm, JobRequest, Program
from gridweave.site.resources.chunks import Chunk
from support.gateway import Elsewhere

SAME = {
    "name": ("solve", "solve"),
    "working_directory": ("/data", "/data"),
    "hold": (True, ""),
    "account": ("physics", "physics"),
    "input": ("in", "in"),
    "output": ("out", "out"),
    "error": ("err", "err"),
    "open_mode": ("append", "append"),
    "after_jobs": (["17:ended"], "afterany:17"),
    "indexes": ("1-9:4%2", "1-9:4%2"),
    "signal": ("B:USR1@90", "B:USR1@90"),
    "limit": ("90m", "90"),
    "if_lost": (True, ""),
    "exclusive": (True, ""),
}
"""How the same value is written on the command line and in an #SBATCH line."""


def test_nothing_is_written_in_two_options() -> None:
    """No flag and no name in an #SBATCH line stands for two options."""
    flags = Counter(name for option in OPTIONS.values() for flag in option.flags for name in flag.split("/"))
    names = Counter(name for option in OPTIONS.values() for how in option.sbatch for name in how.names)
    assert max(flags.values()) == max(names.values()) == 1


def test_every_option_can_be_written_somewhere_and_has_help() -> None:
    """An entry that nobody can write would be dead."""
    for key, option in OPTIONS.items():
        assert option.flags or option.sbatch or key in {*JOB_OPTIONS, "slurm_variables"}, key
        assert option.help.endswith((".", ")")), key


@pytest.mark.parametrize("file", ["site/scheduler/live.py", "site/launch.py", "grid/control/placing.py"])
def test_a_flag_that_a_site_or_the_grid_names_is_there(file: str) -> None:
    """Sites know nothing of the command, but tell its users what to write instead."""
    text = (Path(__file__).parents[3] / file).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![-`\w])--[a-z][a-z-]+", text))
    assert named
    assert named <= {name for option in OPTIONS.values() for flag in option.flags for name in flag.split("/")}


def test_every_field_is_one_of_a_request() -> None:
    """Errors about a field of a request or of its program name the flag."""
    known = {*JobRequest.__struct_fields__, *Program.__struct_fields__, *Chunk.__struct_fields__}
    assert {option.field for option in OPTIONS.values() if option.field} <= known
    assert FLAG_OF_FIELD["limit_ms"] == "--time"


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if option.flags and option.sbatch])
def test_a_line_of_slurm_means_what_the_flag_means(key: str) -> None:
    """Both give the same value."""
    written, of_slurm = SAME[key]
    assert read_sbatch(OPTIONS[key].sbatch[0].names[0], of_slurm) == read_flags({key: written})


def test_letters_and_long_names_mean_the_same() -> None:
    """`-N` is `--nodes`."""
    for how in (how for option in OPTIONS.values() for how in option.sbatch):
        assert len({SBATCH[name] for name in how.names}) == 1


def test_repeatable_options_of_two_sources_add_up() -> None:
    """Of the others, the second source wins, also with a value that is false."""
    script = read_flags({"nodes": 2, "environment": ["A=1", "B=1"], "batch_options": ["nice=7"], "hold": True})
    typed = read_flags({"nodes": 4, "environment": ["A=2"], "batch_options": ["qos=night"], "hold": False})
    both: dict[str, Any] = {**joined(script, typed)}
    assert both["environment"] == {"A": "2", "B": "1"}
    assert both["batch_options"] == ("nice=7", "qos=night")
    assert (both["nodes"], both["hold"]) == (4, False)


@pytest.mark.parametrize("method", [Client.submit, Client.map, Client.quote])
def test_the_client_takes_the_options_of_a_job(method: Any) -> None:
    """Their types are those of the structure, so type checkers and editors know them."""
    (hint,) = get_args(get_type_hints(method)["options"])
    assert (get_origin(get_type_hints(method)["options"]), hint) == (Unpack, JobOptions)
    assert inspect.signature(method).parameters["options"].kind is inspect.Parameter.VAR_KEYWORD


def test_every_option_of_the_client_reaches_the_request() -> None:
    """A key of `JobOptions` that `job_request` passes over would be an option without effect."""
    values: dict[str, Any] = {
        "nodes": 2, "limit": "2h", "name": "solve", "environment": {"A": 1}, "working_directory": Path("/data"),
        "ranks": "first-node", "if_lost": "fail", "hold": True, "after": 17, "priority": 2.5, "job_class": "big",
        "user": "anna", "account": "physics", "resources": "cpu=1", "communication": "light",
        "array": ArrayPlace(name="sweep", index=3), "forms": JobForm(width=2),
        "input_data": "alpha:1GB", "output_data": "beta:1GB", "cores": 4, "memory": "8GB", "gpus": "a100:2",
        "gres": {"fpga": 1}, "labels": "ib", "exclusive": True, "per_node": 2,
    }  # fmt: skip
    assert values.keys() == JOB_OPTIONS.keys()
    usual = msgspec.to_builtins(job_request(["true"], {}))
    for key, value in values.items():
        said: Any = {key: value} | ({"cores": 1} if key == "exclusive" else {})
        assert msgspec.to_builtins(job_request(["true"], said)) != usual, key


def test_an_unknown_option_is_named(elsewhere: Elsewhere) -> None:
    """Python itself names no unknown keyword where a method takes any."""
    with SyncClient(elsewhere.url) as grid:
        with pytest.raises(TypeError, match="unexpected keyword argument 'nodse'; the options of a job are nodes, "):
            grid.submit(["true"], nodse=3)  # type: ignore[call-arg]
        with pytest.raises(OptionError, match="array: does not work with map"):
            next(grid.map("math:sqrt", [1], array=ArrayPlace(name="sweep", index=3)))


def test_a_new_option_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing else changed, the command line and the lines of Slurm have it, and errors name it."""
    import typer

    cores = Option(flags=("--cores", "-c"), value=int, least=1, metavar="N", help="Cores of each chunk.", default="1")
    monkeypatch.setattr(of_jobs, "OPTIONS", {**OPTIONS, "cores": cores})
    monkeypatch.setattr(grid_client, "OPTIONS", {**OPTIONS, "cores": cores})
    monkeypatch.setattr(of_jobs, "SBATCH", {"c": of_jobs.SbatchName("cores", Sbatch(names=("cpus-per-task", "c")))})
    found: list[Any] = []

    @grid_client.job_options()
    def submit(options: of_jobs.SubmitOptions) -> None:
        found.append(options)

    app = typer.Typer()
    app.command(cls=QuickCommand)(submit)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "Cores of each chunk. [default: 1]" in shown
    assert CliRunner().invoke(app, ["-c", "4", "--hold"]).exit_code == 0
    assert found == [{"cores": 4, "hold": True}]
    assert "Invalid value for '--cores' / '-c'" in CliRunner().invoke(app, ["--cores", "0"]).output
    assert read_sbatch("c", "4") == {"cores": 4}


def test_an_error_names_what_was_written() -> None:
    """The flag on the command line, the keyword in Python."""
    with pytest.raises(InputError, match=r"^--time: '0' means no limit"):
        read_flags({"limit": "0"})
    with pytest.raises(InputError, match=r"^limit: '0' means no limit"):
        job_request(["true"], {"limit": "0"})
