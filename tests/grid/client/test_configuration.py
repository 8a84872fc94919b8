"""Where the client finds its grid: arguments before environment before file before a grid that runs here."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.grid.client import configuration
from gridweave.grid.client.configuration import Connection, configured, gateway_of
from gridweave.grid.config.local_state import GATEWAY, LocalGridState, LocalProcess

FILE = """\
url = "https://grid.example.org:8765/"
token = "gw_file_secret"
ca = "certs/ca.pem"
site = "north"

[profile.work]
url = "https://work.example.org"
token = "gw_work_secret"

[profile."at home"]
url = "http://home.example.org"
plain_http = true
token = "gw_home_secret"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a configuration that others cannot read, and have it be read."""
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    monkeypatch.setenv("GRIDWEAVE_CONFIG", str(path))
    return path


def test_the_file(file: Path) -> None:
    """The first lines of the file count, and a file that it names lies beside it."""
    assert configured() == Connection(
        url="https://grid.example.org:8765",
        token="gw_file_secret",
        ca=str(file.parent / "certs/ca.pem"),
        site="north",
    )


def test_profiles(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile is taken in place of the first lines, by argument or by environment."""
    assert configured(profile="work") == Connection(url="https://work.example.org", token="gw_work_secret")
    monkeypatch.setenv("GRIDWEAVE_PROFILE", "at home")
    assert configured() == Connection(url="http://home.example.org", token="gw_home_secret", plain_http=True)
    assert configured(profile="work").token == "gw_work_secret"
    with pytest.raises(InputError, match="there is no profile 'wrok'; there are: at home, work"):
        configured(profile="wrok")


def test_environment_before_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over the file, and arguments over both, each for what it says."""
    monkeypatch.setenv("GRIDWEAVE_TOKEN", "gw_environment_secret")
    found = configured()
    assert (found.url, found.token, found.site) == ("https://grid.example.org:8765", "gw_environment_secret", "north")
    assert configured(token="gw_own_secret", site="south").token == "gw_own_secret"
    assert configured(site="south").site == "south"


def test_a_token_goes_nowhere_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that stands below another address is not sent to the one that is named; to the same it is."""
    assert configured("https://other.example.org") == Connection(url="https://other.example.org")
    assert configured("https://grid.example.org:8765").token == "gw_file_secret"
    monkeypatch.setenv("GRIDWEAVE_URL", "https://third.example.org")
    assert configured() == Connection(url="https://third.example.org")
    monkeypatch.setenv("GRIDWEAVE_TOKEN", "gw_third_secret")
    assert configured().token == "gw_third_secret"
    assert configured("https://other.example.org").token is None
    monkeypatch.delenv("GRIDWEAVE_URL")
    assert configured("https://other.example.org").token == "gw_third_secret", "it was given for no address"


def test_a_file_that_others_can_read(file: Path) -> None:
    """A file with a token that others can read is told of; one without a token is nobody's secret."""
    file.chmod(0o644)
    (warning,) = configured().warnings
    assert warning == f"{file} contains a token, and others may read it; run: chmod 600 {file}"
    file.write_text('url = "https://grid.example.org"')
    assert configured().warnings == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("url = 3 x\n", ": Expected newline or end of document after a statement (at line 1, column 9)"),
        ("x\0", ": "),
        (
            '\ntokn = "x"',
            ":2: tokn: is not known; there are url, token, ca, site, plain_http, token_file",
        ),
        ("url = 3", ":1: url: is 3; a text in quotes"),
        ('plain_http = "yes"', ":1: plain_http: is 'yes'; true or false"),
        ("profile = 3", ":1: profile: must be tables; write [profile.NAME]"),
        ("profile.a = 3", ":1: profile: must be tables; write [profile.NAME]"),
        ('url = "https://a"\n[profile.a]\nurl = "https://a"\nurk = 3', ":4: profile.a.urk: is not known"),
        ('[profile.a]\nurl = "https://a"\n[profile.b]\nurl = 3', ":4: profile.b.url: is 3"),
        ('url = "https://a"\ntoken_file = "~no-such-user/token"', ":2: token_file: "),
    ],
)
def test_what_is_wrong_with_a_file(file: Path, text: str, says: str) -> None:
    """A mistake in the file is told with file, line and field."""
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        configured()
    assert str(caught.value).startswith(f"{file}{says}")


