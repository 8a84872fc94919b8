"""All that waits mapped over sites, written the slow and obvious way, from docs/control.md, "Mapped over sites", alone.

A job is (offers, split): of each site that takes it (earliest start, nodes, length), and (width, length) on several
sites together, or None. The nodes of a site are the instants from which they have nothing to run.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

Offer = tuple[int, int, int]
PlainJob = tuple[dict[int, Offer], tuple[int, int] | None]

SEVERAL = -1


@dataclass
class Plan:
    """The nodes of the sites, and where each job has its place, from when to when."""

    ready: list[list[int]]
    parts: list[bool]
    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum of all ends."""
        return sum(end for _, _, end in self.places.values())

    def start_at(self, site: int, offer: Offer) -> int:
        """Return when a job would start at a site: when so many nodes have nothing to run, as soon as it may."""
        from_ms, nodes, _ = offer
        return max(from_ms, sorted(self.ready[site])[nodes - 1])

    def end_at(self, site: int, offer: Offer) -> int:
        """Return when it would end there."""
        return self.start_at(site, offer) + offer[2]

    def first_nodes(self, width: int) -> list[tuple[int, int]]:
        """Return the nodes of all sites that take parts which have nothing to run first: (site, node)."""
        nodes = [(s, n) for s, ready in enumerate(self.ready) if self.parts[s] for n in range(len(ready))]
        return sorted(nodes, key=lambda node: self.ready[node[0]][node[1]])[:width]

    def start_split(self, width: int) -> int:
        """Return when a job on several sites could start."""
        return max(self.ready[site][node] for site, node in self.first_nodes(width))

    def give(self, job: int, site: int, offer: Offer) -> None:
        """Let a job run on a site."""
        start, end = self.start_at(site, offer), self.end_at(site, offer)
        order = sorted(range(len(self.ready[site])), key=lambda node: self.ready[site][node])
        for node in order[: offer[1]]:
            self.ready[site][node] = end
        self.places[job] = site, start, end

    def give_split(self, job: int, width: int, length: int) -> None:
        """Let a job run on several sites."""
        start = self.start_split(width)
        for site, node in self.first_nodes(width):
            self.ready[site][node] = start + length
        self.places[job] = SEVERAL, start, start + length


def mapped(algorithm: str, jobs: list[PlainJob], ready: list[list[int]], parts: list[bool]) -> Plan:
    """Map jobs over sites."""
    base = Plan(copy.deepcopy(ready), parts)
    in_parts = sum(len(nodes) for nodes, takes in zip(ready, parts, strict=True) if takes)
    jobs = [
        (
            {site: offer for site, offer in offers.items() if offer[1] <= len(ready[site])},
            split if split is not None and split[0] <= in_parts else None,
        )
        for offers, split in jobs
    ]
    for number, (offers, split) in enumerate(jobs):
        if not offers and split is not None:
            base.give_split(number, *split)
    if algorithm not in ("sjs", "pjs"):
        return on_one_site(algorithm, base, jobs)
    best = better_of_two(base, jobs)
    while algorithm == "pjs":
        gains = [
            (min(base.end_at(site, offer) for site, offer in offers.items()) - base.start_split(split[0]) - split[1], n)
            for n, (offers, split) in enumerate(jobs)
            if n not in base.places and offers and split is not None
        ]
        gain, number = max(gains, key=lambda found: (found[0], -found[1]), default=(0, -1))
        if gain <= 0:
            break
        base.give_split(number, *(jobs[number][1] or (0, 0)))
        trial = better_of_two(base, jobs)
        if trial.total >= best.total:
            break
        best = trial
    return best


def better_of_two(base: Plan, jobs: list[PlainJob]) -> Plan:
    """Return the better of min-min and min-max; min-min if they are alike."""
    return min((on_one_site(name, base, jobs) for name in ("min-min", "min-max")), key=lambda plan: plan.total)


def on_one_site(algorithm: str, base: Plan, jobs: list[PlainJob]) -> Plan:
    """Return the plan in which each job that is left has a site, if one takes it."""
    plan = copy.deepcopy(base)
    left = [number for number, (offers, _) in enumerate(jobs) if number not in plan.places and offers]
    while left:
        number, site = next_of(algorithm, plan, left, jobs)
        plan.give(number, site, jobs[number][0][site])
        left.remove(number)
    return plan


def next_of(algorithm: str, plan: Plan, left: list[int], jobs: list[PlainJob]) -> tuple[int, int]:
    """Return the next job and its site."""
    offers = jobs[left[0]][0]
    if algorithm == "olb":
        return left[0], min(sorted(offers), key=lambda site: plan.start_at(site, offers[site]))
    if algorithm == "best-assignment":
        return left[0], min(sorted(offers), key=lambda s: (offers[s][2], plan.start_at(s, offers[s])))
    ends = {n: min((plan.end_at(site, offer), site) for site, offer in jobs[n][0].items()) for n in left}
    sign = 1 if algorithm == "min-min" else -1
    number = min(left, key=lambda n: sign * ends[n][0])
    return number, ends[number][1]
