"""The factor by which a split increases a job's run time (docs/netmodel.md, "The overhead of a split").

This file also counts the messages between the parts of a job in one exchange ("Counting messages"). Ranks are numbered
part by part, so a part is an interval of ranks and every count has a closed form.
"""

from __future__ import annotations

import numpy as np

from gridweave.jit import Int, Record, Records, kernel, kernel_apart, kernel_part
from gridweave.netmodel.kernels.state import ALL_TO_ALL, MASTER_WORKERS, NO_COMMUNICATION, LinkRows, NetArrays

# Typed, so that kernels are not compiled again for each value.
OUT, BACK = np.int64(1), np.int64(2)


@kernel_apart
def split_factor(net: NetArrays, communication: Record, parts: Records, n_parts: Int) -> float:
    """Return the factor by which a split into these parts increases a job's run time, on otherwise idle links.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        The job's communication; its width is the total of all parts.
    parts : numpy.ndarray of PART
        On different sites, in rank order.
    n_parts : int
        Number of entries of ``parts`` in use.

    Returns
    -------
    float
        At least 1; infinite if two sites that exchange messages have no path.
    """
    if n_parts < 2 or communication.fraction <= 0.0 or communication.pattern == NO_COMMUNICATION:
        return 1.0
    return _factor(net, communication, parts, n_parts, share_nothing(net, parts, n_parts))


@kernel_part
def share_nothing(net: NetArrays, parts: Records, n_parts: Int) -> bool:
    """Whether no two paths between the parts share a link; checked for two parts only."""
    return n_parts == 2 and net.apart[parts[0].site, parts[1].site]


@kernel
def is_more_than(net: NetArrays, communication: Record, parts: Records, n_parts: Int, limit: float) -> bool:
    """Whether `split_factor` certainly exceeds a limit, found with less work; False if in doubt.

    The messages are checked first as if no two paths shared a link, then with the actual link loads, stopping at the
    first message over the limit. Sums are added in a different order than in `split_factor`, so the answer is True only
    if the factor exceeds the limit by a billionth. The answer for the first parts of a placement holds for the whole
    placement, because further parts never make a message cheaper.

    Parameters
    ----------
    net : NetArrays
    communication : COMMUNICATION
        Includes the width of the whole placement.
    parts : numpy.ndarray of PART
    n_parts : int
        Number of entries of ``parts`` in use.
    limit : float
    """
    if limit == np.inf:
        return False
    if n_parts < 2 or communication.fraction <= 0.0 or communication.pattern == NO_COMMUNICATION:
        return limit < 1.0
    if not is_counted(net, communication, n_parts):
        return _factor(net, communication, parts, n_parts, True) > limit
    limit *= 1.0 + 1e-9
    over_ms = (limit - 1.0) / communication.fraction * local_exchange_ms(net, communication)
    if net.overlapped:
        over_ms *= _all_messages(communication)
    busy_ms = limit * step_ms(net, communication)
    if _alone_is_more(net, communication, parts, n_parts, over_ms, busy_ms):
        return True
    if share_nothing(net, parts, n_parts):
        return False
    _load_links(net, net.both, parts, n_parts, True)
    more = _loaded_is_more(net, communication, parts, n_parts, over_ms, busy_ms)
    _clear_links(net, net.both, parts, n_parts, True)
    return more


@kernel_part
def is_counted(net: NetArrays, communication: Record, n_parts: Int) -> bool:
    """Whether `is_more_than` can count forward messages only, because the reverse messages cost the same."""
    sends = communication.fraction > 0.0 and communication.pattern != NO_COMMUNICATION
    return n_parts > 1 and sends and net.mirrored and communication.pattern != MASTER_WORKERS