def test_files_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named and not there, a folder, and what is no text, are told; the usual file may be missing."""
    file.write_bytes(b"url = '\xff'")
    with pytest.raises(InputError, match=r"byte 7 is not UTF-8"):
        configured()
    monkeypatch.setenv("GRIDWEAVE_CONFIG", str(file.parent))
    with pytest.raises(InputError, match=r"Is a directory"):
        configured()
    monkeypatch.setenv("GRIDWEAVE_CONFIG", str(file.parent / "missing.toml"))
    with pytest.raises(InputError, match=r"there is no such file \(GRIDWEAVE_CONFIG names it\)"):
        configured()
    monkeypatch.delenv("GRIDWEAVE_CONFIG")
    with pytest.raises(InputError, match=r"no such file, and so no profile 'work'"):
        configured(profile="work")
    assert configured("http://127.0.0.1:1").url == "http://127.0.0.1:1"


def running(name: str, url: str) -> LocalGridState:
    """Return a grid of this machine."""
    return LocalGridState(
        name=name, marker="", boot="", since_ms=0, folder="", namespace="", sites=(), url=url, tokens=False
    )


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have grids own their addresses."""
    monkeypatch.setattr(LocalGridState, "has_gateway", True)


@pytest.mark.usefixtures("owned")
def test_a_grid_that_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is said the grid that runs here is taken: the default one, or the only one."""
    grids = {"default": running("default", "http://127.0.0.1:1"), "campus": running("campus", "http://127.0.0.1:2")}
    monkeypatch.setattr(configuration, "known_grids", lambda: sorted(grids))
    monkeypatch.setattr(configuration, "running_grid", grids.get)
    assert configured().url == "http://127.0.0.1:1"
    assert configured("http://127.0.0.1:3").url == "http://127.0.0.1:3"
    del grids["default"]
    assert configured().url == "http://127.0.0.1:2"
    grids["other"] = running("other", "http://127.0.0.1:4")
    with pytest.raises(
        OptionError, match=r"grid: several grids run here: campus .*, other .*; name one, or set GRIDWEAVE_GRID"
    ):
        configured()
    grids.clear()
    with pytest.raises(UnavailableError, match="no grid runs here: start one with `gridweave up`, or name one"):
        configured()


@pytest.mark.usefixtures("owned")
def test_a_grid_that_runs_here_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several is named by an argument, or else by the environment; what is named must run."""
    grids = {"default": running("default", "http://127.0.0.1:1"), "campus": running("campus", "http://127.0.0.1:2")}
    monkeypatch.setattr(configuration, "running_grid", grids.get)
    assert configured(grid="campus").url == "http://127.0.0.1:2"
    monkeypatch.setenv("GRIDWEAVE_GRID", "campus")
    assert configured().url == "http://127.0.0.1:2"
    assert configured(grid="default").url == "http://127.0.0.1:1"
    assert configured("http://127.0.0.1:3").url == "http://127.0.0.1:3"
    monkeypatch.setenv("GRIDWEAVE_URL", "http://127.0.0.1:4")
    assert configured().url == "http://127.0.0.1:4"
    with pytest.raises(OptionError, match="grid: names the grid 'campus', but a URL is given, too; give only one"):
        configured("http://127.0.0.1:3", grid="campus")
    with pytest.raises(UnavailableError, match="the grid 'other' does not run here; start it with `gridweave up --gr"):
        configured(grid="other")


