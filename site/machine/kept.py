"""Record the ended node tasks whose folders a machine keeps, their sizes, and when and why folders were removed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gridweave.site.launch import OutputLimits, Removal
from gridweave.site.machine.folders import Key, opened_folders

KEPT = "kept.db"

MOST_REMOVALS = 200_000
"""Number of removals that a machine remembers; for older removals, the time and reason are forgotten."""

DAY_MS = 86_400_000

_BLOCK_BYTES = 4096

_TABLES = """
CREATE TABLE IF NOT EXISTS kept (
    job_id INTEGER, attempt INTEGER, user TEXT, ended_ms INTEGER, bytes INTEGER, PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS kept_by_user ON kept (user, ended_ms, job_id, attempt, bytes);
CREATE INDEX IF NOT EXISTS kept_by_age ON kept (ended_ms);
CREATE TABLE IF NOT EXISTS removed (
    job_id INTEGER, attempt INTEGER, at_ms INTEGER, reason TEXT, PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS removed_by_time ON removed (at_ms);
"""


class KeptNodeTask(NamedTuple):
    """A node task whose end the site has recorded; ``size_bytes`` is the disk use of its folder."""

    key: Key
    user: str
    ended_ms: int  # Unix time
    size_bytes: int


class UserUse(NamedTuple):
    """The number of a user's registered node tasks, and their total disk use."""

    node_tasks: int
    size_bytes: int


def excess(oldest_first: Iterable[KeptNodeTask], use: UserUse, limit_bytes: int) -> list[KeptNodeTask]:
    """Return a user's oldest node tasks that must be removed to meet the limit; the newest task is always kept.

    Parameters
    ----------
    oldest_first : iterable of KeptNodeTask
        The user's node tasks on the machine; consumed only as far as needed.
    use : UserUse
        The user's totals.

    Examples
    --------
    >>> tasks = [KeptNodeTask((number, 1), "anna", number, 40) for number in range(4)]
    >>> [task.key[0] for task in excess(tasks, UserUse(4, 160), 100)], excess(tasks, UserUse(4, 160), 160)
    ([0, 1], [])
    >>> excess(tasks[:1], UserUse(1, 40), 10)
    []
    """
    excess_tasks, left_bytes = [], use.size_bytes
    for node_task in islice(oldest_first, max(0, use.node_tasks - 1)):
        if left_bytes <= limit_bytes:
            break
        left_bytes -= node_task.size_bytes
        excess_tasks.append(node_task)
    return excess_tasks


def folder_bytes(folder: Path) -> tuple[int, bool]:
    """Return the disk use of a folder with everything below it, and whether everything could be read.

    Each entry counts as at least one block (4 KiB), so that the limit also bounds the number of files. Unreadable
    folders of this user are made readable first; the contents of other unreadable folders are not counted.
    """
    total, is_whole = _BLOCK_BYTES, True
    for entries in opened_folders(folder, stat.S_IRUSR | stat.S_IXUSR):
        is_whole &= entries is not None
        for entry in entries or ():
            with contextlib.suppress(OSError):
                total += max(_BLOCK_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
    return total, is_whole


class KeptNodeTasks:
    """The register of a machine's ended node tasks, stored in a database.

    A task is registered once the site has recorded its end. The methods are thread-safe.

    Parameters
    ----------
    root : pathlib.Path
        The register's folder, which only one process may use at a time.
    where : str
        Where the size limits apply, as text for messages, e.g. "on the machine".
    """

    def __init__(self, root: Path, limits: OutputLimits, where: str = "on the machine") -> None:
        self._limits, self._where = limits, where
        self._lock = threading.Lock()
        try:
            self._database = _opened(root / KEPT)
        except sqlite3.DatabaseError:
            # The register is damaged: start with an empty one. The tasks on disk will be reported and registered again.
            (root / KEPT).replace(root / f"{KEPT}.damaged")
            self._database = _opened(root / KEPT)
        self._uses = self._counted()

    def close(self) -> None:
        """Close the database as soon as no other thread is using it."""
        with self._lock:
            self._database.close()

    def registered(self) -> set[Key]:
        """Return the keys of all registered node tasks."""
        with self._lock:
            return set(self._database.execute("SELECT job_id, attempt FROM kept"))

    def has(self, key: Key) -> bool:
        """Whether a node task is registered."""
        with self._lock:
            return bool(self._database.execute("SELECT 1 FROM kept WHERE job_id = ? AND attempt = ?", key).fetchone())

    def removal(self, key: Key) -> Removal | None:
        """Return when and why a node task's folder was removed, or None if no removal is recorded."""
        with self._lock:
            query = "SELECT at_ms, reason FROM removed WHERE job_id = ? AND attempt = ?"
            row = self._database.execute(query, key).fetchone()
        return None if row is None else Removal(*row)

    def register(self, node_tasks: Iterable[KeptNodeTask], now_ms: int) -> list[Key]:
        """Add node tasks; return the tasks whose folders must be removed now, already recorded as removed.

        Raises
        ------
        OSError
            If the database is closed or cannot be written, e.g. because the disk is full. The register stays unchanged.
        """
        with self._lock:
            try:
                with self._database:
                    return self._registered(node_tasks, now_ms)
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.ProgrammingError):  # the database is closed
                    self._uses = self._counted()
                raise OSError(f"{KEPT} cannot be written: {error}") from error

    def _registered(self, node_tasks: Iterable[KeptNodeTask], now_ms: int) -> list[Key]:
        for node_task in node_tasks:
            row = (*node_task.key, node_task.user, node_task.ended_ms, node_task.size_bytes)
            self._drop(node_task.key)
            self._database.execute("INSERT INTO kept VALUES (?, ?, ?, ?, ?)", row)
            self._count(node_task.user, 1, node_task.size_bytes)
        reasons = self._too_old(now_ms) | self._too_much()
        for key, reason in reasons.items():
            self._drop(key)
            self._database.execute("INSERT OR REPLACE INTO removed VALUES (?, ?, ?, ?)", (*key, now_ms, reason))
        if reasons:
            oldest = "SELECT at_ms FROM removed ORDER BY at_ms DESC LIMIT 1 OFFSET ?"
            self._database.execute(f"DELETE FROM removed WHERE at_ms < ({oldest})", (MOST_REMOVALS - 1,))
        return list(reasons)

    def _counted(self) -> dict[str, UserUse]:
        uses = self._database.execute("SELECT user, count(*), sum(bytes) FROM kept GROUP BY user")
        return {user: UserUse(node_tasks, size_bytes) for user, node_tasks, size_bytes in uses}

    def _drop(self, key: Key) -> None:
        """Remove a node task from the register if it is registered."""
        where = "FROM kept WHERE job_id = ? AND attempt = ?"
        for user, size_bytes in self._database.execute(f"SELECT user, bytes {where}", key).fetchall():
            self._count(user, -1, -size_bytes)
        self._database.execute(f"DELETE {where}", key)

    def _count(self, user: str, node_tasks: int, size_bytes: int) -> None:
        before = self._uses.get(user, UserUse(0, 0))
        self._uses[user] = UserUse(before.node_tasks + node_tasks, before.size_bytes + size_bytes)

    def _too_old(self, now_ms: int) -> dict[Key, str]:
        days = self._limits.days
        query = "SELECT job_id, attempt FROM kept WHERE ended_ms < ?"
        rows = self._database.execute(query, (now_ms - days * DAY_MS,)).fetchall()
        return dict.fromkeys(rows, f"the job ended more than {days} days earlier (output_days)")

    def _too_much(self) -> dict[Key, str]:
        limit_bytes = self._limits.bytes_per_user
        reason = f"the output of this user exceeded {limit_bytes:,} bytes {self._where} (output_bytes)"
        query = (
            "SELECT job_id, attempt, user, ended_ms, bytes FROM kept WHERE user = ? ORDER BY ended_ms, job_id, attempt"
        )
        reasons: dict[Key, str] = {}
        for user, use in self._uses.items():
            if use.size_bytes > limit_bytes:
                node_tasks = (
                    KeptNodeTask((row[0], row[1]), *row[2:]) for row in self._database.execute(query, (user,))
                )
                reasons |= {node_task.key: reason for node_task in excess(node_tasks, use, limit_bytes)}
        return reasons


def _opened(path: Path) -> sqlite3.Connection:
    # SQLite creates its side files with the database's mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        # With an exclusive lock, WAL needs no shared memory, so it also works on the shared file systems of clusters.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_TABLES)
    except BaseException:
        database.close()
        raise
    return database