@kernel_part
def _alone_is_more(
    net: NetArrays, communication: Record, parts: Records, n_parts: Int, over_ms: float, busy_ms: float
) -> bool:
    """Count the messages from each part to later parts; return whether they exceed a limit even on unshared links.

    The limits are ``over_ms``, the extra time compared with one site (of the slowest message or, if overlapped, of all
    messages together), and ``busy_ms``, the time for which a link or stream can be busy.
    """
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    more_ms = 0.0
    first = np.int64(0)
    for part in range(n_parts):
        site = parts[part].site
        end = first + parts[part].width
        to_first = end
        for other in range(part + 1, n_parts):
            target = parts[other].site
            to_end = to_first + parts[other].width
            count = float(exchanged(communication, first, end, to_first, to_end))
            to_first = to_end
            net.messages[part * n_parts + other] = count
            if count > 0.0:
                ms_per_bit = max(_stream_ms(net, site, target), count * net.narrowest_ms_per_bit[site, target])
                carried_ms = communication.bits * ms_per_bit
                more_ms = _more_ms(net, site, target, count, more_ms, max(0.0, carried_ms - own_ms))
                if more_ms > over_ms or carried_ms > busy_ms:
                    return True
        first = end
    return False


@kernel_part
def _loaded_is_more(
    net: NetArrays, communication: Record, parts: Records, n_parts: Int, over_ms: float, busy_ms: float
) -> bool:
    """Whether messages add over ``over_ms``, or fill a link over ``busy_ms``, if links carry the whole load."""
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    sites = len(net.lag_ms)
    more_ms = 0.0
    for part in range(n_parts):
        site = parts[part].site
        for other in range(part + 1, n_parts):
            target = parts[other].site
            count = net.messages[part * n_parts + other]
            if count > 0.0:
                ms_per_bit = max(_stream_ms(net, site, target), _busiest_ms(net, net.both, site * sites + target))
                carried_ms = communication.bits * ms_per_bit
                more_ms = _more_ms(net, site, target, count, more_ms, max(0.0, carried_ms - own_ms))
                if more_ms > over_ms or carried_ms > busy_ms:
                    return True
    return False


@kernel_part
def _stream_ms(net: NetArrays, site: Int, other: Int) -> float:
    """Return the time per bit of a stream between two sites, in the faster direction."""
    return min(net.stream_ms_per_bit[site, other], net.stream_ms_per_bit[other, site])


@kernel_part
def _more_ms(net: NetArrays, site: Int, other: Int, count: float, more_ms: float, longer_ms: float) -> float:
    """Return ``more_ms``, the extra time compared with one site, updated for ``count`` messages each way."""
    there_ms, back_ms = net.lag_ms[site, other], net.lag_ms[other, site]
    if net.overlapped:
        return more_ms + count * (there_ms + back_ms + 2.0 * longer_ms)
    return max(more_ms, max(there_ms, back_ms) + longer_ms)


@kernel_part
def _factor(net: NetArrays, communication: Record, parts: Records, n_parts: Int, alone: bool) -> float:
    """Compute the split factor; if ``alone``, as if no two paths shared a link."""
    count_messages(net, communication, parts, n_parts, OUT)
    ratio, busiest_ms = _exchange_ratio(net, communication, parts, n_parts, alone)
    if communication.pattern == MASTER_WORKERS:
        count_messages(net, communication, parts, n_parts, BACK)
        back, back_ms = _exchange_ratio(net, communication, parts, n_parts, alone)
        ratio, busiest_ms = 0.5 * (ratio + back), max(busiest_ms, back_ms)
    # Even if overlapped, a step cannot end before the busiest link or stream has carried its messages.
    return max(1.0 + communication.fraction * (ratio - 1.0), busiest_ms / step_ms(net, communication))


@kernel_part
def local_exchange_ms(net: NetArrays, communication: Record) -> float:
    """Return the time of one exchange on the network of a single site."""
    return net.local_latency_ms + communication.messages * communication.bits * net.local_ms_per_bit


@kernel_part
def step_ms(net: NetArrays, communication: Record) -> float:
    """Return the time of one step on a single site: its exchanges and the work between them."""
    exchanges = 2.0 if communication.pattern == MASTER_WORKERS else 1.0
    return exchanges * local_exchange_ms(net, communication) / communication.fraction


@kernel
def count_messages(net: NetArrays, communication: Record, parts: Records, n_parts: Int, exchange: Int) -> None:
    """Write the number of messages between parts in one exchange to ``net.messages``, at index from x parts + to."""
    messages = net.messages
    if communication.pattern == MASTER_WORKERS:
        for place in range(n_parts * n_parts):
            messages[place] = 0.0
        for other in range(1, n_parts):
            messages[other if exchange == OUT else other * n_parts] = parts[other].width
        return
    first = 0
    for part in range(n_parts):
        end = first + parts[part].width
        messages[part * n_parts + part] = 0.0
        to_first = end
        for other in range(part + 1, n_parts):
            to_end = to_first + parts[other].width
            count = float(exchanged(communication, first, end, to_first, to_end))
            messages[part * n_parts + other] = count
            messages[other * n_parts + part] = count
            to_first = to_end
        first = end


