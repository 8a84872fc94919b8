"""The tables of A. Streit's thesis on self-tuning job scheduling that can be recomputed, as they are printed there.

Transcribed from Tables 3.4 and 3.6 (section 3.6), 5.1 (section 5.1) and A.1 to A.4 (appendix A.1.1): the rows of the
four traces that are publicly available, CTC, KTH, LANL and SDSC. Thousands separators are left out; nothing else is
changed.
"""

from __future__ import annotations

from dataclasses import dataclass

TRACES = ("CTC", "KTH", "LANL", "SDSC")
POLICIES = ("FCFS", "SJF", "LJF")

_TABLE_3_4 = """
     width          machine  estimate              run time            factor  interarrival
CTC  1  10.72  336  430      0   24324  64800      0   10958  64800    2.220   0  369   164472
KTH  1  7.66   100  100      60  13678  216000     0   8858   216000   1.544   0  1031  327952
LANL 32 104.95 1024 1024     1   3683   30000      1   1659   25200    2.220   0  509   201006
SDSC 1  10.54  128  128      2   14344  172800     0   6077   172800   2.360   0  934   79503
"""

_COLUMNS_3_4 = (
    ("width min [nodes]", 0),
    ("width avg [nodes]", 2),
    ("width max [nodes]", 0),
    ("machine [nodes]", 0),
    ("estimate min [s]", 0),
    ("estimate avg [s]", 0),
    ("estimate max [s]", 0),
    ("run time min [s]", 0),
    ("run time avg [s]", 0),
    ("run time max [s]", 0),
    ("avg over-estimation factor", 3),
    ("interarrival min [s]", 0),
    ("interarrival avg [s]", 0),
    ("interarrival max [s]", 0),
)

_TABLE_3_6 = """
     total  scheduled makespan virtual  queue waiting AWT   ARTwW length SLDwA  UTIL
CTC  79302  79279     29306682 29301671 49.56 44126   4829  19917 10961  2.0455 65.70
KTH  28487  28479     29363626 29363626 16.37 20801   7989  28680 8860   3.1015 68.72
LANL 122305 122305    62292428 62292428 24.24 55588   1340  4642  1658   1.6801 55.61
SDSC 67631  67620     63213412 63189634 40.79 54496   21064 63918 6077   6.8261 82.48
"""

_COLUMNS_3_6 = (
    ("total jobs", 0),
    ("scheduled jobs", 0),
    ("makespan [s]", 0),
    ("virtual end [s]", 0),
    ("avg queue length", 2),
    ("waiting jobs > 1", 0),
    ("AWT [s]", 0),
    ("ARTwW [s]", 0),
    ("avg job length [s]", 0),
    ("SLDwA", 4),
    ("UTIL [%]", 2),
)

_TABLE_5_1 = """
     FCFS   SJF     LJF
CTC  2.0455 1.9277  2.5212
KTH  3.1015 2.5488  5.8118
LANL 1.6801 1.7031  2.0507
SDSC 6.8260 12.5662 26.8207
"""

