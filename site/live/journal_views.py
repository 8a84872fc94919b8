"""What is asked of a journal, from its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, func, select

from gridweave.errors import InputError
from gridweave.site.live.journal_records import (
    ChannelState,
    Codec,
    Experience,
    Group,
    Input,
    JobFilter,
    Note,
    NumberedNote,
    Submission,
    Usage,
    experience_of,
)
from gridweave.site.live.journal_step import plain, sites_text
from gridweave.site.live.journal_store import execute_plain
from gridweave.site.live.journal_tables import channels, ended, inputs, notes, outbox, submissions, usage
from gridweave.site.program import JobRecord

_PAGE = 1000

# Asked for each job that is handed in alone: to make it anew would take longer than to answer it.
_SUBMISSION = select(submissions).where(submissions.c.key == bindparam("asked"))
_SUBMISSIONS = select(submissions).where(submissions.c.key.in_(bindparam("asked", expanding=True)))


def read_inputs(
    reading: Callable[[], AbstractContextManager[Connection]], codec: Codec, where: str, after: int
) -> Iterator[Input]:
    """Yield the inputs after one, page by page; InputError if one is missing."""
    while True:
        query = select(inputs).where(inputs.c.sequence > after).order_by(inputs.c.sequence).limit(_PAGE)
        with reading() as connection:
            page = connection.execute(query).all()
        for row in page:
            if row.sequence != after + 1:
                raise InputError(
                    f"{where}: inputs {after + 1} to {row.sequence - 1} are missing; restore the journal from a copy"
                )
            after = row.sequence
            yield Input(after, row.now_ms, codec.decode_all(row.events, f"{where}: input {after}"), row.decided)
        if len(page) < _PAGE:
            return


def read_channel(connection: Connection, codec: Codec, where: str, peer: str) -> ChannelState:
    """Return the state of one end of a connection."""
    found = connection.execute(select(channels).where(channels.c.peer == peer)).one_or_none()
    if found is None:
        return ChannelState()
    rows = connection.execute(select(outbox).where(outbox.c.peer == peer).order_by(outbox.c.number)).all()
    if [row.number for row in rows] != list(range(found.first, found.next)):
        raise InputError(f"{where}: messages to {peer} are missing; restore the journal from a copy")
    messages = tuple(codec.decode(row.message, f"{where}: message {row.number} to {peer}") for row in rows)
    return ChannelState(found.first, messages, found.received)


def read_submissions(connection: Connection, codec: Codec, where: str, keys: Sequence[str]) -> dict[str, Submission]:
    """Return the submissions of these keys."""
    if len(keys) == 1:
        rows = list(execute_plain(connection, _SUBMISSION, {"asked": keys[0]}))
    else:
        pages = (keys[start : start + _PAGE] for start in range(0, len(keys), _PAGE))
        rows = [row for page in pages for row in connection.execute(_SUBMISSIONS, {"asked": page})]
    found: dict[str, Submission] = {}
    for row in rows:
        answer = codec.decode(row.answer, f"{where}: submission {row.key!r:.100}")
        found[row.key] = Submission(row.key, row.job_id, row.at_ms, answer)
    return {key: found[key] for key in keys if key in found}


def read_story(connection: Connection, job_id: int) -> list[Note]:
    """Return the notes about a job."""
    query = select(notes).where(notes.c.job_id == job_id).order_by(notes.c.number)
    return [Note(row.job_id, row.at_ms, row.kind, row.detail) for row in connection.execute(query)]


def read_notes(connection: Connection, after: int, limit: int) -> list[NumberedNote]:
    """Return the notes about all jobs after one."""
    query = select(notes).where(notes.c.number > after).order_by(notes.c.number).limit(limit)
    return [NumberedNote(*row) for row in connection.execute(query)]


def read_ended(connection: Connection, where: str, job_ids: Sequence[int]) -> dict[int, JobRecord]:
    """Return what is kept of jobs that are over."""
    found: dict[int, JobRecord] = {}
    for start in range(0, len(job_ids), _PAGE):
        chosen = ended.c.job_id.in_(job_ids[start : start + _PAGE])
        for job_id, data in connection.execute(select(ended.c.job_id, ended.c.record).where(chosen)):
            found[job_id] = _record(data, where, job_id)
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def find_ended(connection: Connection, where: str, query: JobFilter) -> list[JobRecord]:
    """Return the newest jobs that are over and that are asked for, the newest first."""
    columns = ended.c
    chosen = select(columns.job_id, columns.record).order_by(columns.job_id.desc()).limit(query.limit)
    for column, wanted in ((columns.user, query.user), (columns.name, query.name), (columns.array, query.array)):
        if wanted is not None:
            chosen = chosen.where(column == plain(wanted))
    if query.site is not None:
        chosen = chosen.where(columns.sites.contains(sites_text([plain(query.site)]), autoescape=True))
    if query.states:
        chosen = chosen.where(columns.state.in_(query.states))
    if query.outcomes:
        chosen = chosen.where(columns.outcome.in_(query.outcomes))
    if query.below is not None:
        chosen = chosen.where(columns.job_id < query.below)
    return [_record(data, where, job_id) for job_id, data in connection.execute(chosen)]


_RECORDS = msgspec.msgpack.Decoder(JobRecord)


def _record(data: bytes, where: str, job_id: int) -> JobRecord:
    try:
        return _RECORDS.decode(data)
    except msgspec.MsgspecError as error:
        raise InputError(f"{where}: what is kept of job {job_id} cannot be read: {error}") from error


def read_experience(
    connection: Connection, user: str | int | None, job_class: str | int | None, last: int
) -> Experience:
    """Return what the newest jobs of a user and class have used."""
    query = select(usage)
    if user is not None:
        query = query.where(usage.c.user == str(user))
    if job_class is not None:
        query = query.where(usage.c.job_class == str(job_class))
    return experience_of(_newest(connection, query, last))


def read_usage(connection: Connection, group: Group, last: int) -> list[Usage]:
    """Return what the newest jobs of exactly this user and class have used, in the order in which it was recorded."""
    query = select(usage).where(
        usage.c.user.is_not_distinct_from(group.user), usage.c.job_class.is_not_distinct_from(group.job_class)
    )
    return _newest(connection, query, last)[::-1]


def _newest(connection: Connection, query: Select[Any], last: int) -> list[Usage]:
    rows = connection.execute(query.order_by(usage.c.number.desc()).limit(last)).mappings()
    return [Usage(**{name: row[name] for name in Usage.__struct_fields__}) for row in rows]


def read_groups(connection: Connection) -> list[Group]:
    """Return of which users and classes there is experience."""
    names = usage.c.user, usage.c.job_class
    found = connection.execute(select(*names, func.count()).group_by(*names))
    groups = [Group(user, job_class, count) for user, job_class, count in found]
    return sorted(groups, key=lambda group: (group.user or "", group.job_class or ""))
