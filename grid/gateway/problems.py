"""All kinds of refusals, in one table (docs/gateway.md, "Problems")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gridweave.errors import GridweaveError
from gridweave.grid.api import FieldProblem, Problem

URN = "urn:gridweave:problem:"

_MOST_DETAIL = 1_000


class Kind(NamedTuple):
    """Status and title that all refusals of a kind share."""

    status: int
    title: str


KINDS: dict[str, Kind] = {
    "bad-http": Kind(400, "The request is not well-formed HTTP"),
    "malformed-body": Kind(400, "The body cannot be read"),
    "link-version": Kind(400, "The other end of the link has another version"),
    "unauthenticated": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "The token does not permit this"),
    "link-refused": Kind(401, "The other end of the link is unknown"),
    "foreign-origin": Kind(403, "The request comes from a page of another origin"),
    "unknown-route": Kind(404, "There is nothing at this path"),
    "unknown-job": Kind(404, "There is no such job"),
    "unknown-site": Kind(404, "There is no such site"),
    "unknown-machine": Kind(404, "The site has no such machine"),
    "unknown-token": Kind(404, "There is no such token"),
    "wrong-method": Kind(405, "The path does not support this method"),
    "not-acceptable": Kind(406, "The answer is not available in an accepted media type"),
    "slow-body": Kind(408, "The body did not arrive in time"),
    "too-many-open-jobs": Kind(409, "The user has too many open jobs"),
    "machine-answers": Kind(409, "The machine still answers"),
    "output-removed": Kind(410, "The output of the job was removed"),
    "body-too-large": Kind(413, "The body is too large"),
    "too-many-jobs": Kind(413, "Too many jobs in one request"),
    "unsupported-media-type": Kind(415, "The media type of the body is not supported"),
    "unknown-expectation": Kind(417, "The Expect header is not supported"),
    "invalid-request": Kind(422, "A field of the request is invalid"),
    "declined": Kind(422, "The job was not accepted"),
    "too-many-failed-logins": Kind(429, "Too many logins have failed"),
    "too-many-requests": Kind(429, "Too many requests in a short time"),
    "too-many-at-once": Kind(429, "Too many requests at once"),
    "too-many-streams": Kind(429, "Too many streams at once"),
    "internal": Kind(500, "The gateway failed"),
    "unavailable": Kind(503, "The grid does not answer"),
    "site-unavailable": Kind(503, "The site does not answer"),
    "tokens-unavailable": Kind(503, "The tokens cannot be read"),
    "issuer-unavailable": Kind(503, "The issuer of tokens does not answer"),
    "busy": Kind(503, "The gateway is overloaded"),
}
"""Kinds by name; the ``type`` of a problem document is ``urn:gridweave:problem:NAME``."""


class RefusalError(GridweaveError):
    """A refused request. `detail` says what is wrong and what would be right; `kind` is one of `KINDS`."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """HTTP status."""
        return KINDS[self.kind].status

    def document(self, request_id: str) -> Problem:
        """Return the problem document.

        Examples
        --------
        >>> RefusalError("unknown-job", "there is no job 7").document("r1").type
        'urn:gridweave:problem:unknown-job'
        """
        return Problem(
            type=URN + self.kind,
            title=KINDS[self.kind].title,
            status=self.status,
            detail=shortened(self.detail),
            instance=request_id,
            errors=self.errors,
            retry_after_s=self.retry_after_s,
        )


def refused_field(where: str, detail: str, kind: str = "invalid-request") -> RefusalError:
    """Return a refusal that names one field of the request."""
    return RefusalError(kind, f"{where} {detail}", errors=[FieldProblem(where=where, detail=detail)])


def wrong_method(path: str, method: str, allowed: Iterable[str]) -> RefusalError:
    """Return the refusal for a method that a path does not support."""
    right = ", ".join(allowed)
    return RefusalError("wrong-method", f"{path!r:.200} takes {right}, not {method!r:.50}", headers={"Allow": right})


def shortened(text: str) -> str:
    """Return a text on one line, without its middle if it is long; the text may come from a client."""
    line = " ".join(text.split())
    if len(line) > _MOST_DETAIL:
        half = _MOST_DETAIL // 2
        line = f"{line[:half]} ... {line[-half:]}"
    return line.encode("utf-8", "replace").decode()
