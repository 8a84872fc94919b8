"""Downloading known traces from a local server."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import lzma
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.scenarios.traces.fetch import KNOWN_TRACES, KnownTrace, cache_folder, fetch, resolve_name
from gridweave.scenarios.traces.text import open_trace

TEXT = b"; MaxNodes: 8\n1 0 -1 10 2 -1 -1 -1 20 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
NAME = "TEST-SP2-1999-1"


class Server(http.server.ThreadingHTTPServer):
    """A server that sends a configured response and counts requests."""

    body = gzip.compress(TEXT, mtime=0)
    announced: int | None = None
    requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every GET with the configured response."""

    server: Server

    def do_GET(self) -> None:
        """Send the body, a truncated body, or 404."""
        self.server.requests += 1
        if self.path != f"/{NAME}.swf.gz":
            self.send_error(404, "not here")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.announced or len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        """Suppress logging."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serve a trace locally, registered as a known trace with its SHA-256."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{running.server_port}/{NAME}.swf.gz"
        monkeypatch.setitem(KNOWN_TRACES, NAME, KnownTrace(url, hashlib.sha256(TEXT).hexdigest(), 8))
        yield running
        running.shutdown()
        thread.join()


def test_a_trace_is_downloaded_verified_and_kept(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "traces"
    got = fetch(NAME, folder=folder)
    assert (got.name, got.path, got.downloaded, got.nodes) == (NAME, folder / f"{NAME}.swf.gz", True, 8)
    assert got.path.read_bytes() == server.body
    assert [file.name for file in folder.iterdir()] == [got.path.name]


def test_an_existing_trace_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    """Its compression does not matter."""
    for suffix, pack in ((".swf", bytes), (".swf.gz", gzip.compress), (".swf.xz", lzma.compress)):
        path = tmp_path / suffix / f"{NAME}{suffix}"
        path.parent.mkdir()
        path.write_bytes(pack(TEXT))
        got = fetch("test-sp2", folder=path.parent)
        assert (got.path, got.downloaded) == (path, False)
    assert server.requests == 0


def test_an_existing_file_with_other_content_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.swf.gz").write_bytes(gzip.compress(b"something else", mtime=0))
    assert fetch(NAME, folder=tmp_path).downloaded
    assert (tmp_path / f"{NAME}.swf.gz").read_bytes() == server.body


@pytest.mark.parametrize(
    "body", [gzip.compress(TEXT + b"\n", mtime=0), gzip.compress(TEXT, mtime=0)[:-9], b"<html>moved</html>", b""]
)
def test_a_download_with_another_checksum_is_refused(server: Server, tmp_path: Path, body: bytes) -> None:
    """Nothing is kept."""
    server.body = body
    with pytest.raises(UnavailableError, match="does not have the expected SHA-256; nothing was kept") as caught:
        fetch(NAME, folder=tmp_path)
    assert caught.value.exit_status == 3
    assert not list(tmp_path.iterdir())


def test_a_broken_connection_leaves_files_unchanged(server: Server, tmp_path: Path) -> None:
    server.announced = len(server.body)
    server.body = server.body[:-20]
    (tmp_path / f"{NAME}.swf.gz").write_bytes(b"old")
    with pytest.raises(UnavailableError):
        fetch(NAME, folder=tmp_path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(f"{NAME}.swf.gz", b"old")]


def test_without_network_the_error_names_url_and_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/{NAME}.swf.gz"
        monkeypatch.setitem(KNOWN_TRACES, NAME, KnownTrace(url, "0" * 64, 8))
        with pytest.raises(UnavailableError) as caught:
            fetch(NAME, folder=tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{url} cannot be fetched: ")
    assert text.endswith(f"download it in another way and save it as {tmp_path / f'{NAME}.swf.gz'}")
    assert "\n" not in text
    assert not list(tmp_path.iterdir())


def test_a_missing_page_is_reported_with_its_url(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{server.server_port}/gone.swf.gz"
    monkeypatch.setitem(KNOWN_TRACES, NAME, KnownTrace(url, "0" * 64, 8))
    with pytest.raises(UnavailableError, match=r"gone\.swf\.gz cannot be fetched: .*not here"):
        fetch(NAME, folder=tmp_path)


def test_a_timeout_is_reported_in_one_line(tmp_path: Path) -> None:
    waited = []

    def never(url: str, timeout_s: float) -> Any:
        waited.append(timeout_s)
        raise TimeoutError("timed out")

    with pytest.raises(UnavailableError, match="cannot be fetched: timed out"):
        fetch("KTH-SP2-1996-2", folder=tmp_path, opener=never)
    assert waited[0] > 0


def test_unknown_names_and_unusable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"nowhere: there is no trace with this name; traces are CTC-SP2-1996-3\.1-cln"
    ):
        fetch("nowhere", folder=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        fetch("KTH-SP2", folder=tmp_path / "file" / "traces")


def test_a_unique_prefix_up_to_a_hyphen_names_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_name("kth-sp2-1996-2") == "KTH-SP2-1996-2"
    assert resolve_name("KTH-SP2") == resolve_name("kth") == "KTH-SP2-1996-2"
    assert resolve_name("KTH-SP") is None
    assert resolve_name("") is None
    monkeypatch.setitem(KNOWN_TRACES, "KTH-SP2-1996-2.1-cln", KNOWN_TRACES["KTH-SP2-1996-2"])
    assert resolve_name("KTH-SP2") is None
    assert resolve_name("KTH-SP2-1996-2") == "KTH-SP2-1996-2"


def test_every_known_trace_has_a_valid_entry() -> None:
    for name, trace in KNOWN_TRACES.items():
        assert trace.url.startswith("https://www.cs.huji.ac.il/labs/parallel/workload/l_")
        assert trace.url.endswith(f"/{name}.swf.gz")
        assert len(bytes.fromhex(trace.sha256)) == 32
        assert trace.nodes > 0
    assert cache_folder().name == "traces"


@pytest.mark.trace
@pytest.mark.parametrize("name", sorted(KNOWN_TRACES))
def test_checksums_match_the_local_traces(trace_path: Any, name: str) -> None:
    with open_trace(trace_path(name)) as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == KNOWN_TRACES[name].sha256
