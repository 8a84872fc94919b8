"""Tokens are found by their secrets, of which only a hash is kept, until they are revoked or too old."""

from __future__ import annotations

import hashlib
import itertools
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.errors import GridweaveError, InputError, OptionError
from gridweave.grid.gateway.access import TokenStore
from support.machine import running_server

DAY_MS = 86_400_000


class Clock:
    """A clock that tests set."""

    now_ms = 1_000_000

    def __call__(self) -> int:
        """Return the instant."""
        return self.now_ms


def counted_bytes() -> Callable[[int], bytes]:
    """Return a source of predictable bytes that never repeat, in place of random ones."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def test_a_token_is_found_until_it_is_too_old(tmp_path: Path) -> None:
    """A token stands for its user and scopes up to its last instant, and for nothing from then on."""
    clock = Clock()
    store = TokenStore(tmp_path / "t", now_ms=clock, random_bytes=counted_bytes())
    made = store.create("anna", ("submit",), days=1)
    assert store.find(made.token) == made.info
    assert store.list()[0].used_ms == clock.now_ms
    assert (made.info.user, made.info.scopes, made.info.until_ms) == ("anna", ("submit",), 1_000_000 + DAY_MS)
    clock.now_ms += DAY_MS - 1
    assert store.find(made.token) is not None
    clock.now_ms += 1
    assert store.find(made.token) is None
    assert store.list() == []
    store.close()


def test_a_revoked_token_is_none_for_all_processes_at_once(tmp_path: Path) -> None:
    """What one store revokes another one that was opened before does not find any more."""
    one, other = TokenStore(tmp_path / "t"), TokenStore(tmp_path / "t")
    made = [one.create(user, ("read",)) for user in ("anna", "bob")]
    assert other.usable() == {token.info.token_id for token in made}
    assert other.revoke(made[0].info.token_id)
    assert not other.revoke(made[0].info.token_id)
    assert one.find(made[0].token) is None
    assert one.find(made[1].token) == made[1].info
    assert [info.user for info in one.list()] == ["bob"]
    one.close()
    other.close()


def test_no_secret_is_kept(tmp_path: Path) -> None:
    """The files of the store hold the hash of a secret, not the secret, and are for their owner alone."""
    store = TokenStore(tmp_path / "t")
    secret = store.create("anna", ("operate",)).token.split("_", 2)[2]
    files = list(tmp_path.iterdir())
    kept = b"".join(path.read_bytes() for path in files)
    assert secret.encode() not in kept
    assert hashlib.sha256(secret.encode()).digest() in kept
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    store.close()


@pytest.mark.parametrize(
    "wrong", ["", "gw", "gw__", "gw_0_x", "xx_{id}_{secret}", "gw_{id}_{secret}x", "gw_{id}_", "ü"]
)
def test_what_is_no_token_is_not_found(tmp_path: Path, wrong: str) -> None:
    """A text that is no token, or a token with another secret, stands for nobody."""
    store = TokenStore(tmp_path / "t")
    _, token_id, secret = store.create("anna", ("read",)).token.split("_", 2)
    assert store.find(wrong.format(id=token_id, secret=secret)) is None
    assert store.find("gw_" + "0" * 12 + "_" + secret) is None
    store.close()


@pytest.mark.parametrize(
    ("user", "scope", "days"), [("", "read", 1), ("a\n", "read", 1), ("a", "king", 1), ("a", "read", 0)]
)
def test_tokens_that_make_no_sense_are_refused(tmp_path: Path, user: str, scope: str, days: float) -> None:
    """A token for nobody, for an unknown scope, or for no time is not made."""
    store = TokenStore(tmp_path / "t")
    with pytest.raises(OptionError):
        store.create(user, (scope,), days=days)  # type: ignore[arg-type]
    assert store.list() == []
    store.close()


def test_places_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """A file that is no database, a missing one, and one in a missing folder each get one line that says so."""
    (tmp_path / "text").write_text("no database, but a text that is long enough to be looked at " * 10)
    with pytest.raises(InputError, match="text"):
        TokenStore(tmp_path / "text")
    with pytest.raises(InputError, match="there are no tokens there"):
        TokenStore(tmp_path / "none", create=False)
    with pytest.raises(OptionError, match="is not a folder"):
        TokenStore(tmp_path / "none" / "t")
    with pytest.raises(GridweaveError, match="mysql"):
        TokenStore("mysql://somewhere/x")


def test_tokens_in_postgresql() -> None:
    """The same store in PostgreSQL: made, found, revoked."""
    with running_server() as server:
        url = server.new_database("tokens")
        store = TokenStore(url)
        made = store.create("anna", ("read",))
        other = TokenStore(url)
        assert other.find(made.token) == made.info
        assert other.revoke(made.info.token_id)
        assert store.find(made.token) is None
        store.close()
        other.close()