# Month of submission, jobs, average width, run time and estimate [s], over-estimation factor, SLDwA of FCFS, SJF and
# LJF, best policy.
_TABLES_A = {
    "CTC": """
1996-06    37  32.1  29038  50181  1.73  1.0000  1.0000   1.0000 -
1996-07  7954   9.8   9786  22732  2.32  1.9326  1.7131   2.2870 SJF
1996-08  7302  11.6  11148  24859  2.23  1.8303  1.8554   2.3735 FCFS
1996-09  6188  11.3  13237  26637  2.01  2.3081  2.1746   2.7575 SJF
1996-10  7288  10.1   9106  20857  2.29  1.8861  1.6894   2.0935 SJF
1996-11  7874  10.8  10027  22451  2.24  1.6421  1.4862   2.0023 SJF
1996-12  7881   9.6   8810  22016  2.50  1.4895  1.3953   1.9351 SJF
1997-01  7535   8.9   9989  25944  2.60  2.0089  1.9857   2.2119 SJF
1997-02  8190   9.3  11766  25344  2.15  1.7852  1.9870   1.8523 FCFS
1997-03  6946  12.2  13913  28112  2.02  2.4485  2.0449   3.3134 SJF
1997-04  6129  12.3  11130  22059  1.98  2.5380  2.5880   3.5569 FCFS
1997-05  5978  13.2  12632  27449  2.17  2.5650  2.2275   3.2364 SJF
""",
    "KTH": """
1996-09   108  11.9   5549  10501  1.89  1.1035  1.1035   1.1035 -
1996-10  2405  12.4   6010   9075  1.51  4.1895  3.4751   6.9391 SJF
1996-11  1991  10.2   8324  13777  1.65  4.4634  3.6699  12.6893 SJF
1996-12  2302   9.1   9760  14917  1.53  3.7131  3.2411   5.4525 SJF
1997-01  2938   7.9   9272  14319  1.54  3.0440  2.2562   4.6119 SJF
1997-02  2916   7.3   6548  10158  1.55  4.9779  3.5847  10.4477 SJF
1997-03  2081   7.8   8661  13711  1.58  3.3362  3.0692   9.0681 SJF
1997-04  2861   6.5   8532  12735  1.49  2.9512  2.1044   4.8270 SJF
1997-05  4081   6.7   6396  10241  1.60  2.4835  2.1072   3.5145 SJF
1997-06  2697   5.3   9752  14954  1.53  1.6373  1.5597   1.8178 SJF
1997-07  2184   5.8  16297  24725  1.52  1.3082  1.2669   1.4926 SJF
1997-08  1923   6.3  11165  16711  1.50  1.7919  1.5389   2.3467 SJF
""",
    "LANL": """
1994-10  6134  81.3   1274   2081  1.63  1.5804  1.5466   2.2557 SJF
1994-11  6014  90.3   1429   2114  1.48  1.7291  1.6193   2.3306 SJF
1994-12  4595 103.3   1576   2357  1.50  1.7419  1.5588   2.2388 SJF
1995-01  3472 118.6   1784   2802  1.57  1.6565  1.4963   2.0059 SJF
1995-02  3877  99.5   1618   2603  1.61  1.6990  1.6551   1.9483 SJF
1995-03  4885  88.9   1495   2394  1.60  1.5247  1.4035   1.7781 SJF
1995-04  4651 102.1   1845   2832  1.53  1.6025  1.4648   1.9032 SJF
1995-05  4778 108.6   1861   3089  1.66  1.9210  1.8521   2.5048 SJF
1995-06  5637 103.6   1777   3089  1.74  2.6770  2.9987   4.2842 FCFS
1995-07  6301  90.6   1579   2887  1.83  1.9940  2.0094   2.5278 FCFS
1995-08  6261  83.1   1250   2124  1.70  1.5758  1.4076   1.8026 SJF
1995-09  5714 110.3   1734   3017  1.74  2.1396  2.8997   2.7245 FCFS
1995-10  5048 115.3   1692   3078  1.82  1.6669  1.5212   2.3309 SJF
1995-11  3649 137.6   2328   3422  1.47  1.5907  1.8039   1.8494 FCFS
1995-12  4151 114.9   2071   3826  1.85  1.4968  1.4963   1.6288 SJF
1996-01  4163 109.4   1923   3443  1.79  1.2398  1.2222   1.3118 SJF
1996-02  3697 105.7   1739   2821  1.62  1.1414  1.1501   1.1585 FCFS
1996-03  4129 106.8   2215   3534  1.60  1.4335  1.3567   1.6069 SJF
1996-04  4249 101.6   2187   3632  1.66  1.5114  1.5449   1.6258 FCFS
1996-05  4954  97.2   2150   3342  1.55  1.5336  1.5167   1.7672 SJF
1996-06  5240 102.8   1751   5399  3.08  1.3084  1.3525   1.3238 FCFS
1996-07 14627 123.3    708   8341 11.78  2.1841  2.2640   2.2157 FCFS
1996-08  3668 110.9   2234   3695  1.65  1.3515  1.4127   1.4061 FCFS
1996-09  2411 115.0   3057   3903  1.28  1.1977  1.2616   1.2217 FCFS
""",
    "SDSC": """
1998-04     5   6.2 145434 145440  1.00  1.0000  1.0000   1.0000 -
1998-05  2767  14.7   7706  18028  2.34  3.3645  2.5552   4.8491 SJF
1998-06  2535   9.2   8601  25724  2.99  2.0738  1.9523   2.6489 SJF
1998-07  2832   7.4   6999  17509  2.50  2.3979  2.1876   2.8259 SJF
1998-08  3618   6.0   6666  15230  2.28  3.1907  2.3388   4.1563 SJF
1998-09 12536   3.1   2621   7438  2.84  3.2224  2.6290   5.5883 SJF
1998-10  4491   5.9   6063  11122  1.83  2.3432  1.9787   2.9487 SJF
1998-11  3105  12.4   6915  20576  2.98  2.8461  2.6827   3.4484 SJF
1998-12  2894  13.1   7456  17524  2.35  6.1737  4.1766   9.7122 SJF
1999-01  2802   9.3   7836  20174  2.57  4.1467  3.3003  12.6212 SJF
1999-02  2720   9.7   6275  15643  2.49  6.8112  7.0362  14.0235 FCFS
1999-03  2914  12.4   6536  13033  1.99  7.2553  7.0065  15.2942 SJF
1999-04  3713  13.4   3610  10204  2.83  9.3420  5.9265  21.9462 SJF
1999-05  2515  19.6   5855  12732  2.17 12.3298  7.3162  92.1742 SJF
1999-06  2447  12.5   7407  15045  2.03 13.5694 11.9581  69.2463 SJF
1999-07  1252  14.1  10236  19264  1.88  7.3964 11.2254  45.3261 FCFS
1999-08  1934  12.9   7554  15257  2.02  8.0159 16.0247  24.4480 FCFS
1999-09  2122  12.9   6328  13963  2.21  7.6722 22.3486  20.4491 FCFS
1999-10  1957  16.6   5636  13126  2.33  9.6773 25.3462 102.4740 FCFS
1999-11  2039  13.5   4682  11161  2.38 10.4231 27.0653  34.1716 FCFS
1999-12  1695  22.0   5675  11065  1.95 11.2749 20.8298  48.5418 FCFS
2000-01  1496  15.9   8184  20991  2.56  6.3182 21.1915  35.1660 FCFS
2000-02  1140  14.6  10313  20143  1.95  8.1268 28.7438  15.4552 FCFS
2000-03  1170  17.6   8314  17198  2.07  4.4993 37.3391   7.5649 FCFS
2000-04   932  18.7  11742  24730  2.11  5.9322 14.0702   9.6173 FCFS
""",
}


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as it is printed.

    Parameters
    ----------
    decimals : int
        Digits behind the point.
    """

    value: float
    decimals: int


@dataclass(frozen=True, slots=True)
class Month:
    """A line of Tables A.1 to A.4.

    Parameters
    ----------
    month : str
        Month of submission, such as "1996-09".
    jobs : int
        Jobs submitted.
    width, run_s, estimate_s : float
        Their averages, in nodes and seconds.
    over_estimation : float
        Average estimate over average run time.
    sldwa : tuple of float
        SLDwA under each of `POLICIES`.
    best : str
        The policy of the least SLDwA; "-" if they are equal.
    """

    month: str
    jobs: int
    width: float
    run_s: float
    estimate_s: float
    over_estimation: float
    sldwa: tuple[float, ...]
    best: str


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def _by_trace(text: str, columns: tuple[tuple[str, int], ...]) -> dict[str, dict[str, Printed]]:
    """Return a table with the traces down and columns across, which have these names and decimals."""
    table = {}
    for trace, *cells in _lines(text)[1:]:
        pairs = zip(columns, cells, strict=True)
        table[trace] = {name: Printed(float(cell), decimals) for (name, decimals), cell in pairs}
    return table


def _months(text: str) -> tuple[Month, ...]:
    months = []
    for month, jobs, *averages, fcfs, sjf, ljf, best in _lines(text):
        width, run_s, estimate_s, factor = (float(value) for value in averages)
        sldwa = float(fcfs), float(sjf), float(ljf)
        months.append(Month(month, int(jobs), width, run_s, estimate_s, factor, sldwa, best))
    return tuple(months)


TABLE_3_4 = _by_trace(_TABLE_3_4, _COLUMNS_3_4)
"""Basic properties of the traces: trace, then quantity, to the printed number."""

TABLE_3_6 = _by_trace(_TABLE_3_6, _COLUMNS_3_6)
"""Performance "scheduled by FCFS + EASY backfill": trace, then quantity, to the printed number."""

TABLE_5_1 = _by_trace(_TABLE_5_1, tuple((policy, 4) for policy in POLICIES))
"""Overall SLDwA of the three basic policies: trace, then policy, to the printed number."""

TABLES_A = {trace: _months(text) for trace, text in _TABLES_A.items()}
"""Monthly analysis, Tables A.1 to A.4: trace to its months."""
