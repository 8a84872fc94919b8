"""HTTP between a site and the processes on its nodes, which send requests with MessagePack bodies.

These processes are not in a Ray cluster, because the batch system starts them on its own hosts.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from gridweave.errors import UnavailableError
from gridweave.site.service.calls import Door, answer_of, question
from gridweave.slurm.service.folder import SiteAddress

_MOST_BYTES = 64 << 20
_FORM = "application/msgpack"


class NodeServer:
    """Answers nodes that present the site's secret; other clients get status 401."""

    def __init__(self, hub: object, methods: Sequence[str], secret: bytes) -> None:
        self._door, self._secret = Door(hub, methods), secret
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post("/{method}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)

    async def open(self, host: str) -> int:
        """Listen on a free port of `host`; return the port."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        expected = self._secret.hex().encode()
        if not hmac.compare_digest(token.encode("utf-8", "replace"), expected) or scheme != "Bearer":
            raise web.HTTPUnauthorized
        try:
            answer = await self._door.ask(request.match_info["method"], await request.read())
        except UnavailableError as error:
            return web.Response(status=503, text=str(error))
        return web.Response(body=answer, content_type=_FORM)


class SiteConnection:
    """A node's connection to its site."""

    def __init__(self, address: SiteAddress, secret: bytes) -> None:
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._url = f"http://{host}:{address.port}"
        headers = {"Authorization": f"Bearer {secret.hex()}", "Content-Type": _FORM}
        # The caller sets the time limit. Ignore proxies in the user's environment.
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(), trust_env=False)

    async def call(self, method: str, kind: Any, *arguments: object) -> Any:
        """Call a method of the hub; return the answer, decoded as `kind`.

        Raises
        ------
        InputError
            If the site rejects the call.
        UnavailableError
            If there is no answer, or the site is unable to answer now.
        """
        if self._session.closed:
            raise UnavailableError(f"the connection to {self._url} has ended")
        try:
            async with self._session.post(f"{self._url}/{method}", data=question(*arguments)) as response:
                data = await response.read()
                if response.status != 200:
                    raise UnavailableError(
                        f"{self._url} answers with status {response.status}: {data[:200].decode(errors='replace')}"
                    )
        except aiohttp.ClientError as error:
            raise UnavailableError(f"{self._url} does not answer: {error}") from error
        return answer_of(data, msgspec.msgpack.Decoder(kind))

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()
