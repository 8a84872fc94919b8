"""How metrics and their values are written for people, in the tables and plots of a sweep."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gridweave.scenarios.metrics import PARTS_OF_ONE
from gridweave.scenarios.workload import MS_PER_S

_ACRONYMS = {
    "awt": "AWT",
    "art": "ART",
    "artww": "ARTwW",
    "awrt": "AWRT",
    "awwt": "AWWT",
    "sldwa": "SLDwA",
    "sldww": "SLDwW",
    "util": "UTIL",
    "pp": "per-processor",
}
_PARTS_OF_ONE = (*PARTS_OF_ONE, "multi_site_share_of_jobs", "multi_site_share_of_area")


@dataclass(frozen=True, slots=True)
class Naming:
    """How one metric is written.

    Attributes
    ----------
    label : str
        Without the unit.
    unit : str
        Empty if there is none.
    factor : float
        From the recorded value to this unit.
    decimals : int
        Worth writing down.
    """

    label: str
    unit: str
    factor: float
    decimals: int

    @property
    def heading(self) -> str:
        """Label and unit, for the head of a column or an axis."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def write(self, mean: float, low: float, high: float, *, interval: bool = True) -> str:
        """Return a mean, with half of the width of its interval where there is one.

        Parameters
        ----------
        mean, low, high : float
            As recorded; NaN where not defined.
        interval : bool, optional
            Whether the interval is shown.

        Returns
        -------
        str

        Examples
        --------
        >>> naming_of("awrt_area_ms").write(61_000_500.0, 60_000_000.0, 62_001_000.0)
        '61,000 ± 1,000'
        """
        if math.isnan(mean):
            return "–"
        text = f"{mean * self.factor:,.{self.decimals}f}"
        if math.isnan(low) or not interval:
            return text
        return f"{text} ± {(high - low) / 2 * self.factor:,.{self.decimals}f}"


def naming_of(metric: str) -> Naming:
    """Return how a metric is written.

    Parameters
    ----------
    metric : str
        A name out of `gridweave.scenarios.sweep.work.METRICS`.

    Returns
    -------
    Naming

    Examples
    --------
    >>> naming_of("awrt_area_ms").heading, naming_of("util").heading, naming_of("bounded_slowdown_10s").heading
    ('AWRT by area [s]', 'UTIL [%]', 'bounded slowdown 10 s')
    """
    in_ms = metric.endswith("_ms")
    words = metric.removesuffix("_ms").removesuffix("_node").split("_")
    words = [re.sub(r"^(\d+)(s)$", r"\1 \2", _ACRONYMS.get(word, word)) for word in words]
    label = " ".join(words).replace("multi site", "multi-site").replace("throughput per h", "throughput")
    for weight in ("area", "width"):
        if words[0] in ("AWRT", "AWWT"):
            label = label.replace(f" {weight}", f" by {weight}")
    if in_ms:
        return Naming(label, "node s" if metric.endswith("_node_ms") else "s", 1 / MS_PER_S, 0)
    if metric in _PARTS_OF_ONE:
        return Naming(label, "%", 100.0, 2)
    if metric in ("jobs", "jobs_waited", "queued_submissions", "multi_site_jobs"):
        return Naming(label, "", 1.0, 1 if metric != "jobs" else 0)
    return Naming(label, "jobs/h" if metric.endswith("_per_h") else "", 1.0, 3)
