"""Keep job output at a site with a batch system, within limits on the output's age and its size per user.

The site keeps a register like a machine's register (`gridweave.site.machine.kept`), and removes folders of its own
account. The folders of a user's account are removed by that user's next node.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Set

from gridweave.site.launch import OutputLimits
from gridweave.site.machine.agent import OutputRead
from gridweave.site.machine.folders import Key, task_folder
from gridweave.site.machine.kept import DAY_MS, KeptNodeTask, KeptNodeTasks, folder_bytes
from gridweave.slurm.service.folder import NODES, REGISTERS, Left, NodeLeft, SharedFolder, output_of, remove_left


class KeptOutput:
    """Keeps the output of nodes that were given back, within the limits.

    Until an allocation ends, its own nodes apply the limits to their jobs, so these jobs are not registered. Methods
    may be called from several threads.
    """

    def __init__(self, folder: SharedFolder, limits: OutputLimits) -> None:
        self._folder, self._limits = folder, limits
        self._lock = threading.Lock()
        self._opened: KeptNodeTasks | None = None
        # Jobs on given-back nodes of the site's own account, which can no longer change.
        self._keys: dict[NodeLeft, tuple[Key, ...]] = {}

    def close(self) -> None:
        """Close the register, so that another process of the site can open it."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def read(self, job_id: int, attempt: int, rank: int, stream: str, offset: int, limit: int) -> OutputRead:
        """Return a range of a rank's output, like `AgentDriver.part`, or say when and why the output was removed."""
        removal = None
        with contextlib.suppress(OSError):  # e.g. a full disk; the output can still be read
            removal = self._register().removal((job_id, attempt))
        if removal is not None:
            return OutputRead(is_here=False, data=b"", size=0, removal=removal)
        return output_of(self._folder, job_id, attempt, rank, stream, offset, limit)

    def tidy(self, left: Left, needed: Collection[str], now_ms: int) -> dict[str, tuple[str, ...]]:
        """Register the output of ended jobs, and remove output that exceeds the limits.

        Parameters
        ----------
        left : Left
            The result of `SharedFolder.left`, called before `needed` was computed so that it contains no newer nodes.
        needed : collection of str
            The allocations that the site needs, or that the batch system may have.
        now_ms : int
            Unix time.

        Returns
        -------
        dict of str to tuple of str
            The folders that each user account's next node must remove, relative to the account's folder.

        Raises
        ------
        OSError
            If the folder cannot be read or the register cannot be written; nothing has been removed in this case.
        """
        keys = {node: self._keys_of(node) for node in left.nodes if node.name.startswith(self._folder.prefix)}
        given_back = {node: node_keys for node, node_keys in keys.items() if node.allocation not in needed}
        busy = {key for node in keys.keys() - given_back.keys() for key in keys[node]}
        nodes_by_key: dict[Key, list[NodeLeft]] = defaultdict(list)
        for node, node_keys in given_back.items():
            for key in node_keys:
                nodes_by_key[key].append(node)
        over, register = nodes_by_key.keys() - busy, self._register()
        unknown = [key for key in sorted(over - register.registered()) if register.removal(key) is None]
        register.register([self._entry(key, nodes_by_key[key], now_ms) for key in unknown], now_ms)
        gone = self._gone(given_back, over - register.registered())
        for node in left.nodes:
            is_old = node.changed_ms < now_ms - self._limits.days * DAY_MS
            if node not in keys and node.allocation not in needed and is_old:  # of another journal
                gone[node.runs_as].append(f"{NODES}/{node.name}")
        remove_left(self._folder.path, gone.pop("", ()))
        self._folder.forget_owners(left, needed)
        return {account: tuple(paths) for account, paths in gone.items() if paths}

    def _gone(self, given_back: Mapping[NodeLeft, tuple[Key, ...]], removed: Set[Key]) -> dict[str, list[str]]:
        """Return the folders to remove, by account: a node's folder if it has no kept output, otherwise job folders."""
        gone: dict[str, list[str]] = defaultdict(list)
        self._keys = {}
        for node, keys in given_back.items():
            kept = tuple(key for key in keys if key not in removed)
            folder = node.folder
            if kept:
                gone[node.runs_as] += [str(task_folder(folder, key)) for key in keys if key in removed]
            else:
                gone[node.runs_as].append(str(folder))
            if kept and not node.runs_as:
                self._keys[node] = kept
        return gone

    def _keys_of(self, node: NodeLeft) -> tuple[Key, ...]:
        keys = self._keys.get(node)
        return self._folder.keys_of(node) if keys is None else keys

    def _entry(self, key: Key, nodes: Collection[NodeLeft], now_ms: int) -> KeptNodeTask:
        """Return a job's register entry for all its nodes; the user comes from the site's own notes if possible."""
        node_tasks = [self._folder.node_task(node.allocation, node.number, key) for node in nodes]
        users = [self._folder.owner(node.allocation).user for node in nodes]
        users += [launch.user for node_task in node_tasks if (launch := node_task.launch()) is not None]
        states = [state for node_task in node_tasks if (state := node_task.state()) is not None]
        ended_ms = max((state.ended_ms for state in states if state.ended_ms is not None), default=now_ms)
        size_bytes = sum(folder_bytes(node_task.folder)[0] for node_task in node_tasks)
        return KeptNodeTask(key, next(filter(None, users), ""), min(ended_ms, now_ms), size_bytes)

    def _register(self) -> KeptNodeTasks:
        """Return the register, which the first call opens; raise OSError if that fails."""
        with self._lock:
            if self._opened is None:
                root = self._folder.path / REGISTERS / self._folder.prefix.rstrip("-")
                root.mkdir(mode=0o700, exist_ok=True)
                try:
                    self._opened = KeptNodeTasks(root, self._limits, "in the folder of the site")
                except sqlite3.Error as error:
                    raise OSError(f"{root}: the register cannot be opened: {error}") from error
            return self._opened
