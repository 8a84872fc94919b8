"""A live grid on Ray as the gateway sees it."""

from __future__ import annotations

from gridweave.grid.live.live_backend import LiveBackend
from gridweave.site.service.calls import NAMESPACE, Handles


class RayBackend(LiveBackend):
    """A live grid on the Ray cluster that this process is connected to, found by the names of its actors.

    Parameters
    ----------
    namespace : str
        Of the actors of the grid.
    """

    def __init__(self, namespace: str = NAMESPACE) -> None:
        super().__init__(Handles(namespace))