@pytest.mark.usefixtures("owned")
def test_the_certificate_of_a_grid_here_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of this machine that speaks TLS is known by its own certificate, unless another authority is named."""
    grid = msgspec.structs.replace(running("campus", "https://127.0.0.1:2"), cert="/etc/grid.pem")
    monkeypatch.setattr(configuration, "running_grid", {"campus": grid}.get)
    assert configured(grid="campus").ca == "/etc/grid.pem"
    assert configured(grid="campus", ca="other.pem").ca == "other.pem"


@pytest.mark.usefixtures("owned")
def test_a_grid_at_a_real_address_is_reached_as_its_operator_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where GRID.toml allows tokens without TLS, the commands of its host need no leave of their own to send theirs."""
    grid = running("campus", "http://192.0.2.7:8765")
    monkeypatch.setattr(LocalGridState, "token", "gw_secret")
    monkeypatch.setattr(configuration, "known_grids", lambda: ["campus"])
    monkeypatch.setattr(configuration, "running_grid", lambda name: grid)
    with pytest.raises(OptionError, match="is not encrypted"):
        configured()
    grid = msgspec.structs.replace(grid, plain_http=True)
    assert configured().plain_http
    assert configured(grid="campus").token == "gw_secret"
    with pytest.raises(OptionError, match="is not encrypted"):
        configured("http://192.0.2.8:8765", token="gw_other")


@pytest.mark.usefixtures("owned")
def test_the_token_of_a_grid_goes_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that is named by its name is asked with its own token, not with that of the environment or the file."""
    monkeypatch.setattr(LocalGridState, "token", property(lambda grid: f"gw_{grid.name}"))
    monkeypatch.setattr(configuration, "running_grid", lambda name: running(name, "http://127.0.0.1:2"))
    monkeypatch.setenv("GRIDWEAVE_URL", "http://127.0.0.1:4")
    monkeypatch.setenv("GRIDWEAVE_TOKEN", "gw_theirs")
    assert configured(grid="campus").token == "gw_campus"
    assert configured(grid="campus", token="gw_given").token == "gw_given"
    assert configured().token == "gw_theirs"


def test_a_program_that_took_the_port_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of a grid goes only where its own gateway listens; whoever else is there is not asked at all."""
    monkeypatch.setattr(LocalGridState, "token", "gw_secret")
    ours, theirs = LocalProcess.of_pid(GATEWAY, os.getpid()), subprocess.Popen(["sleep", "100000"])
    other = LocalProcess.of_pid(GATEWAY, theirs.pid)
    assert ours is not None
    assert other is not None
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            grid = msgspec.structs.replace(running("campus", f"http://127.0.0.1:{port}"), processes=(ours,))
            monkeypatch.setattr(configuration, "running_grid", lambda name: grid)
            assert (configured(grid="campus").token, configured(grid="campus").shares_folders) == ("gw_secret", True)
            for processes in ((other,), ()):
                grid = msgspec.structs.replace(grid, processes=processes)
                with pytest.raises(UnavailableError, match=r"does not run at .*; start it again with `gridweave up"):
                    configured(grid="campus")
        grid = msgspec.structs.replace(grid, processes=(ours,))
        with pytest.raises(UnavailableError, match="the gateway of the grid 'campus' does not run at"):
            configured(grid="campus")
        monkeypatch.setattr(LocalGridState, "watchdog", (ours,))
        with pytest.raises(UnavailableError, match=r"it restarts by itself; .* status --grid campus"):
            configured(grid="campus")
    finally:
        theirs.kill()
        theirs.wait()


