"""The audit log: who did what, in lines that follow from each other, for its owner alone."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.grid.gateway.audit import AuditEntry, AuditLog, PrivateRotation, check_audit
from support.gateway import FakeBackend, a_job, make_tokens, serving


def entries(path: Path) -> list[AuditEntry]:
    """Return the lines of an audit log."""
    return [msgspec.json.decode(line, type=AuditEntry) for line in path.read_bytes().splitlines()]


@pytest.mark.asyncio
async def test_what_tokens_and_operators_do_is_written_down(tmp_path: Path) -> None:
    """Each change, each thing that was not allowed and each wrong token is a line; what is only read is none."""
    tokens = make_tokens(tmp_path / "t", anna="submit", olga="operate")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t")) as grid:
        await grid.submit(a_job(), token=tokens["anna"], X_Request_Id="r1")
        await grid.ask("GET", "/v1/jobs", token=tokens["anna"])
        await grid.ask("POST", "/v1/sites/north/drain", token=tokens["anna"])
        await grid.ask("POST", "/v1/sites/north/drain", token=tokens["olga"])
        await grid.ask("POST", "/v1/sites/north/machines/m1/give-up", token=tokens["olga"])
        await grid.ask("GET", "/v1/jobs", token="gw_wrong")
        await grid.ask("GET", "/v1/jobs")
        await grid.ask("POST", "/v1/tokens", {"user": "bob"}, token=tokens["olga"])
        while len(found := entries(tmp_path / "audit.log")) < 6:
            await asyncio.sleep(0)
    assert [(one.user, one.what, one.target, one.status, one.problem) for one in found] == [
        ("anna", "submit", "", 200, ""),
        ("anna", "drain", "north", 403, "forbidden"),
        ("olga", "drain", "north", 200, ""),
        ("olga", "give_up", "north/m1", 200, ""),
        ("", "login", "", 401, "unauthenticated"),
        ("olga", "make_token", "", 200, ""),
    ]
    assert (found[0].request, found[0].jobs, found[0].address) == ("r1", 1, "127.0.0.1")
    assert found[0].token == tokens["anna"].split("_")[1]
    text = (tmp_path / "audit.log").read_text()
    assert not any(token.split("_", 2)[2] in text for token in tokens.values())
    assert check_audit(tmp_path / "audit.log") == (1, 6)


def test_a_line_that_was_changed_is_noticed(tmp_path: Path) -> None:
    """Whoever changes a line, or takes one out, breaks the chain of digests there."""
    log = AuditLog(tmp_path / "a")
    for number in range(5):
        log.add(AuditEntry(time="t", what="drain", target=f"site{number}"))
    lines = (tmp_path / "a").read_bytes().splitlines(keepends=True)
    assert check_audit(tmp_path / "a") == (1, 5)
    changes = [(b"".join(lines).replace(b"site2", b"site9"), 4), (b"".join(lines[:1] + lines[2:]), 2)]
    for changed, place in [*changes, (b"".join(lines[1:]), 1), (b"{}\n" + b"".join(lines), 1)]:
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(InputError, match=f"a: line {place} does not follow from the one before: the line was"):
            check_audit(tmp_path / "a")


def test_two_processes_add_and_rotate(tmp_path: Path) -> None:
    """Two writers lose no line over rotations; each file is private, and follows from the one before."""
    logs = [AuditLog(tmp_path / "a", most_bytes=500, kept=50) for _ in range(2)]
    for number in range(40):
        logs[number % 2].add(AuditEntry(time="t", what="drain", target=str(number)))
    files = sorted(tmp_path.iterdir(), key=lambda path: int(path.suffix[1:] or 0), reverse=True)
    assert len(files) > 3
    assert [one.target for path in files for one in entries(path)] == [str(number) for number in range(40)]
    assert check_audit(tmp_path / "a") == (len(files), 40)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_rotation_that_was_cut_short_breaks_no_chain(tmp_path: Path) -> None:
    """The first line of a new file follows from the last one of the old, whichever process writes it."""
    AuditLog(tmp_path / "a").add(AuditEntry(time="t", what="drain", target="1"))
    (tmp_path / "a").rename(tmp_path / "a.1")  # and then the process that rotates it is killed, or another is quicker
    AuditLog(tmp_path / "a").add(AuditEntry(time="t", what="drain", target="2"))
    assert check_audit(tmp_path / "a") == (2, 2)


def test_a_file_that_was_taken_out_is_noticed(tmp_path: Path) -> None:
    """The chain goes through all files: one that is missing is named, and so is a log that is not there."""
    log = AuditLog(tmp_path / "a", most_bytes=300)
    for number in range(20):
        log.add(AuditEntry(time="t", what="drain", target=str(number)))
    (tmp_path / "a.2").unlink()
    with pytest.raises(InputError, match=r"a\.2: is missing, and .*a\.\d+ is there"):
        check_audit(tmp_path / "a")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        check_audit(tmp_path / "b")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """An audit log or a log of requests that is a link to another file is refused."""
    (tmp_path / "mine").write_text("")
    os.symlink(tmp_path / "mine", tmp_path / "a")
    with pytest.raises(OptionError, match="name a file"):
        AuditLog(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        PrivateRotation(tmp_path / "a")
    assert (tmp_path / "mine").read_text() == ""


def test_the_log_of_requests_is_rotated(tmp_path: Path) -> None:
    """A full log makes room for a new one; all are for their owner alone, and the oldest goes."""
    handler = PrivateRotation(tmp_path / "log", most_bytes=200, kept=2)
    for number in range(50):
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, f"line {number} {'.' * 20}", (), None))
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert "line 49" in (tmp_path / "log").read_text()
