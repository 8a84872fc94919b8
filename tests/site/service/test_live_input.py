"""What cannot run, and Python callables: one line that says what would be right, and what comes of those that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gridweave.site.launch import Call, Rank

if TYPE_CHECKING:
    from conftest import Machine


@pytest.mark.parametrize(("options", "said"), [
    ({"argv": ("no-such-program",)}, "'no-such-program': not found in the directories of PATH"),
    ({"argv": ("./missing",)}, "'./missing': no such file"),
    ({"argv": ("./text",)}, "'./text': is not executable; give it the x permission"),
    ({"argv": ("./garbage",)}, "garbage': Exec format error; expected a script that begins with a line like"),
    ({"argv": ("./orphan",)}, "orphan': No such file or directory; expected a script"),
    ({"argv": ("/",)}, "'/': is a directory"),
    ({"argv": ()}, "the command is empty"),
    ({"argv": ("true", "a\0b")}, "contains a NUL character"),
    ({"argv": ("true", "a\udcffb")}, "expected Unicode texts"),
    ({"argv": ("true", "x" * 200_000)}, "Argument list too long"),
    ({"working_directory": "/no/such"}, "working directory '/no/such': No such file or directory"),
    ({"working_directory": "relative"}, "expected an absolute path"),
    ({"environment": {"A=B": "x"}}, "the name 'A=B' contains '='"),
    ({"environment": {"A": "x\0"}}, "the value of A contains NUL"),
    ({"environment": {"": "x"}}, "the name '' is empty"),
    ({"ranks": (Rank(0), Rank(0))}, "ranks are [0, 0] of 2; expected one or more different"),
    ({"ranks": (Rank(4),), "size": 2}, "ranks are [4] of 2"),
    ({"ranks": ()}, "expected one or more"),
    ({"ranks": (Rank(0, threads=()),)}, "expected at least one hardware thread"),
    ({"limit_ms": -1}, "limit_ms is -1; expected at least 0"),
    ({"call": Call("os:getpid")}, "both a command and a callable"),
    ({"argv": (), "call": Call("no function")}, "expected module:function"),
    ({"argv": (), "call": Call("no_such_module:main")}, "module 'no_such_module' cannot be imported"),
    ({"argv": (), "call": Call("os:no_such")}, "module 'os' has no 'no_such'"),
    ({"argv": (), "call": Call("os:sep")}, "is of type str; expected a function"),
    ({"argv": (), "call": Call("math:sqrt", (-1,))}, "ValueError: math domain error"),
    ({"argv": (), "call": Call("builtins:object")}, "returned a value that JSON cannot represent"),
    ({"argv": (), "call": Call("builtins:str", ("x" * 99,)), "output_limit_bytes": 50}, "returned 101 bytes of JSON"),
])  # fmt: skip
@pytest.mark.asyncio
async def test_bad_input_fails_in_one_line(machine: Machine, options: dict[str, Any], said: str) -> None:
    """What cannot run ends as failed, with one line that says what would be right, and never a traceback of ours."""
    (machine.scratch / "text").write_text("x")
    for name, text in (("garbage", "\x01\x02"), ("orphan", "#!/no/such/shell\n")):
        (machine.scratch / name).write_text(text)
        (machine.scratch / name).chmod(0o755)
    launch = msgspec.structs.replace(machine.launch("true"), **options)
    ended = await machine.run(launch)
    assert ended.outcome == "failed"
    assert said in ended.reason
    assert "\n" not in ended.reason
    assert not (machine.root / "jobs" / "1.0" / "shim.log").exists()


@pytest.mark.asyncio
async def test_callables_are_called(machine: Machine) -> None:
    """A function of the working directory gets its arguments, and what it returns is kept per rank."""
    (machine.scratch / "my_work.py").write_text(
        "import os\nclass A:\n    @staticmethod\n"
        "    def f(a, *, b): return {'sum': a + b, 'rank': os.environ['RANK']}\n"
    )
    call = Call("my_work:A.f", (1,), {"b": 2})
    ended = await machine.run(msgspec.structs.replace(machine.launch(ranks=2), call=call))
    assert ended.outcome == "finished"
    results = [machine.root / "jobs" / "1.0" / f"result-{rank}.json" for rank in (0, 1)]
    assert [msgspec.json.decode(path.read_bytes()) for path in results] == [
        {"sum": 3, "rank": "0"},
        {"sum": 3, "rank": "1"},
    ]


@pytest.mark.asyncio
async def test_the_traceback_of_a_callable_is_kept(machine: Machine) -> None:
    """A callable that raises fails with what it raised; the traceback is in a file and in standard error."""
    ended = await machine.run(msgspec.structs.replace(machine.launch(), call=Call("json:loads", ("{",))))
    text = (machine.root / "jobs" / "1.0" / "error-0.txt").read_text()
    assert ended.reason.startswith("rank 0 ended with exit code 1: json.decoder.JSONDecodeError")
    assert text.startswith("Traceback")
    assert machine.output(stream="err").strip() == text.strip()
