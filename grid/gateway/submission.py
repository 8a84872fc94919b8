"""Submit jobs: decode and check them one by one, set their keys and users, and pass them to the grid."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from gridweave.errors import GridweaveError
from gridweave.grid.api import FieldProblem, Key, NewJob, SubmitAnswer, Submitted, TokenLimits
from gridweave.grid.gateway.access import limit_problem
from gridweave.grid.gateway.call import GatewayCall
from gridweave.grid.gateway.limits import check_count, open_at_site
from gridweave.grid.gateway.problems import RefusalError, refused_field
from gridweave.grid.gateway.wire import decode
from gridweave.site.job import Accepted, Declined, JobRequest
from gridweave.site.launch import json_problem, nested_values

MOST_WEIGHT = 1e9
"""Maximum weight and priority of a job; limited because policies multiply them by nodes and times."""

_MOST_NAME = 200
_MOST_KEY = 190
_MOST_PARTS = 1_000_000
"""Maximum number of arguments, variables and values in one request; each is far larger in memory than on the wire."""
_MOST_ERRORS = 20
_IN_ONE_GO = 200


class _TooManyError(GridweaveError, ValueError):
    """The request has more jobs than allowed."""


class _RawJob(msgspec.Struct):
    """A job whose fields have not been decoded yet."""

    request: msgspec.Raw
    key: Key | None = None

    def __post_init__(self) -> None:
        _Counting.left -= 1
        if _Counting.left < 0:
            raise _TooManyError("there are more jobs than one request may have")


class _Counting:
    """Counts decoded jobs against the limit. One counter is enough, as nothing else runs while a body is decoded."""

    left = 0


class _RawJobs(msgspec.Struct):
    jobs: list[_RawJob]
    site: str | None = None


async def submit(call: GatewayCall) -> Submitted:
    """Submit jobs, and answer once they are durable. If there is a single job and it is declined, return a problem."""
    site, jobs = await _read(call)
    call.jobs = len(jobs)
    keys = _keys(call, jobs)
    problems = [keeping_problem(job.request) for job in jobs]
    good = [place for place, problem in enumerate(problems) if problem is None]
    answers: list[Accepted | Declined] = [Declined("", problem or "") for problem in problems]
    passed = [(_of_user(jobs[place].request.user, keys[place]), jobs[place].request) for place in good]
    _check_unique(call, passed, good)
    for place, answer in zip(good, await _submit_all(call, passed, site) if passed else [], strict=True):
        answers[place] = answer
    if len(answers) == 1 and isinstance(answers[0], Declined):
        raise RefusalError("declined", answers[0].reason)
    return Submitted(answers=[_answer(key, answer) for key, answer in zip(keys, answers, strict=True)])


def _answer(key: str, answer: Accepted | Declined) -> SubmitAnswer:
    if isinstance(answer, Accepted):
        return SubmitAnswer(key=key, job_id=answer.job_id)
    return SubmitAnswer(key=key, reason=answer.reason)


async def _submit_all(
    call: GatewayCall, jobs: list[tuple[str, JobRequest]], site: str | None
) -> Sequence[Accepted | Declined]:
    """Submit jobs to the grid, or raise RefusalError if a user would have too many open jobs."""
    parts = call.parts
    users = [(key, request.user) for key, request in jobs]
    if site is None:
        await parts.open_jobs.loaded()
        with parts.open_jobs.admitting(users) as answered:
            answers = await parts.backend.submit(jobs, site=None, origin=call.origin)
            answered(answers)
        return answers
    for user in sorted({user for _, user in users}):
        new = sum(other == user for _, other in users)
        most = parts.settings.max_open_jobs
        check_count(user, new, await open_at_site(parts.backend, site, user, most), most)
    return await parts.backend.submit(jobs, site=site, origin=call.origin)


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_raw(call: GatewayCall) -> _RawJobs:
    """Return a request's jobs without decoding their fields."""
    most = call.parts.settings.max_jobs
    _Counting.left = most
    try:
        return decode(call.data, call.form, _RawJobs)
    except RefusalError:
        if _Counting.left < 0:
            problem = f"more than {most} jobs; use several requests"
            raise RefusalError("too-many-jobs", problem) from None
        raise


async def _read(call: GatewayCall) -> tuple[str | None, list[NewJob]]:
    """Return the site and the decoded jobs; report all fields of wrong types at once."""
    raw = _read_raw(call)
    call.data = b""
    most_bytes = call.parts.settings.max_job_bytes
    jobs: list[NewJob] = []
    problems: list[FieldProblem] = []
    parts = 0
    for index, raw_job in enumerate(raw.jobs):
        try:
            request = _read_one(raw_job, f"jobs[{index}].request", call.form, most_bytes)
        except RefusalError as error:
            if not error.errors:
                raise
            problems += error.errors
            if len(problems) >= _MOST_ERRORS:
                break
            continue
        parts += _count_parts(request)
        if parts > _MOST_PARTS:
            problem = f"the jobs have more than {_MOST_PARTS} arguments and variables; use several requests"
            raise RefusalError("body-too-large", problem)
        jobs.append(NewJob(request=call.as_user(request, f"jobs[{index}].request"), key=raw_job.key))
        if index % _IN_ONE_GO == _IN_ONE_GO - 1:
            await asyncio.sleep(0)  # let other requests run in between
    if problems:
        raise RefusalError("invalid-request", f"{problems[0].where}: {problems[0].detail}", errors=problems)
    return raw.site, _within_limits(call.identity.info.limits, raw.site, jobs)


