"""The Ray of a site that is served alone: a head, and a node for each of several machines; found again after a kill."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.service.ending import count_running, end_jobs, end_marked, end_processes
from gridweave.grid.service.ray import (
    MOST_NODES,
    LocalRay,
    RayMachine,
    check_ray,
    free_port,
    make_ray_token,
    make_temp,
    remove_temp,
)
from gridweave.grid.service.state import HEAD, LOGS, RAY_TOKEN, LocalProcess, make_private
from gridweave.site.machine.folders import write_whole
from gridweave.site.machine.processes import boot_id

REASON = "the site was told to end"

_STATE = "ray.json"
_NODES_S, _JOBS_S = 4.0, 6.0
"""So long its nodes, and then the jobs, have to end by themselves."""


class RayState(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of it, written down.

    Attributes
    ----------
    boot : str
        The start of the machine in which it was started.
    port : int
        Of its head.
    temp : str
        Folder of its sockets.
    processes : tuple of LocalProcess
    """

    boot: str = ""
    port: int = 0
    temp: str = ""
    processes: tuple[LocalProcess, ...] = ()


class SiteRay:
    """A Ray for one site.

    Parameters
    ----------
    folder : pathlib.Path
        Of the site.
    machines : int
        On how many nodes of Ray; one needs none but the head, more than `MOST_NODES` share it.
    marker : str
        For the environment of all its processes.
    port : int
        Of the head; 0: any that is free.
    store_bytes : int
        Memory of each node for objects.
    """

    def __init__(self, folder: Path, site: str, machines: int, *, marker: str, port: int, store_bytes: int) -> None:
        self._folder, self._marker, self._wanted_port, self._store_bytes = folder, marker, port, store_bytes
        several = 1 < machines <= MOST_NODES
        self._machines = [RayMachine(site, f"m{number}", alone=False) for number in range(machines)] if several else []
        self._state = self._read()

    @property
    def labelled(self) -> bool:
        """Whether its nodes say which machine they are."""
        return bool(self._machines)

    @property
    def head(self) -> LocalProcess | None:
        """The process of the head, if it lives."""
        return self._process(HEAD)

    def _process(self, name: str) -> LocalProcess | None:
        if self._state.boot != boot_id():
            return None
        return next((one for one in self._state.processes if one.name == name and one.is_alive), None)

    def _read(self) -> RayState:
        try:
            return msgspec.json.decode((self._folder / _STATE).read_bytes(), type=RayState)
        except FileNotFoundError:
            return RayState()
        except (OSError, msgspec.MsgspecError) as error:
            raise UnavailableError(f"{self._folder / _STATE}: cannot be read: {error}") from None

    def _write(self, **changes: Any) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)
        write_whole(self._folder / _STATE, msgspec.json.encode(self._state))

    def _started(self, process: LocalProcess) -> None:
        others = tuple(one for one in self._state.processes if one.name != process.name)
        self._write(processes=(*others, process))

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """Start what does not run of it, and connect this process to it.

        Yields
        ------
        module
            Of Ray.

        Raises
        ------
        UnavailableError
            If it cannot be started.
        """
        check_ray()
        if self.head is None:
            # What is left of an earlier one is of no use; jobs whose processes run are found by their folders.
            self.end_nodes()
            make_ray_token(self._folder / RAY_TOKEN)
            self._write(boot=boot_id(), port=free_port(wanted=self._wanted_port), temp=make_temp(), processes=())
        make_private(self._folder / LOGS)
        ray = self._ray()
        missing = [one for one in self._machines if self._process(one.node) is None]
        if missing or self.head is None:
            ray.launch(missing, self._started, head=self.head is None)
        with ray.connected() as module:
            ray.wait_for(self._machines, {one.name: one for one in self._state.processes}, self._started)
            yield module

    def mend(self) -> None:
        """Start anew the nodes that have ended.

        Raises
        ------
        UnavailableError
            If the head has: without it nothing of it works.
        """
        if self.head is None:
            raise UnavailableError("the head of Ray has ended; all of it is to be started anew")
        missing = [one for one in self._machines if self._process(one.node) is None]
        if missing:
            self._ray().launch(missing, self._started, head=False)

    def _ray(self) -> LocalRay:
        state = self._state
        return LocalRay(
            state.temp, state.port, self._folder / RAY_TOKEN, self._folder / LOGS, self._marker, self._store_bytes
        )

    def end_nodes(self) -> None:
        """End all processes of Ray, and remove their folder; jobs go on."""
        if self._state.boot == boot_id():
            end_processes(self._state.processes, patience_s=_NODES_S)
            end_marked(self._marker, within=[process.pid for process in self._state.processes])
        remove_temp(self._state.temp)
        self._write(processes=(), temp="")

    def end(self, *, keep_jobs: bool) -> int:
        """End all of it; return how many parts of jobs were running.

        Parameters
        ----------
        keep_jobs : bool
            Whether the processes of jobs go on; the next one finds them again.
        """
        self.end_nodes()
        count = count_running(self._folder)
        if not keep_jobs:
            end_jobs(self._folder, REASON, patience_s=_JOBS_S)
            end_marked(self._marker)
        return count
