"""Query the state of a grid's actors over Ray, for `gridweave status --actors` on any host of a cluster.

If an actor's Ray node is gone, the status names the node that the actor is waiting for, and the command to start it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gridweave.grid.service.actors import ask_about, find_all_actors
from gridweave.grid.service.ray import connected, probe
from gridweave.site.service.calls import FIRST_MACHINE, MACHINE_LABEL, NAMESPACE, SITE_LABEL, ActorInfo
from gridweave.site.service.faults import fault_text


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one actor of a grid."""

    name: str
    well: bool
    host: str = ""
    pid: int | None = None
    since_ms: int | None = None  # Unix time at which its process started
    detail: str = ""


def namespace_of(grid: str, default: str) -> str:
    """Return the Ray namespace of a grid.

    Examples
    --------
    >>> namespace_of("default", "default"), namespace_of("campus", "default")
    ('gridweave', 'gridweave-campus')
    """
    return NAMESPACE if grid == default else f"{NAMESPACE}-{grid}"


def look_at_actors(address: str, namespace: str) -> list[ActorStatus]:
    """Return the state of all actors in a namespace; empty if there are none.

    Raise UnavailableError if the cluster does not answer.
    """
    probe(address)
    with connected(address) as ray:
        actors = find_all_actors(namespace)
        infos, nodes = ask_about(actors), ray.nodes()
        head = str(ray.get_runtime_context().gcs_address)
        return [_status(name, infos.get(name), actors, nodes, head) for name in actors]


def _status(
    name: str, info: ActorInfo | None, names: Collection[str], nodes: Sequence[Mapping[str, Any]], head: str
) -> ActorStatus:
    if info is None:
        return ActorStatus(name=name, well=False, detail=awaited_node(name, names, nodes, head) or "does not answer")
    return ActorStatus(
        name=name,
        well=not info.problem,
        host=info.host,
        pid=info.pid,
        since_ms=info.since_ms,
        detail=(info.problem or "works") + (f"; {fault_text(info.fault)}" if info.fault else ""),
    )


def awaited_node(name: str, names: Iterable[str], nodes: Sequence[Mapping[str, Any]], head: str) -> str:
    """Return the Ray node that an actor is waiting for and the command to start it; empty if the node is up.

    Parameters
    ----------
    name, names
        The actor, and all actors of its grid.
    nodes
        The nodes of the cluster as `ray.nodes` returns them, dead ones included.
    head
        Address of the cluster, HOST:PORT.

    Examples
    --------
    >>> gone = {"Alive": False, "NodeManagerHostname": "b1", "Labels": {"gridweave.io/site": "beta"}}
    >>> print(awaited_node("site:beta", ["site:beta", "agent:beta/m0"], [gone], "10.0.0.1:6379"))
    waits for a Ray node with the label gridweave.io/site=beta; Ray has given up b1; run there: ray stop; \
ray start --address=10.0.0.1:6379 --labels=gridweave.io/site=beta
    """
    required = labels_of(name, names)
    fitting = [node for node in nodes if required.items() <= node["Labels"].items()]
    is_labelled = any(SITE_LABEL in node["Labels"] for node in nodes)
    if not required or not is_labelled or any(node["Alive"] for node in fitting):
        return ""
    labels = ",".join(f"{label}={value}" for label, value in required.items())
    hosts = ", ".join(dict.fromkeys(str(node["NodeManagerHostname"]) for node in fitting))
    given_up = f"Ray has given up {hosts}; run there" if hosts else "run on its host"
    return (
        f"waits for a Ray node with the label {labels}; {given_up}: "
        f"ray stop; ray start --address={head} --labels={labels}"
    )


def labels_of(name: str, names: Iterable[str]) -> dict[str, str]:
    """Return the labels of the Ray node on which a site's actor runs; empty for other actors.

    Examples
    --------
    >>> labels_of("site:north", ["agent:north/m0", "site:north"])
    {'gridweave.io/site': 'north'}
    >>> labels_of("agent:north/m1", ["agent:north/m0", "agent:north/m1"])
    {'gridweave.io/site': 'north', 'gridweave.io/machine': 'm1'}
    """
    kind, _, place = name.partition(":")
    if kind not in ("site", "agent"):
        return {}
    site, _, machine = place.partition("/")
    labels = {SITE_LABEL: site}
    if sum(other.startswith(f"agent:{site}/") for other in names) > 1:
        labels[MACHINE_LABEL] = machine or FIRST_MACHINE
    return labels
