"""Transfers of a live grid's jobs: declared by the job, assumed by the grid, or learned from past runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gridweave.errors import InputError
from gridweave.grid.api import LearntSplit
from gridweave.grid.control.cost import factor_on_links, split_cost
from gridweave.grid.sends import Sends, UsualCommunication, data_of, declared_communication
from gridweave.netmodel.communication import Communication, communication_text
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Places
from gridweave.site.job import JobRecord, JobRequest
from gridweave.site.launch import SplitCost
from gridweave.site.times import run_time_ms

LEAST_RUNS = 5
"""Minimum number of runs on one site, and of split runs, before measured run times are used."""

MOST_ERROR = 0.1
"""Maximum relative standard error of the ratio of split to unsplit run times, for measured run times to be used."""

_LEAST_OVERHEAD = 0.005  # a smaller modelled overhead is too small to scale by measurements
_MOST_KINDS = 10_000


class RunLengths(msgspec.Struct, frozen=True):
    """Run time statistics: the number of runs, the mean of ln(ms), and its sum of squared deviations."""

    runs: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def with_run(self, run_ms: int) -> RunLengths:
        """Return the statistics with one more run (Welford 1962)."""
        value, runs = math.log(max(1, run_ms)), self.runs + 1
        mean = self.mean + (value - self.mean) / runs
        return RunLengths(runs, mean, self.squares + (value - self.mean) * (value - mean))

    @property
    def error(self) -> float:
        """The variance of the mean; infinite with fewer than two runs."""
        return self.squares / (self.runs - 1) / self.runs if self.runs > 1 else math.inf


class SplitExperience(msgspec.Struct, frozen=True, kw_only=True):
    """Run times of one user's jobs of one job class and width, on one site and split over several.

    Attributes
    ----------
    whole, split : RunLengths
        Statistics of the runs on one site, and of the split runs.
    modelled : float
        Mean overhead (factor - 1) that the network model predicts for the split runs with the usual communication.
    """

    user: str
    job_class: str
    nodes: int
    whole: RunLengths = RunLengths()
    split: RunLengths = RunLengths()
    modelled: float = 0.0

    def with_run(self, run_ms: int, overhead: float | None) -> SplitExperience:
        """Return the statistics with one more run; `overhead` is a split run's modelled overhead, else None."""
        if overhead is None:
            return msgspec.structs.replace(self, whole=self.whole.with_run(run_ms))
        split = self.split.with_run(run_ms)
        modelled = self.modelled + (overhead - self.modelled) / split.runs
        return msgspec.structs.replace(self, split=split, modelled=modelled)

    @property
    def factor(self) -> float | None:
        """The measured split factor: the ratio of the geometric mean run times; None without runs of both kinds."""
        if not self.whole.runs or not self.split.runs:
            return None
        return math.exp(min(self.split.mean - self.whole.mean, 700.0))

    @property
    def scale(self) -> float | None:
        """The ratio of measured to modelled overhead; None if there are too few runs or they vary too much."""
        enough = min(self.whole.runs, self.split.runs) >= LEAST_RUNS and self.modelled >= _LEAST_OVERHEAD
        if not enough or math.sqrt(self.whole.error + self.split.error) > MOST_ERROR or self.factor is None:
            return None
        return max(0.0, self.factor - 1.0) / self.modelled


class AssumedCommunication(NamedTuple):
    """A job's communication, and why it is assumed; the reason is empty if the job declares its communication."""

    communication: Communication
    why: str

    @property
    def text(self) -> str:
        """The communication and its source in one line."""
        text = communication_text(self.communication)
        return f"{text}, {self.why}" if self.why else text


class KnownTraffic:
    """Transfers of a grid's jobs; `moves_data` says whether jobs may declare input and output data."""

    def __init__(self, sites: Sequence[str], usual: UsualCommunication, *, moves_data: bool) -> None:
        self._sites, self._usual, self._moves_data = list(sites), usual, moves_data
        self._kinds: dict[tuple[str, str, int], SplitExperience] = {}

    def state(self) -> list[SplitExperience]:
        """Return the statistics of past runs."""
        return list(self._kinds.values())

    def restore(self, state: Sequence[SplitExperience]) -> None:
        """Restore the statistics of past runs."""
        self._kinds = {(kind.user, kind.job_class, kind.nodes): kind for kind in state}

    def learnt(self) -> list[LearntSplit]:
        """Return the measured cost of splits for each kind of job that has split runs, sorted by kind."""
        return [
            LearntSplit(
                user=kind.user,
                job_class=kind.job_class,
                nodes=kind.nodes,
                whole_runs=kind.whole.runs,
                split_runs=kind.split.runs,
                factor=kind.factor,
                modelled=1.0 + kind.modelled,
                used=kind.scale is not None,
            )
            for _, kind in sorted(self._kinds.items())
            if kind.split.runs
        ]

    def communication(self, request: JobRequest) -> AssumedCommunication:
        """Return the communication of a job; raise InputError if the job declares an impossible one.

        If the job declares none, the grid assumes the usual one for its user and class. With enough runs of the same
        user, class and width, the usual fraction is scaled to match the measured overhead of these runs.
        """
        declared = declared_communication(request.traffic)
        if declared is not None:
            return AssumedCommunication(declared, "")
        usual, why = self._usual.of(request.user, request.job_class)
        kind = self._kinds.get(_key(request))
        if kind is None or kind.scale is None:
            return AssumedCommunication(usual, why)
        learnt = msgspec.structs.replace(usual, fraction=min(1.0, round(usual.fraction * kind.scale, 6)))
        return AssumedCommunication(
            learnt, f"learnt from {kind.whole.runs} runs on one site and {kind.split.runs} split"
        )

    def sends(self, request: JobRequest) -> Sends:
        """Return a job's transfers; raise InputError if the transfers are impossible."""
        data = data_of(request.traffic, self._sites)
        if (data.input_bytes or data.output_bytes) and not self._moves_data:
            raise InputError("input_bytes, output_bytes: have no effect under backfill conservative; leave them out")
        return Sends(self.communication(request).communication, data)

    def split_cost(
        self, request: JobRequest, placement: Places, length_ms: int, model: NetworkModel | None
    ) -> SplitCost:
        """Return the cost of a split of a job over these sites."""
        taken = self.communication(request)
        return split_cost(
            placement, request.limit_ms, length_ms, model, taken.communication, names=self._sites, traffic=taken.text
        )

    def ended(self, record: JobRecord, model: NetworkModel | None) -> None:
        """Add the run time of a finished job to the statistics, unless the job declares its communication."""
        request, key = record.request, _key(record.request)
        run_ms = run_time_ms(record)
        if request.nodes < 2 or model is None or run_ms is None:
            return
        if record.outcome != "finished" or declared_communication(request.traffic) is not None:
            return
        overhead: float | None = None
        if len(record.places) > 1:
            usual, _ = self._usual.of(request.user, request.job_class)
            overhead = factor_on_links(model, usual, record.places, self._sites) - 1.0
            if not overhead < math.inf:
                return
        kind = self._kinds.get(key) or SplitExperience(user=key[0], job_class=key[1], nodes=key[2])
        self._kinds[key] = kind.with_run(run_ms, overhead)
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]


def _key(request: JobRequest) -> tuple[str, str, int]:
    return request.user, request.job_class, request.nodes