def test_a_named_profile_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who names a table of the file means it, whatever the environment says."""
    (tmp_path / "config.toml").write_text('[profile.work]\nurl = "http://127.0.0.1:7"\n')
    monkeypatch.setenv("GRIDWEAVE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("GRIDWEAVE_URL", "http://127.0.0.1:4")
    assert configured(profile="work").url == "http://127.0.0.1:7"
    assert configured().url == "http://127.0.0.1:4"


def test_tokens_are_not_sent_for_all_to_read() -> None:
    """A token goes unencrypted to this machine alone, unless it was allowed; without one anything goes."""
    for url in ("http://127.0.0.1:8765", "http://localhost", "http://[::1]:80", "https://grid.example.org"):
        assert configured(url, "gw_a_b").token == "gw_a_b"
    with pytest.raises(OptionError, match=r"is not encrypted, so others on the network could read the token"):
        configured("http://grid.example.org", "gw_a_b")
    assert configured("http://grid.example.org", "gw_a_b", plain_http=True).plain_http
    assert configured("http://grid.example.org").token is None
    with pytest.raises(OptionError, match=r"is not encrypted"):
        configured("http://127.0.0.1.example.org", "gw_a_b")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "grid.example.org",
        "ftp://grid",
        "http://",
        "http://a:b",
        "http://a:0",
        "https://a?x=1",
        "//a",
        "https://a#b",
    ],
)
def test_what_is_no_address(url: str) -> None:
    """What is no address of a gateway is refused, with what would be one."""
    with pytest.raises(
        GridweaveError, match=r"is not the address of a gateway; write for example https|no grid runs here"
    ):
        configured(url)


def test_secrets_have_their_place() -> None:
    """A token is no part of an address, and holds no blanks."""
    with pytest.raises(OptionError, match="contains a user or a password; give the token separately"):
        configured("https://anna:secret@grid.example.org")
    for token in ("gw_a\nb", "gw a", "gw_\u20ac"):
        with pytest.raises(OptionError, match="token: contains characters"):
            configured("https://grid.example.org", token)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_an_error(url: str) -> None:
    """Whatever is given as an address is taken or refused in one line."""
    found = None
    with contextlib.suppress(OptionError):
        found = configured("https://" + url, environment={"GRIDWEAVE_CONFIG": "/dev/null"})
    assert found is None or found.url.startswith("https://")


def test_gateways_of_sites(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's own gateway is known by a table of the file, with a token of its own, or by the environment."""
    (file.parent / "alpha-token").write_text("gw_alpha_secret\n")
    file.write_text(
        FILE.replace("[profile.work]", '[sites.alpha]\nurl = "https://alpha.example.org/"\ntoken_file = "alpha-token"\n'
        '[sites.b-1]\nurl = "https://b.example.org"\n\n[profile.work]')
    )  # fmt: skip
    found = configured()
    alpha = Connection(url="https://alpha.example.org", token="gw_alpha_secret")
    assert (gateway_of(found, "alpha"), gateway_of(found, "gamma")) == (alpha, None)
    assert gateway_of(configured(profile="work"), "alpha") is None
    # Of another grid than that of the file its sites say nothing.
    assert gateway_of(configured("https://other.example.org"), "alpha") is None
    monkeypatch.setenv("GRIDWEAVE_SITE_B_1_URL", "https://other.example.org")
    monkeypatch.setenv("GRIDWEAVE_SITE_B_1_TOKEN", "gw_b_secret")
    other = Connection(url="https://other.example.org", token="gw_b_secret")
    assert gateway_of(configured(), "b-1") == other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[sites.alpha]\ntoken = "x"', ":2: sites.alpha.url: is missing"),
        ('[sites.alpha]\nurl = "https://a"\nsite = "b"', ":4: sites.alpha.site: is not known"),
        ("sites = 3", ":2: sites: must be tables"),
        ('[sites.alpha]\nurl = "https://a"\ntoken_file = "missing"', ":4: sites.alpha.token_file: "),
    ],
)
def test_what_is_wrong_with_the_gateway_of_a_site(file: Path, text: str, says: str) -> None:
    """A mistake in such a table is told with file, line and field."""
    file.write_text(f'url = "https://grid.example.org"\n{text}')
    with pytest.raises(InputError) as caught:
        configured()
    assert str(caught.value).startswith(f"{file}{says}")
