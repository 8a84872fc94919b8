"""Codes by which a browser logs in once, as `gridweave open` has them made."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from gridweave.grid.api import TokenInfo
from gridweave.grid.gateway.problems import RefusalError

CODE_S = 60.0
"""So long a code for a login is good."""

_MOST_CODES = 100


class LoginCodes:
    """The codes by which somebody may log in, each once, within a minute; they are in the memory of this gateway.

    Examples
    --------
    >>> codes = LoginCodes(lambda: 0.0)
    >>> info = TokenInfo(token_id="1f0c9a77d2e4", user="anna", scopes=("read",), made_ms=0)
    >>> code = codes.make(info)
    >>> codes.take(code).user, codes.take(code)
    ('anna', None)
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._codes: dict[str, tuple[float, TokenInfo]] = {}

    def make(self, info: TokenInfo) -> str:
        """Return a new code for who has a token."""
        now_s = self._now_s()
        self._codes = {code: kept for code, kept in self._codes.items() if kept[0] > now_s}
        if len(self._codes) >= _MOST_CODES:
            problem = f"{_MOST_CODES} codes were made within {CODE_S:g} s; wait, and ask again"
            raise RefusalError("too-many-requests", problem, retry_after_s=CODE_S)
        code = secrets.token_urlsafe(32)
        self._codes[code] = now_s + CODE_S, info
        return code

    def take(self, code: str) -> TokenInfo | None:
        """Return whose code it is, which is good no more; None if it never was, or is too old."""
        until_s, info = self._codes.pop(code, (0.0, None))
        return info if until_s > self._now_s() else None
