"""Compiles the kernels while the image is made, so that the first start does not.

For the grid that ships, with its links and its hyperthreaded site, and for grids of all modes.
"""

from gridweave.grid.config.reading import read_grid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import FIRST_PORT, plan_of
from gridweave.grid.service.driver import warm_up as warm_up_grid
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.site_driver import warm_up as warm_up_site

SITES = (("alpha", 8), ("beta", 6), ("gamma", 4))

plan = plan_of(read_grid(None), folder="", namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")
warm_up_grid(plan.settings())
for place in range(len(plan.sites)):
    warm_up_site(plan.site_settings(place))
for policy in (
    *(GridPolicy(mode=mode) for mode in ("adaptive", "multi-site", "sharing")),
    GridPolicy(control="limited", mode="sharing"),
):
    warm_up_grid(GridSettings(sites=SITES, policy=policy))
for discipline in ("queue", "planning"):
    policy_of_site = SitePolicy(discipline=discipline)
    warm_up_site(SiteSettings(name="alpha", number=0, machines=(Machine(name="m0", nodes=8),), policy=policy_of_site))