@kernel
def _exchange_ratio(
    net: NetArrays, communication: Record, parts: Records, n_parts: Int, alone: bool
) -> tuple[float, float]:
    """Return the time of one exchange relative to a single site, and the time that its busiest link or stream is busy.

    A synchronous exchange takes as long as its slowest message, an overlapped exchange as long as the average message.
    """
    mirrored = net.mirrored and communication.pattern != MASTER_WORKERS
    if not alone:
        _load_links(net, net.both if mirrored else net.links, parts, n_parts, mirrored)
        if mirrored:
            _find_busiest(net, parts, n_parts)
            _clear_links(net, net.both, parts, n_parts, mirrored)
    own_ms = communication.messages * communication.bits * net.local_ms_per_bit
    local_ms = net.local_latency_ms + own_ms
    slowest_ms = local_ms
    more_ms = 0.0
    busiest_ms = 0.0
    for part in range(n_parts):
        for other in range(n_parts):
            count = net.messages[part * n_parts + other]
            if count > 0.0:
                site, target = parts[part].site, parts[other].site
                # Time per bit on the busiest link of the path, or in its stream.
                ms_per_bit = net.stream_ms_per_bit[site, target]
                if alone:
                    ms_per_bit = max(ms_per_bit, count * net.narrowest_ms_per_bit[site, target])
                elif mirrored:
                    ms_per_bit = max(ms_per_bit, net.busy_ms[part * n_parts + other])
                else:
                    ms_per_bit = max(ms_per_bit, _busiest_ms(net, net.links, site * len(net.lag_ms) + target))
                carried_ms = communication.bits * ms_per_bit
                cost_ms = net.local_latency_ms + net.lag_ms[site, target] + max(own_ms, carried_ms)
                busiest_ms = max(busiest_ms, carried_ms)
                slowest_ms = max(slowest_ms, cost_ms)
                more_ms += count * (cost_ms - local_ms)
    if not alone and not mirrored:
        _clear_links(net, net.links, parts, n_parts, mirrored)
    if net.overlapped:
        return 1.0 + more_ms / _all_messages(communication) / local_ms, busiest_ms
    return slowest_ms / local_ms, busiest_ms


@kernel_part
def _first_other(part: Int, mirrored: bool) -> Int:
    """Return the first part to pair with ``part``; if paths are mirrored, each pair is visited once."""
    return part + 1 if mirrored else 0


@kernel_part
def _load_links(net: NetArrays, links: LinkRows, parts: Records, n_parts: Int, mirrored: bool) -> None:
    """Add the messages between the parts to the load of the links on their paths.

    Except for master-workers, the same number of messages goes each way. If the return paths are mirrored, a link and
    its mirror have the same load, so only the forward path of each pair is counted.
    """
    sites = len(net.lag_ms)
    for part in range(n_parts):
        for other in range(_first_other(part, mirrored), n_parts):
            count = net.messages[part * n_parts + other]
            if count > 0.0:
                path = parts[part].site * sites + parts[other].site
                for place in range(net.first[path], net.first[path + 1]):
                    net.load[links[place]] += count


@kernel_part
def _busiest_ms(net: NetArrays, links: LinkRows, path: Int) -> float:
    """Return the time per bit on the busiest link of a path."""
    busy_ms = 0.0
    for place in range(net.first[path], net.first[path + 1]):
        link = links[place]
        busy_ms = max(busy_ms, net.load[link] * net.ms_per_bit[link])
    return busy_ms


@kernel_part
def _find_busiest(net: NetArrays, parts: Records, n_parts: Int) -> None:
    """Write the time per bit on the busiest link between two parts to ``net.busy_ms``, for mirrored paths."""
    sites = len(net.lag_ms)
    for part in range(n_parts):
        for other in range(part + 1, n_parts):
            if net.messages[part * n_parts + other] > 0.0:
                busy_ms = _busiest_ms(net, net.both, parts[part].site * sites + parts[other].site)
                net.busy_ms[part * n_parts + other] = net.busy_ms[other * n_parts + part] = busy_ms


