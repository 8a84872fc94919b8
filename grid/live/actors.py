"""The actors of a grid on the Ray cluster that this process is connected to: found by their names, and ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from gridweave.site.service.calls import GRID_ACTOR, agent_actor, site_actor

START_S = 60.0
"""So long an actor may take to answer."""

GIVE_UP_S = 10.0
"""So long what was made is waited for when the start of a grid has failed."""


def actor_names(sites: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names of all actors of a grid: machines, then sites, then the meta-scheduler.

    Parameters
    ----------
    sites : sequence of (str, int)
        Names, and how many machines each has.

    Examples
    --------
    >>> actor_names([("north", 2), ("south", 1)])
    ['agent:north/m0', 'agent:north/m1', 'agent:south/m0', 'site:north', 'site:south', 'grid']
    """
    machines = [agent_actor(name, f"m{number}") for name, count in sites for number in range(count)]
    return [*machines, *(site_actor(name) for name, _ in sites), GRID_ACTOR]


def find_actors(namespace: str, sites: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the actors of a grid that are there, by their names, in the order of `actor_names`.

    Parameters
    ----------
    namespace : str
        Of the grid.
    sites : sequence of (str, int)
        As for `actor_names`.
    """
    import ray

    found = {}
    for name in actor_names(sites):
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            found[name] = ray.get_actor(name, namespace=namespace)
    return found


def stop_actors(actors: Mapping[str, Any], *, end_jobs: bool = True, timeout_s: float = START_S) -> None:
    """End actors, and what they run, unless that is to go on.

    Parameters
    ----------
    actors : mapping from str to actor handle
    end_jobs : bool
    timeout_s : float
        How long to wait for the machines, and then for the others. What does not answer is ended all the same: its
        journal is whole at every instant.
    """
    import ray

    machines = [name for name in sorted(actors) if name.startswith("agent:")]
    others = [name for name in sorted(actors) if name not in machines]
    for names, arguments in ((machines, (end_jobs,)), (others, ())):
        with contextlib.suppress(ray.exceptions.RayError):
            answers = [actors[name].stop.remote(*arguments) for name in names]
            if answers:
                ray.wait(answers, num_returns=len(answers), timeout=timeout_s)
        for name in names:
            ray.kill(actors[name])
