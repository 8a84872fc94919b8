"""The Weibull law of interarrival times: its published parameters, and how it is fitted to a trace."""

from __future__ import annotations

import math
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.workload.table import MAX_TIME_MS

FloatArray = npt.NDArray[np.float64]

# Shapes outside these are no arrival process: below, single gaps of many times the whole trace; above, a metronome.
ALPHA_MIN, ALPHA_MAX = 0.1, 20.0


class Weibull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Interarrival times with the distribution function 1 - exp(-(x / beta)^alpha).

    Parameters
    ----------
    alpha : float
        Shape, within `ALPHA_MIN` to `ALPHA_MAX`. Below 1 the arrivals come in bursts; at 1 they are a Poisson process.
    beta_ms : float
        Scale in milliseconds, > 0 and at most `MAX_TIME_MS`.

    Raises
    ------
    InputError
        If a parameter is out of its bounds.

    Examples
    --------
    >>> round(Weibull(alpha=0.35, beta_ms=60_000.0).mean_ms)
    301749
    """

    alpha: float
    beta_ms: float

    def __post_init__(self) -> None:
        if not ALPHA_MIN <= self.alpha <= ALPHA_MAX:
            raise InputError(f"Weibull alpha {self.alpha} is not within {ALPHA_MIN} to {ALPHA_MAX}")
        if not 0 < self.beta_ms <= MAX_TIME_MS:
            raise InputError(f"Weibull beta_ms {self.beta_ms} is not within 0 to {MAX_TIME_MS}")

    @property
    def mean_ms(self) -> float:
        """Mean interarrival time in milliseconds, beta * Gamma(1 + 1 / alpha)."""
        return self.beta_ms * math.gamma(1 + 1 / self.alpha)

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation; 1 for a Poisson process, more for bursts."""
        return math.gamma(1 + 2 / self.alpha) / math.gamma(1 + 1 / self.alpha) ** 2 - 1

    def sample_ms(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw interarrival times, in milliseconds."""
        return rng.weibull(self.alpha, size) * self.beta_ms


# Streit, Table 3.7; there beta is in seconds.
WEIBULL_TABLE = MappingProxyType(
    {
        "CTC": Weibull(alpha=0.35, beta_ms=60_000.0),
        "KTH": Weibull(alpha=0.35, beta_ms=200_000.0),
        "SDSC": Weibull(alpha=0.40, beta_ms=290_000.0),
        "LANL": Weibull(alpha=0.45, beta_ms=180_000.0),
        "PC2-2001": Weibull(alpha=0.25, beta_ms=40_000.0),
        "PC2-2002": Weibull(alpha=0.25, beta_ms=40_000.0),
        "CHPC": Weibull(alpha=0.35, beta_ms=300_000.0),
        "MHPCC": Weibull(alpha=0.35, beta_ms=120_000.0),
    }
)


def fit_weibull(interarrival_ms: npt.NDArray[np.integer], *, resolution_ms: int) -> Weibull:
    """Fit the law to observed interarrival times, keeping their mean.

    Among all Weibull laws whose mean is the observed one, take the one with the greatest likelihood. The mean is kept
    because it decides the offered load. An observed time x on a clock of `resolution_ms` stands for all times within
    half a tick of x, so that jobs submitted in the same second (x = 0) count like any other.

    Parameters
    ----------
    interarrival_ms : numpy.ndarray of int64, shape (n,)
        Observed times, >= 0, at least one and not all zero.
    resolution_ms : int
        Tick of the clock that they were read from, >= 1.

    Raises
    ------
    InputError
        If there is no interarrival time, or all are zero.
    """
    from scipy.optimize import minimize_scalar

    if not len(interarrival_ms) or not np.any(interarrival_ms):
        raise InputError("no time passes between the first and the last job, so there is no arrival process to learn")
    values, counts = np.unique(interarrival_ms, return_counts=True)
    mean_ms = float(np.average(values, weights=counts))
    low = np.maximum(values - resolution_ms / 2, 0.0)
    high = values + resolution_ms / 2
    with np.errstate(divide="ignore"):
        log_ratio = np.log(high) - np.log(low)
    at_zero = low == 0

    def cost(log_alpha: float) -> float:
        alpha = math.exp(log_alpha)
        beta_ms = mean_ms / math.gamma(1 + 1 / alpha)
        with np.errstate(all="ignore"):
            below = (low / beta_ms) ** alpha
            # Not the difference of the two powers: it is lost where a tick is short beside the time.
            between = np.where(at_zero, (high / beta_ms) ** alpha, below * np.expm1(alpha * log_ratio))
            log_mass = -below + np.log(-np.expm1(-between))
            total = -float(np.dot(counts, log_mass))
        return total if math.isfinite(total) else math.inf

    # A coarse grid first: the bounded search alone may stop in the flat part where the cost is infinite.
    grid = np.linspace(math.log(ALPHA_MIN), math.log(ALPHA_MAX), 64)
    best = int(np.argmin([cost(point) for point in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    alpha = min(max(math.exp(float(found.x)), ALPHA_MIN), ALPHA_MAX)
    return Weibull(alpha=alpha, beta_ms=mean_ms / math.gamma(1 + 1 / alpha))


def weibull_by_name(text: str) -> Weibull:
    """Return the published parameters that a text names: ``table:`` and a key of `WEIBULL_TABLE`."""
    head, _, name = text.partition(":")
    if head != "table" or name not in WEIBULL_TABLE:
        names = ", ".join(WEIBULL_TABLE)
        raise OptionError("weibull", f"{text!r} is not known; right is fit, or table: and one of {names}")
    return WEIBULL_TABLE[name]
