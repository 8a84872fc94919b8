"""What the evaluation of LOMARC publishes as numbers: Tables 4 and 5, and the percentages of section 6.2.

Figures 6 to 9 are bars without numbers; the text gives their ratios.
"""

from __future__ import annotations

LOADS = {"W1": 10.6, "W2": 13.0, "W3": 21.0}
"""Table 4."""

TABLE_5_HEADINGS = (
    *("queue length", "medium or long", "no wider", "memory fits", "matchable", "slowdown allowed", "number selected"),
)

TABLE_5: dict[tuple[str, str], tuple[int, ...]] = {
    ("L-U1", "W1"): (36, 24, 10, 8, 6, 5, 3),
    ("L-U1", "W2"): (81, 45, 21, 12, 10, 8, 4),
    ("L-U1", "W3"): (213, 86, 40, 20, 16, 14, 6),
    ("L-U2", "W1"): (40, 25, 11, 8, 6, 5, 3),
    ("L-U2", "W2"): (77, 49, 25, 16, 12, 11, 5),
    ("L-U2", "W3"): (233, 85, 39, 21, 16, 14, 7),
    ("L-R", "W1"): (36, 24, 13, 11, 8, 7, 3),
    ("L-R", "W2"): (80, 51, 31, 21, 15, 14, 4),
    ("L-R", "W3"): (222, 87, 48, 25, 20, 17, 4),
}
"""Variant and workload to the averages of Table 5, in the order of its columns."""

RESPONSE_CUT: dict[tuple[str, str], float] = {
    ("L-R", "W1"): 48, ("L-R", "W3"): 56,
    ("L-FM", "W1"): 40, ("L-FM", "W2"): 41, ("L-FM", "W3"): 48,
    ("L-N", "W1"): 23, ("L-N", "W2"): 27, ("L-N", "W3"): 31,
}  # fmt: skip
"""By how many per cent the average response time is shorter than under PSS."""

RELATIVE_CUT: dict[tuple[str, str], float] = {
    ("L-R", "W1"): 50, ("L-R", "W3"): 66,
    ("L-FM", "W1"): 47, ("L-FM", "W2"): 42, ("L-FM", "W3"): 52,
    ("L-N", "W1"): 7, ("L-N", "W2"): 17, ("L-N", "W3"): 40,
}  # fmt: skip
"""The same of the average relative bounded response time."""

MAKESPAN_CUT = {("L-R", "W1"): 5.0, ("L-R", "W2"): 20.0, ("L-R", "W3"): 33.0}
"""The same of the makespan."""

EFFICIENCY_GAIN: dict[tuple[str, str], float] = {
    **{(variant, "W1"): 8.5 for variant in ("L-U1", "L-U2", "L-R")},
    **{(variant, "W2"): 19 for variant in ("L-U1", "L-U2", "L-R")},
    **{(variant, "W3"): 38 for variant in ("L-U1", "L-U2", "L-R")},
    ("L-FM", "W1"): 6, ("L-FM", "W2"): 15, ("L-FM", "W3"): 31,
    ("L-N", "W1"): 2, ("L-N", "W2"): 9, ("L-N", "W3"): 18,
}  # fmt: skip
"""By how many per cent the utilisation efficiency is above that of PSS."""

M2_CUTS = {"response_s": 34.0, "relative": 38.0}
"""L-N against PSS on workload 1 with mix M2."""

RELATIVE_BEYOND_U1 = {"W1": 19.0, "W2": 16.0, "W3": 8.0}
"""By how many per cent L-R's relative bounded response time is below that of L-U1."""
