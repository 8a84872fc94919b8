"""What jobs send over the links between their sites, and how that slows them (docs/grid.md, "With a network")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.grid.coallocation import Fragments
from gridweave.grid.kernels.links import NO_DATA, GridLinks, data_delay_ms, grown_ms
from gridweave.grid.net_links import GridNetwork, new_links
from gridweave.netmodel.kernels.contention import add_job_flows, all_slowdowns, drop_flows, share_links
from gridweave.netmodel.kernels.overhead import split_factor
from gridweave.netmodel.kernels.state import PART, Flows, new_filling, new_flows
from gridweave.netmodel.model import NetworkModel
from gridweave.scenarios.grid_net import communication_of, data_of
from gridweave.scenarios.results import NEVER
from gridweave.scenarios.workload import IntArray, Workload
from gridweave.site.kernels.rates import RATE_ONE, rate_of

_FIRST_ROOM = 64


@dataclass(slots=True)
class _Sender:
    """A job that works on several sites, and what it sends."""

    row: int
    attempt: int
    number: int
    fragments: Fragments
    links: GridLinks
    rate: int = RATE_ONE


class Traffic:
    """The truth about the jobs of a workload on a network.

    A job has the factor, and its data takes the time, of the links as they were when the grid placed it.

    Parameters
    ----------
    workload : Workload
    network : GridNetwork
    contention : str
        ``none``, ``static`` or ``dynamic``.

    Raises
    ------
    InputError
        If a column of the workload makes no sense.

    Attributes
    ----------
    factor : numpy.ndarray of float64, shape (n,)
        By which each job grew on idle links.
    length_ms, transfer_ms : numpy.ndarray of int64, shape (n,)
        How long each job takes on idle links, its data included; and its data alone.
    """

    def __init__(self, workload: Workload, network: GridNetwork, contention: str) -> None:
        sites = len(network.model.topology.sites)
        self._rows = {job_id: row for row, job_id in enumerate(workload.job_id.tolist())}
        self._communication = communication_of(workload)
        self._data = data_of(workload, sites)
        self._submit_ms = workload.submit_ms
        self._links = new_links(
            GridNetwork(network.model, False, network.staging, network.exact_up_to), slots=1, widest=1
        )
        self._contention = contention
        self._asked: dict[int, tuple[int, GridLinks, int]] = {}
        self._n_asked = 0
        self._senders: dict[int, _Sender] = {}
        # Those that have begun at this instant, whose flows are not there yet.
        self._begun: dict[int, _Sender] = {}
        self._flows = new_flows(_FIRST_ROOM)
        self._filling = new_filling(len(network.model.arrays.capacity), _FIRST_ROOM)
        self.stirred = False
        count = len(workload)
        self.factor, self._slowdown = np.ones((2, count))
        self.length_ms, self.transfer_ms = np.zeros((2, count), np.int64)

    def links_changed(self, model: NetworkModel) -> None:
        """Let flows go by the links as they are now."""
        self._links = self._links._replace(paths=model.arrays)
        self.stirred = self._contention != "none"

    def asked(self, job_id: int, attempt: int) -> None:
        """Keep the links as they are now for a job that is placed by them."""
        if job_id not in self._asked or self._asked[job_id][0] != attempt:
            self._asked[job_id] = attempt, self._links, self._n_asked
            self._n_asked += 1

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int:
        """Return how long a job takes at rate 1, from now on, on these nodes."""
        row = self._rows[job_id]
        asked, links, number = self._asked[job_id]
        assert asked == attempt, "an attempt begins that is over"
        data_ms = 0
        if links.staging != NO_DATA:
            links.data[0] = self._data[row]
            times = np.int64(self._submit_ms[row]), np.int64(now_ms)
            delays_ms = [data_delay_ms(links, np.int64(0), times[0], np.int64(site), times[1]) for site, _ in fragments]
            data_ms = int(max(delays_ms))
        self.transfer_ms[row] = data_ms
        self.factor[row] = 1.0
        if len(fragments) > 1:
            parts = np.array(list(fragments), PART)
            self.factor[row] = split_factor(links.paths, self._communication[row], parts, len(parts))
            if self._contention != "none":
                self._begun[job_id] = _Sender(row, attempt, number, fragments, links)
                self.stirred = True
            run_ms = int(grown_ms(np.int64(run_ms), self.factor[row]))
        self.length_ms[row] = data_ms + run_ms
        return data_ms + run_ms

    def ends(self, job_id: int) -> None:
        """Take a job's flows off the links."""
        self._begun.pop(job_id, None)
        sender = self._senders.pop(job_id, None)
        if sender is not None and drop_flows(self._flows, np.int64(sender.row)) > 0:
            # Those that run are not slowed less under static contention.
            self.stirred = self.stirred or self._contention == "dynamic"

    def rates(self, now_ms: int) -> list[tuple[int, int, int]]:
        """Share the links anew; return (job id, attempt, rate) of the jobs whose rates are other ones then."""
        self.stirred = False
        begun = sorted(self._begun.items(), key=lambda item: item[1].number)
        self._begun = {}
        for job_id, sender in begun:
            self._add_flows(sender)
            self._senders[job_id] = sender
        share_links(self._links.paths, self._flows, self._filling)
        all_slowdowns(self._flows, self._slowdown)
        owners = set(self._flows.owner[: int(self._flows.n_flows[0])].tolist())
        changed = []
        first = {job_id for job_id, _ in begun}
        for job_id, sender in self._senders.items():
            # What is found at the start counts, or, where a link has failed since a job was placed, when it is back.
            counts = self._contention == "dynamic" or job_id in first or sender.rate == 0
            if counts and sender.row in owners:
                slowdown = self._slowdown[sender.row]
                rate = 0 if slowdown == np.inf else int(rate_of(slowdown))
                if rate != sender.rate:
                    sender.rate = rate
                    changed.append((job_id, sender.attempt, rate))
        return changed

    def slowdowns(self, start_ms: IntArray, end_ms: IntArray) -> npt.NDArray[np.float64]:
        """Return by what jobs took longer than on idle links; 1 for jobs of which no length is known here."""
        known = (self.length_ms > 0) & (start_ms != NEVER)
        slowdown: npt.NDArray[np.float64] = np.where(known, (end_ms - start_ms) / np.maximum(self.length_ms, 1), 1.0)
        return slowdown

    def check_all_move(self, now_ms: int) -> None:
        """Refuse a run in which a job stands still, to be called when the links change no more.

        Raises
        ------
        InputError
            With the name of the job.
        """
        for job_id, sender in self._senders.items():
            if sender.rate == 0:
                raise InputError(
                    f"job {job_id} runs on several sites and gets nothing over the links from {now_ms} ms on, "
                    "for ever; let them come back, or choose the contention none or static"
                )

    def _add_flows(self, sender: _Sender) -> None:
        parts = np.array(list(sender.fragments), PART)
        room = int(self._flows.n_flows[0]) + 2 * len(parts) * len(parts)
        if room > len(self._flows.owner):
            self._flows = _larger(self._flows, 2 * room)
            self._filling = new_filling(len(self._filling.left), 2 * room)
        # By the links by which it was placed: where there is no way now its flows get nothing.
        paths, row = sender.links.paths, np.int64(sender.row)
        add_job_flows(paths, self._flows, row, self._communication[row], parts, len(parts), self.factor[row])


def _larger(flows: Flows, room: int) -> Flows:
    larger = new_flows(room)
    for new, old in zip(larger, flows, strict=True):
        new[: len(old)] = old
    return larger
