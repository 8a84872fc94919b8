"""What the actors of a grid are named and made with, and what calls between them look like."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gridweave.errors import InputError, OptionError

logger = logging.getLogger("gridweave.live")

NAMESPACE = "gridweave"
GRID_ACTOR = "grid"

SITE_LABEL = "gridweave.io/site"
MACHINE_LABEL = "gridweave.io/machine"
"""Labels of Ray nodes: which site a node belongs to, and which machine of it it is, if it has several."""

GRID_LABEL = "gridweave.io/grid"
"""Label of the Ray node on which the meta-scheduler of the grid of this name is to be."""

CALL_S = 10.0
"""After so long a call between actors counts as lost."""


def site_actor(site: str) -> str:
    """Return the name of a site's actor."""
    return f"site:{site}"


def agent_actor(site: str, agent: str) -> str:
    """Return the name of the actor of a machine."""
    return f"agent:{site}/{agent}"


class Calls(Protocol):
    """Carries calls to the actors of a grid, wherever they are: `handles.Handles` on Ray."""

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor by its name.

        Raises
        ------
        UnavailableError
            If there is no answer.
        """


def endure(name: str, *works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Keep the works of an actor going; if one ends by an error, end the process, so that Ray starts the actor anew.

    The state is in the journal, so the new one goes on where this one stood.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda done: _ended(name, done))
    return tasks


def _ended(name: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("%s cannot go on", name, exc_info=task.exception())
        logging.shutdown()
        os._exit(1)


def journal_place(place: str, password_file: str = "") -> str:
    """Return where a journal is to be; the folder of a file is made.

    Parameters
    ----------
    place : str
        A path or a URL.
    password_file : str
        Of the file with the password of a database; empty: there is none, or it is in the URL.

    Raises
    ------
    InputError
        If the folder cannot be made, or the password not be read.
    """
    if "://" not in place:
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{place}: {error.strerror}; name a place in a folder that can be written") from error
        return place
    if not password_file:
        return place
    from gridweave.site.live.database import checked_url

    try:
        password = Path(password_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is no text"
        raise OptionError(
            "journal_password_file", f"{password_file}: {problem}; name a file that can be read"
        ) from None
    return checked_url("journal", place).set(password=password).render_as_string(hide_password=False)


def encode(value: object) -> bytes:
    """Return what goes into a call: bytes of MessagePack are cheaper for Ray than objects."""
    return msgspec.msgpack.encode(value)


def actor_options(name: str, namespace: str, labels: dict[str, str], host: str = "") -> dict[str, Any]:
    """Return with which options an actor of a grid is made: found by its name, outliving who made it, started anew.

    Parameters
    ----------
    name, namespace : str
    labels : dict from str to str
        What a Ray node must have for it.
    host : str
        The IP address of the machine that it must be on; empty: any.
    """
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 1000,
        "num_cpus": 0,
        # Ray would keep an entry for each of the last hundred thousand calls; the stories of jobs are in the journals.
        "enable_task_events": False,
        "label_selector": labels,
        # Every Ray node has a little of this. It is the same when Ray was started anew there, as a number would not be.
        "resources": {f"node:{host}": 0.001} if host else {},
    }
