"""The policy of a site that plans with a solver: the options that its operator sets (docs/optimum.md)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gridweave.errors import OptionError, check_known
from gridweave.site.disciplines.optimal.instance import check_metric
from gridweave.site.disciplines.optimal.intervals import THREE
from gridweave.site.kernels.order import ORDERS
from gridweave.site.policy import SitePolicy

NAME = "optimal"
"""The name of the discipline."""

MAX_EFFORT_S = 3_600.0


class OptimalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a site with the discipline ``optimal``.

    Attributes
    ----------
    metric : {"artww", "art", "artwa", "sld", "sldww"}
        The metric that each plan minimises.
    policies : tuple of str
        Names in `gridweave.site.kernels.order.ORDERS`. The solver starts from the best of these policies' plans.
    effort_s : float
        Limit on the effort per plan, in the solver's deterministic time, whose units are about a second; above 0, at
        most `MAX_EFFORT_S`.
    most_jobs : int
        If more jobs than this are waiting, the site uses the best policy's plan instead of the solver; at least 2.

    Raises
    ------
    OptionError
        If a name is unknown or a number is out of range.

    Examples
    --------
    >>> OptimalPolicy(most_jobs=10).label
    'optimal artww effort=1s up to 10 jobs'
    """

    discipline: ClassVar[str] = NAME

    metric: str = "artww"
    policies: tuple[str, ...] = THREE
    effort_s: float = 1.0
    most_jobs: int = 30

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not self.policies:
            raise OptionError("policies", "are missing; expected at least one order")
        for policy in self.policies:
            check_known("policies", policy, ORDERS)
        if not 0 < self.effort_s <= MAX_EFFORT_S:
            raise OptionError("effort_s", f"is {self.effort_s:.15g}; expected above 0 and at most {MAX_EFFORT_S:,.0f}")
        if self.most_jobs < 2:
            raise OptionError("most_jobs", f"is {self.most_jobs}; expected at least 2")

    @property
    def label(self) -> str:
        """The name in tables and plots; policies that schedule differently have different names."""
        words = [NAME, self.metric, *(["+".join(self.policies)] if self.policies != THREE else [])]
        return " ".join([*words, f"effort={self.effort_s:.15g}s", f"up to {self.most_jobs} jobs"])

    @property
    def planning(self) -> SitePolicy:
        """The policy of the planning site that places jobs in the solver's order."""
        return SitePolicy(discipline="planning")