@kernel_part
def _clear_links(net: NetArrays, links: LinkRows, parts: Records, n_parts: Int, mirrored: bool) -> None:
    """Reset the loads set by `_load_links`; with few links, reset all of them."""
    if len(net.load) <= 32 * n_parts:
        for link in range(len(net.load)):
            net.load[link] = 0.0
        return
    sites = len(net.lag_ms)
    for part in range(n_parts):
        for other in range(_first_other(part, mirrored), n_parts):
            if net.messages[part * n_parts + other] > 0.0:
                path = parts[part].site * sites + parts[other].site
                for place in range(net.first[path], net.first[path + 1]):
                    net.load[links[place]] = 0.0


@kernel_part
def _all_messages(communication: Record) -> float:
    """Return the total number of messages in one exchange, within parts and between them."""
    if communication.pattern == ALL_TO_ALL:
        return float(communication.width * (communication.width - 1))
    if communication.pattern == MASTER_WORKERS:
        return float(communication.width - 1)
    return float(communication.width * communication.messages)


@kernel_part
def _in_step(rank: Int, period: Int, stay: Int) -> Int:
    """Return the number of ranks below ``rank`` that are among the first ``stay`` ranks of their period."""
    # 64-bit division is several times slower than 32-bit division, and ranks are below 2^31.
    periods = np.int64(np.uint32(rank) // np.uint32(period))
    return periods * stay + min(rank - periods * period, stay)


@kernel
def _shifted(first: Int, end: Int, to_first: Int, to_end: Int, period: Int, shift: Int) -> Int:
    """Return how many ranks of an interval have their partner in another interval.

    The partner of a rank is ``shift`` ranks further, wrapping around within its period.
    """
    stay = period - shift
    count = 0
    low, high = max(first, to_first - shift), min(end, to_end - shift)
    if low < high:
        count += _in_step(high, period, stay) - _in_step(low, period, stay)
    low, high = max(first, to_first + stay), min(end, to_end + stay)
    if low < high:
        count += high - low - (_in_step(high, period, stay) - _in_step(low, period, stay))
    return count


@kernel
def _shifted_around(first: Int, end: Int, to_first: Int, to_end: Int, width: Int, shift: Int) -> Int:
    """Return the result of `_shifted` for a single period that spans all ranks."""
    stay = width - shift
    forward = min(end, to_end - shift, stay) - max(first, to_first - shift)
    around = min(end, to_end + stay) - max(first, to_first + stay, stay)
    return max(np.int64(0), forward) + max(np.int64(0), around)


@kernel
def exchanged(communication: Record, first: Int, end: Int, to_first: Int, to_end: Int) -> Int:
    """Return the number of messages from one interval of ranks to another per exchange; equal in both directions.

    Parameters
    ----------
    communication : COMMUNICATION
        All-to-all or neighbours.
    first, end, to_first, to_end : int
        Two disjoint intervals of ranks; ``end`` and ``to_end`` are excluded.
    """
    if communication.pattern == ALL_TO_ALL:
        return (end - first) * (to_end - to_first)
    count = 0
    columns = communication.columns
    plane = communication.rows * columns
    # Each rank sends to the next and the previous rank; backward messages are the other interval's forward messages.
    if columns == communication.width:
        # A ring.
        count += _shifted_around(first, end, to_first, to_end, columns, np.int64(1))
        count += _shifted_around(to_first, to_end, first, end, columns, np.int64(1))
        return count
    if columns > 1:
        count += _shifted(first, end, to_first, to_end, columns, 1)
        count += _shifted(to_first, to_end, first, end, columns, 1)
    if communication.planes > 1:
        count += _shifted_around(first, end, to_first, to_end, communication.width, plane)
        count += _shifted_around(to_first, to_end, first, end, communication.width, plane)
    elif communication.rows > 1:
        count += _shifted_around(first, end, to_first, to_end, plane, columns)
        count += _shifted_around(to_first, to_end, first, end, plane, columns)
        return count
    if communication.rows > 1:
        count += _shifted(first, end, to_first, to_end, plane, columns)
        count += _shifted(to_first, to_end, first, end, plane, columns)
    return count
