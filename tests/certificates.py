"""Certificates for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a self-signed certificate for this machine and its key; return the paths of both."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return str(cert), str(key)
