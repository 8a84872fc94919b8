"""The files of the pages, as the gateway sends them: each whole, with a mark by which a browser knows it again."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from gridweave.grid.gateway.call import GatewayCall
from gridweave.grid.gateway.problems import RefusalError, wrong_method

FOLDER = Path(__file__).parent / "static"

POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Pages load their own files and ask this gateway, nobody else; what a text of a job says is run by no browser."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # A browser asks each time whether it is still the same; after an update no page is half old.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}

_FORMS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class WebFile(NamedTuple):
    """A file of the pages."""

    data: bytes
    packed: bytes  # with gzip
    form: str
    mark: str  # its ETag


@functools.cache
def web_files() -> dict[str, WebFile]:
    """Return all files by their paths; nothing else on the disk is looked at when a browser asks."""
    found = {f"/web/{path.relative_to(FOLDER).as_posix()}": _read(path) for path in FOLDER.rglob("*") if path.is_file()}
    served = {path: file for path, file in found.items() if Path(path).suffix in _FORMS}
    return served | {"/": served["/web/index.html"], "/favicon.ico": served["/web/icon.svg"]}


def _read(path: Path) -> WebFile:
    data = path.read_bytes()
    mark = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    return WebFile(data, gzip.compress(data, mtime=0), _FORMS.get(path.suffix, ""), mark)


def is_of_web(path: str) -> bool:
    """Return whether a path is one of the pages'."""
    return path in ("/", "/favicon.ico") or path.startswith("/web/")


def send_file(call: GatewayCall) -> web.Response:
    """Return the answer to a browser that asks for a file."""
    request = call.request
    file = web_files().get(request.path)
    if file is None:
        raise RefusalError("unknown-route", f"there is no page {request.path!r:.200}; the first one is at /")
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.path, request.method, ["GET", "HEAD"])
    headers = {**call.headers, **_HEADERS, "ETag": file.mark}
    if request.headers.get("If-None-Match") == file.mark:
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = file.form
    data = file.data
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        data, headers["Content-Encoding"] = file.packed, "gzip"
    call.bytes_out += len(data)
    return web.Response(body=data, headers=headers)
