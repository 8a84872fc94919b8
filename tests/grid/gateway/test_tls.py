"""TLS: from files, that are checked, and read again when they are renewed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from gridweave.errors import OptionError
from gridweave.grid.config.gateway import Certificate
from support.gateway import FakeBackend, serving
from support.machine import make_certificate


async def ask_over_tls(url: str, cert: str, version: ssl.TLSVersion | None = None) -> int:
    """Return the status of a request whose server must have a certificate."""
    context = ssl.create_default_context(cafile=cert)
    if version is not None:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = version
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{url}/healthz") as response:
        return response.status


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ssl", "ignore:ssl.TLSVersion:DeprecationWarning")
async def test_it_speaks_tls_and_takes_a_new_certificate(tmp_path: Path) -> None:
    """With a certificate it speaks TLS from 1.2 on alone; renewed files count for connections from then on."""
    cert, key = make_certificate(tmp_path, "first")
    async with serving(FakeBackend(), cert=cert, key=key) as grid:
        assert grid.url.startswith("https://")
        old = Path(cert).read_bytes()
        assert await ask_over_tls(grid.url, cert) == 200
        with pytest.raises(aiohttp.ClientError):
            await ask_over_tls(grid.url, cert, ssl.TLSVersion.TLSv1_1)
        new_cert, new_key = make_certificate(tmp_path, "second")
        Path(cert).write_bytes(Path(new_cert).read_bytes())
        grid.gateway.reload_certificate()  # the key is still the old one
        (tmp_path / "old.pem").write_bytes(old)
        assert await ask_over_tls(grid.url, str(tmp_path / "old.pem")) == 200
        Path(key).write_bytes(Path(new_key).read_bytes())
        certificate = grid.gateway._certificate
        assert certificate is not None
        assert certificate.has_changed()
        grid.gateway.reload_certificate()
        assert not certificate.has_changed()
        assert await ask_over_tls(grid.url, new_cert) == 200
        with pytest.raises(aiohttp.ClientError):
            await ask_over_tls(grid.url, str(tmp_path / "old.pem"))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A missing, unreadable, wrong or encrypted file, and a key of another certificate, are refused by their names."""
    cert, key = make_certificate(tmp_path, "first")
    _, other_key = make_certificate(tmp_path, "other")
    text = tmp_path / "text"
    text.write_text("no certificate")
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    locked = tmp_path / "locked"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(locked)],
        check=True,
        capture_output=True,
    )
    for wrong_cert, wrong_key, named in (
        ("nowhere.pem", key, "nowhere.pem"),
        (cert, "nowhere.key", "nowhere.key"),
        (str(tmp_path), key, str(tmp_path)),
        (str(text), key, "text is not a PEM file"),
        (str(broken), key, "broken"),
        (cert, other_key, "other.key is not the key"),
        (cert, str(locked), "locked is encrypted"),
    ):
        with pytest.raises(OptionError, match=named):
            Certificate(wrong_cert, wrong_key)