def _within_limits(limits: TokenLimits, site: str | None, jobs: list[NewJob]) -> list[NewJob]:
    """Set missing accounts if the token allows only one; refuse all jobs if any job violates the token's limits."""
    if limits == TokenLimits():
        return jobs
    if len(limits.accounts) == 1:
        account = limits.accounts[0]
        jobs = [
            job if job.request.account else NewJob(request=replace(job.request, account=account), key=job.key)
            for job in jobs
        ]
    problems = ((place, limit_problem(limits, site, job.request)) for place, job in enumerate(jobs))
    wrong = [
        FieldProblem(where=what if what == "site" else f"jobs[{place}].request.{what}", detail=detail)
        for place, (what, detail) in ((place, problem) for place, problem in problems if problem is not None)
    ]
    if wrong:
        raise RefusalError("forbidden", f"{wrong[0].where} {wrong[0].detail}", errors=wrong[:_MOST_ERRORS])
    return jobs


def _read_one(raw: _RawJob, where: str, form: str, most_bytes: int) -> JobRequest:
    size = len(memoryview(raw.request))
    if size > most_bytes:
        raise RefusalError("body-too-large", f"{where} has {size} bytes; at most {most_bytes}: put data into a file")
    return decode(raw.request, form, JobRequest, where)


def _count_parts(request: JobRequest) -> int:
    program = request.program
    count = len(program.argv) + len(program.environment) + len(request.after)
    return (
        count
        if program.call is None
        else count + sum(1 for _ in nested_values([program.call.args, program.call.kwargs]))
    )


# -- keys -------------------------------------------------------------------------------------------------------------


def _keys(call: GatewayCall, jobs: Sequence[NewJob]) -> list[str]:
    """Return each job's idempotency key: its own, or one made from the ``Idempotency-Key`` header or a random text."""
    header = call.request.headers.get("Idempotency-Key")
    if header is not None and not (1 <= len(header) <= _MOST_KEY and header.isprintable()):
        detail = f"is {header[:50]!r}; 1 to {_MOST_KEY} printable characters"
        raise refused_field("Idempotency-Key", detail)
    if header is None:
        header = secrets.token_hex(12)
    return [f"{header} {place}" if job.key is None else job.key for place, job in enumerate(jobs)]


def _of_user(user: str, key: str) -> str:
    """Return a key that is unique across users; the length of the user name makes the key unambiguous."""
    return f"{len(user)} {user} {key}"


def _check_unique(call: GatewayCall, passed: Sequence[tuple[str, JobRequest]], indices: Sequence[int]) -> None:
    """Refuse a key that occurs twice in a request, because its second job would never run."""
    first: dict[str, int] = {}
    for (key, _), place in zip(passed, indices, strict=True):
        if key in first:
            raise refused_field(f"jobs[{place}].key", f"is also the key of jobs[{first[key]}]")
        first[key] = place


# -- requests that cannot be stored ------------------------------------------------------------------------------------


def keeping_problem(request: JobRequest) -> str | None:
    """Return in one line why a request cannot be stored, or None if it can.

    Examples
    --------
    >>> from gridweave.site.job import Program
    >>> keeping_problem(JobRequest(program=Program(argv=("true",)), limit_ms=2**70))
    'limit_ms is a number that is too large; at most 64 bits'
    """
    for name, least in (("weight", 0.0), ("priority", -MOST_WEIGHT)):
        value = getattr(request, name)
        if not least <= value <= MOST_WEIGHT:
            return f"{name} is {value:g}; expected {least:g} to {MOST_WEIGHT:g}"
    for name in ("user", "account", "name", "job_class"):
        text = getattr(request, name)
        if len(text) > _MOST_NAME or not text.isprintable():
            return f"{name} is {text[:50]!r}; at most {_MOST_NAME} printable characters"
    call = request.program.call
    if call is not None:
        problem = json_problem([call.args, call.kwargs])
        if problem is not None:
            return f"the arguments of the callable hold {problem}"
    if _can_be_kept(request):
        return None
    return next((f"{name} is {what}" for name, what in _bad_fields(request)), "it contains invalid characters")


def _can_be_kept(request: JobRequest) -> bool:
    try:
        msgspec.msgpack.encode(request)
    except (OverflowError, RecursionError, ValueError, TypeError):
        return False
    numbers = [request.priority, request.weight, request.sensitivity]
    for part in (request.resources, request.traffic):
        if part is not None:
            numbers += [value for value in msgspec.structs.astuple(part) if isinstance(value, float)]
    return all(map(math.isfinite, numbers))


def _bad_fields(part: msgspec.Struct, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of each number that a journal cannot store, with the reason."""
    for name in part.__struct_fields__:
        value = getattr(part, name)
        for element in value if isinstance(value, tuple) else (value,):
            if isinstance(element, msgspec.Struct):
                yield from _bad_fields(element, f"{within}{name}.")
            elif isinstance(element, int) and not -(2**63) <= element < 2**64:
                yield within + name, "a number that is too large; at most 64 bits"
            elif isinstance(element, float) and not math.isfinite(element):
                yield within + name, f"{element}; a number that is finite"
