"""A whole grid on this machine (Ray, the actors and the gateway): start, repair, stop and reset it.

As a program, ``python -m gridweave.grid.service.local NAME`` starts the missing parts of a grid, like a second `up`;
the watchdog runs this program. The last line of its standard output names the problem.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError
from gridweave.grid.config.hardware_kinds import FoundKinds, with_found
from gridweave.grid.config.journals import check_journals, forget_jobs
from gridweave.grid.config.local_state import (
    DEFAULT_NAME,
    GATEWAY,
    GATEWAY_MARK,
    HEAD,
    LIVE,
    LOGS,
    RAY_TOKEN,
    STATE,
    TERM_S,
    TOKEN,
    WATCHDOG,
    LocalGridState,
    LocalProcess,
    LocalSite,
    check_name,
    count_running,
    end_jobs,
    end_marked,
    end_processes,
    forget_processes,
    make_private,
    read_grid_state,
    state_folder,
    working_on,
    write_private,
    write_state,
)
from gridweave.grid.config.reading import ReadGrid, grid_of_text
from gridweave.grid.config.tables import GridFile
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.service.actor import GatewayActor
from gridweave.grid.service.actor_status import namespace_of
from gridweave.grid.service.actors import GIVE_UP_S, Spot, actor_names, find_actors, stop_actors
from gridweave.grid.service.cluster import (
    FIRST_PORT,
    GridPlan,
    RunningGrid,
    machines_with_kinds,
    make_grid,
    plan_of,
)
from gridweave.grid.service.doors import ClusterDoor
from gridweave.grid.service.gateway_process import make_token, settings_of, url_of, wait_until_ready
from gridweave.grid.service.ray import (
    EXPOSURE,
    LOOPBACK,
    Launcher,
    OwnRay,
    RayMachine,
    RayState,
    check_ray,
    connected,
    own_host,
    probe,
    remove_temp,
)
from gridweave.grid.service.signals import ended_in_order, signals_held, uninterrupted
from gridweave.grid.service.watchdog import REPAIR_S, end_watchdog, start_watchdog
from gridweave.site.machine.folders import check_way
from gridweave.site.machine.hardware.bind import bind
from gridweave.site.machine.hardware.find import find_hardware
from gridweave.site.machine.processes import boot_id
from gridweave.site.service.calls import GATEWAY_ACTOR, GRID_LABEL, SITE_LABEL
from gridweave.site.times import span_text

PROBE_SECRET, MARKER = "probe-secret", "marker"

REASON = "the grid is taken down"

PORTS_OF_A_GRID, GRIDS = 1_000, 12
"""Number of rendezvous ports of one grid, and number of grids that have their own ports."""

Report = Callable[[str], None]
"""Called with progress messages."""


@dataclass(frozen=True)
class GridSpec:
    """A grid to run on this machine."""

    name: str
    read: ReadGrid
    address: str | None = None  # address of an existing Ray cluster, in place of a local one
    found_kinds: FoundKinds = field(default_factory=dict)  # kinds of nodes that the file leaves to the machine

    @property
    def file(self) -> GridFile:
        """The contents of GRID.toml."""
        assert isinstance(self.read.file, GridFile), "a file of serve is not a GRID.toml"
        return self.read.file

    @property
    def machines(self) -> list[RayMachine]:
        """The machines of all sites."""
        return [
            RayMachine(site.name, f"m{number}", site.machines == 1)
            for site in self.file.sites
            for number in range(site.machines)
        ]

    @property
    def ray_machines(self) -> list[RayMachine]:
        """The machines that have their own Ray node; all other machines share the head."""
        return self.machines if self.file.ray.nodes == "machine" else []


def grid_spec(
    read: ReadGrid, *, name: str | None = None, address: str | None = None, found_kinds: FoundKinds | None = None
) -> GridSpec:
    """Return the grid that a GRID.toml describes.

    `name` takes precedence over the name in the file. `found_kinds` are the kinds found at the grid's first start.
    """
    read, kinds = with_found(read, found_kinds or {}, is_local=address is None)
    return GridSpec(check_name(name or read.file.name or DEFAULT_NAME), read, address, kinds)


def hardware_notes(spec: GridSpec) -> list[str]:
    """Return one line for each difference between this machine and the kinds of nodes of a local grid."""
    plan = msgspec.structs.replace(_plan_of(spec), is_on_one_host=True)
    shares = plan.shares()
    machines = [
        (site.name, nodes, shares[site.name, machine.name])
        for number, site in enumerate(plan.sites)
        for machine, nodes in machines_with_kinds(plan.site_settings(number))
        if nodes and not site.virtual
    ]
    if not machines or spec.address is not None:
        return []
    hardware = find_hardware()
    notes = [f"site {name}: {note}" for name, nodes, share in machines for note in bind(hardware, nodes, share).notes]
    return list(dict.fromkeys(notes))


@dataclass(kw_only=True)
class StartReport:
    """The result of `bring_up`."""

    state: LocalGridState
    was_up: bool = False  # whether part of the grid was already running
    started: list[str] = field(default_factory=list)  # processes and actors started now
    seconds: dict[str, float] = field(default_factory=dict)  # duration of each phase
    remarks: list[str] = field(default_factory=list)  # remarks for the user


def bring_up(spec: GridSpec, report: Report) -> StartReport:
    """Start a grid or its missing parts on this machine; after a failure, end the parts that were started.

    Jobs that were already running continue in any case.

    Raises
    ------
    OptionError, InputError
        As in `check_start`.
    UnavailableError
        If a part is not ready in time.
    """
    before = read_grid_state(spec.name)
    patience_s = REPAIR_S if before is not None and before.watchdog else 0.0
    with working_on(spec.name, patience_s) as folder, ended_in_order():
        before = read_grid_state(spec.name)
        report("Checking what is running")
        for change in check_start(spec, before):
            report(change)
        watchdog = () if before is None else before.watchdog
        last_url = "" if before is None else before.url
        if before is not None and is_broken(before):
            if len(before.processes) > len(watchdog):
                report("Removing the remains of an earlier grid")
            end_all(before, keep_jobs=True)
            before = None
        launcher = work = None
        try:
            if before is None and spec.address is None:
                report("Starting Ray")
                check_ray()
                with uninterrupted():
                    launcher = Launcher(folder / RAY_TOKEN, kept_secret(folder, MARKER))
            with uninterrupted():
                work = _Startup(spec, folder, before, _Kept(last_url, watchdog), report)
            work.run(launcher)
        except BaseException:
            if work is not None:
                work.undo()
            raise
        finally:
            if launcher is not None:
                launcher.close()
        return work.done


class _Kept(NamedTuple):
    """The parts of a grid that survive a restart of everything else."""

    url: str  # URL of its gateway; empty: there was none
    watchdog: tuple[LocalProcess, ...]


class _Startup:
    """Starts a grid once, and records the processes and actors that have been started so far."""

    def __init__(
        self, spec: GridSpec, folder: Path, before: LocalGridState | None, kept: _Kept, report: Report
    ) -> None:
        self._spec, self._folder, self._report = spec, folder, report
        self._before, self._kept = before, kept
        self._began = time.monotonic()
        self.done = StartReport(state=before or self._new_state(), was_up=before is not None)
        self._had_jobs = count_running(Path(self.done.state.folder)) > 0

    def _new_state(self) -> LocalGridState:
        spec, read = self._spec, self._spec.read
        return LocalGridState(
            name=spec.name,
            marker=kept_secret(self._folder, MARKER),
            boot=boot_id(),
            since_ms=int(time.time() * 1000),
            folder=live_folder(spec),
            namespace=namespace_of(spec.name, DEFAULT_NAME),
            sites=tuple(
                LocalSite(site.name, site.node_count, site.machines, site.launcher.words) for site in read.sites
            ),
            address=spec.address or "",
            own_ray=spec.address is None,
            url=self._kept.url,
            processes=self._kept.watchdog,
            tokens=read.gateway.tokens,
            file=read.source,
            text=read.text,
            base=read.base,
            found_kinds=spec.found_kinds,
        )

    def run(self, launcher: Launcher | None) -> None:
        make_private(self._folder / LOGS)
        runs_as_others = any(site.launcher.kind == "user" for site in self._spec.read.sites)
        make_private(Path(self.done.state.folder), passable=runs_as_others)
        if runs_as_others and self.done.state.own_ray:
            check_way(Path(self.done.state.folder) / "jobs")
        self._change(parts=self._parts())
        self._lap("read")
        if self.done.state.own_ray:
            self._on_own_ray(launcher)
        else:
            self._on_a_cluster()
        self._watchdog()
        self._report("")

    def _parts(self) -> tuple[str, ...]:
        """Return the names of the processes that the watchdog restarts; Ray restarts everything else."""
        nodes = [machine.node for machine in self._spec.ray_machines]
        return (HEAD, *nodes) if self.done.state.own_ray else (GATEWAY,)

    def _watchdog(self) -> None:
        """Start the watchdog unless it is running."""
        if not self.done.state.watchdog:
            with uninterrupted(), start_watchdog(self.done.state, self._folder) as process:
                self._started(process)

    def _on_own_ray(self, launcher: Launcher | None) -> None:
        ray = self._ray(self._spec.ray_machines)
        ray.start(launcher)
        self.done.remarks += [EXPOSURE] * (self._before is None)
        self._lap("launch")
        plan = self._plan(ray.labelled)
        # The grid survives the loss of a site's node. Without the head there is nothing left to schedule for.
        plan = msgspec.structs.replace(plan, grid_labels=HEAD_LABELS, is_on_one_host=True)
        self._lap("plan")
        with ray.connected():
            self._lap("connect")
            grid = self._make_actors(plan, Spot(labels=HEAD_LABELS))
            if ray.labelled:
                self._report("Starting the Ray nodes of the sites")
            ray.wait()
            self._lap("nodes")
            self._await_actors(grid)
        self._await_gateway()

    def _ray(self, machines: Sequence[RayMachine]) -> OwnRay:
        state, settings = self.done.state, self._spec.file.ray
        port = int(state.address.rpartition(":")[2] or 0)
        processes = tuple(process for process in state.processes if process.name not in _NOT_OF_RAY)
        return OwnRay(
            self._folder,
            machines,
            marker=state.marker,
            store_bytes=settings.store_bytes,
            port=settings.port,
            state=RayState(boot=state.boot, port=port, temp=state.temp, processes=processes),
            changed=self._ray_changed,
            head_labels=HEAD_LABELS,
            report=self._report,
        )

    def _ray_changed(self, ray: RayState) -> None:
        state = self.done.state
        self.done.started += [process.name for process in ray.processes if process not in state.processes]
        others = tuple(process for process in state.processes if process.name in _NOT_OF_RAY)
        self._change(address=f"{LOOPBACK}:{ray.port}", temp=ray.temp, processes=(*ray.processes, *others))

    def _on_a_cluster(self) -> None:
        address = self.done.state.address
        self._report("Joining Ray")
        check_ray()
        probe(address)
        with connected(address) as ray:
            self._lap("connect")
            plan = self._at_home(ray, self._plan(self._labelled(ray)))
            before = set(self._actors_there())
            try:
                self._await_actors(self._make_actors(plan, self._gateway_spot(ray)))
            except BaseException:
                with signals_held():
                    there = self._actors_there()
                    created = {name: there[name] for name in there if name not in before}
                    stop_actors(created, end_jobs=False, timeout_s=GIVE_UP_S)
                raise
        self._await_gateway()

    def _actors_there(self) -> dict[str, Any]:
        return _actors_of(self.done.state)

    def _gateway_spot(self, ray: Any) -> Spot:
        """Return where to place the gateway: on the cluster's host that ``gateway.host`` names, or on this host."""
        hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        host, here = self._spec.read.gateway.host, own_host(ray)
        elsewhere = host in hosts and host != here
        self._change(gateway_elsewhere=elsewhere)
        return Spot(ip=host if elsewhere else here)

    def _labelled(self, ray: Any) -> bool:
        """Whether the cluster's nodes have site labels."""
        labels = {node["Labels"].get(SITE_LABEL) for node in ray.nodes() if node["Alive"]} - {None}
        missing = [site.name for site in self._spec.file.sites if site.name not in labels]
        if labels and missing:
            raise UnavailableError(
                f"no node of the Ray cluster has the label {SITE_LABEL}={missing[0]}; add one, or leave the site out"
            )
        if not labels:
            self.done.remarks.append(f"no node of the Ray cluster has the label {SITE_LABEL}: sites run on any node")
        return bool(labels)

    def _at_home(self, ray: Any, plan: GridPlan) -> GridPlan:
        """Place the meta-scheduler where its journal is, even after Ray has been restarted completely.

        This is a node with the grid's label, else this machine. A journal with a URL is reachable from any node.
        """
        labels = {GRID_LABEL: self.done.state.name}
        if any(labels.items() <= node["Labels"].items() for node in ray.nodes() if node["Alive"]):
            return msgspec.structs.replace(plan, grid_labels=labels)
        if "://" in plan.journal:
            return plan
        return msgspec.structs.replace(plan, grid_host=own_host(ray))

    def _plan(self, labelled: bool) -> GridPlan:
        plan = _plan_of(self._spec, kept_secret(self._folder, PROBE_SECRET).encode())
        own = {"labelled": labelled, "grid_id": self.done.state.marker, "logs": str(self._folder / LOGS)}
        return msgspec.structs.replace(plan, **own)

    def _make_actors(self, plan: GridPlan, gateway: Spot) -> RunningGrid:
        """Create the actors that are not running; the gateway finds the other actors itself."""
        grid = make_grid(plan)
        if GATEWAY_ACTOR not in grid.actors:
            self._add_gateway(grid, gateway)
        self.done.started += sorted(grid.created)
        return grid

    def _add_gateway(self, grid: RunningGrid, spot: Spot) -> None:
        state, plan, folder = self.done.state, self._spec.read.gateway, self._folder
        settings = settings_of(plan, state, folder)
        if settings.tokens is not None:
            with contextlib.closing(TokenStore(settings.tokens)) as store:
                make_token(store, folder / TOKEN)
        self._change(url=url_of(settings), cert=plan.cert or "", plain_http=settings.plain_http)
        grid.add(GatewayActor, GATEWAY_ACTOR, spot, settings, ClusterDoor(), mark=str(folder / GATEWAY_MARK))

    def _await_actors(self, grid: RunningGrid) -> None:
        what, total, began = (
            "Starting the sites and the meta-scheduler",
            len(self.done.state.sites) + 2,
            time.monotonic(),
        )
        self._report(what)

        def missing(names: list[str]) -> None:
            left = ", ".join(name.removeprefix("site:") for name in names)
            why = "; the first start on a machine compiles code, which takes a minute or two"
            waited = span_text(1000 * round(time.monotonic() - began))
            after = f"{total - len(names)} of {total} are ready after {waited}"
            self._report(f"{what}: {after}, still {left}{why}")

        try:
            grid.wait(report=missing)
        except InputError as error:
            raise _not_its_journal(self._spec, error) from error
        self._lap("actors")

    def _await_gateway(self) -> None:
        self._report("Waiting for the gateway")
        wait_until_ready(self.done.state.url)
        self._lap("gateway")

    def _started(self, process: LocalProcess) -> None:
        """Record a process immediately, so that a later command finds the process."""
        others = tuple(other for other in self.done.state.processes if other.name != process.name)
        self._change(processes=(*others, process))
        self.done.started.append(process.name)

    def _change(self, **changes: Any) -> None:
        self.done.state = msgspec.structs.replace(self.done.state, **changes)
        write_state(self.done.state)

    def _lap(self, phase: str) -> None:
        now = time.monotonic()
        self.done.seconds[phase] = round(now - self._began, 2)
        self._began = now

    def undo(self) -> None:
        """End the processes that were started; processes that were already running continue."""
        with signals_held():
            state = self.done.state
            if self._before is None:
                end_all(state, keep_jobs=self._had_jobs)
                return
            old = {(process.pid, process.start_ticks) for process in self._before.processes}
            end_processes([process for process in state.processes if (process.pid, process.start_ticks) not in old])
            write_state(self._before)


def kept_secret(folder: Path, name: str) -> str:
    """Return a random secret, which is kept in a file in the grid's folder across starts."""
    path = folder / name
    if not path.exists():
        write_private(path, secrets.token_hex(16))
    return path.read_text(encoding="ascii")


def first_port_of(name: str) -> int:
    """Return the first rendezvous port of a grid, which stays the same as long as its journals are used.

    Examples
    --------
    >>> first_port_of("default"), first_port_of("demo")
    (20000, 28000)
    """
    number = 0 if name == DEFAULT_NAME else 1 + zlib.crc32(name.encode()) % (GRIDS - 1)
    return FIRST_PORT + number * PORTS_OF_A_GRID


_NOT_OF_RAY = (WATCHDOG,)

HEAD_LABELS = {GRID_LABEL: "here"}
"""Label of the head, on which the meta-scheduler runs."""


def _actors_of(state: LocalGridState) -> dict[str, Any]:
    """Return the handles of a grid's actors by name."""
    return find_actors(state.namespace, actor_names([(site.name, site.machines) for site in state.sites]))


def is_broken(state: LocalGridState) -> bool:
    """Whether a grid is beyond repair because its Ray's head has ended."""
    return not state.runs or (state.own_ray and state.process(HEAD) is None)


def live_folder(spec: GridSpec) -> str:
    """Return the folder of a grid's journals, jobs and output."""
    return spec.read.folder or str(state_folder(spec.name) / LIVE)


def _plan_of(spec: GridSpec, secret: bytes = b"") -> GridPlan:
    """Return the plan of a grid on a Ray without labels; `secret` authenticates probes between its sites."""
    return plan_of(
        spec.read,
        folder=live_folder(spec),
        namespace=namespace_of(spec.name, DEFAULT_NAME),
        labelled=False,
        first_port=spec.file.ray.first_port or first_port_of(spec.name),
        secret=secret,
    )


def check_start(spec: GridSpec, before: LocalGridState | None) -> list[str]:
    """Check whether a grid can start, and return the settings that would change; nothing is started or changed.

    Parameters
    ----------
    spec
        The grid to start.
    before
        The recorded state of the grid with this name, or None.

    Raises
    ------
    OptionError
        If the grid is running with another GRID.toml or on another Ray.
    InputError
        If users of the grid's jobs cannot enter its folder, or a journal on this host was written with other settings.
    """
    read = spec.read
    if before is not None and not is_broken(before):
        _check_same(before, spec)
        return []
    others = [site.name for site in read.sites if site.launcher.kind == "user"]
    if others and not read.folder:
        right = "give one that they can reach, e.g. folder = '/var/lib/gridweave'"
        folder = state_folder(spec.name)
        raise InputError(f"{read.source}: folder: users of jobs at {others[0]} cannot reach {folder}; {right}")
    try:
        return check_journals(_plan_of(spec).journals())
    except InputError as error:
        raise _not_its_journal(spec, error) from None


def _not_its_journal(spec: GridSpec, error: InputError) -> InputError:
    right = f"restore it, or drop its jobs: gridweave up --fresh --name {spec.name}"
    return InputError(f"a journal was written with another GRID.toml or another version of gridweave; {right}; {error}")


def _check_same(state: LocalGridState, spec: GridSpec) -> None:
    right = "run `gridweave down` first, or give another --name"
    if spec.read.text != state.text:
        raise OptionError(
            spec.read.source, f"the grid {state.name!r} was started from another GRID.toml, {state.file}; {right}"
        )
    if (spec.address is None) != state.own_ray or (spec.address not in (None, state.address)):
        where = "a Ray of its own" if state.own_ray else f"the Ray at {state.address}"
        raise OptionError("--address", f"the grid {state.name!r} runs on {where}; {right}")


def repair(name: str) -> None:
    """Start the missing parts of a recorded grid; raise UnavailableError if there is no record of the grid."""
    state = read_grid_state(name)
    if state is None:
        raise UnavailableError(f"no record of a grid named {name!r}")
    read = grid_of_text(state.text, state.file, state.base)
    address = None if state.own_ray else state.address
    bring_up(grid_spec(read, name=name, address=address, found_kinds=state.found_kinds), lambda what: None)


# -- stop and reset ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class StopReport:
    """The result of `take_down`."""

    ended: list[str] = field(default_factory=list)  # processes that were alive and have been ended
    jobs: int = 0  # parts of jobs that were running on this machine; they continue if jobs are kept
    remarks: list[str] = field(default_factory=list)


def take_down(name: str, *, keep_jobs: bool, report: Callable[[str], None]) -> StopReport | None:
    """End everything that `bring_up` has started, but not a Ray that it joined; return None if nothing is running.

    The next `bring_up` finds the processes of kept jobs again.
    """
    # If there never was such a grid, create no folder for it.
    before = read_grid_state(name)
    if before is None:
        return None
    watchdog = [process.name for process in before.watchdog]
    end_watchdog(before)
    with working_on(name, TERM_S):
        state = read_grid_state(name)
        if state is None:
            return None
        report("Ending the grid")
        done = end_all(state, keep_jobs=keep_jobs)
        done.ended += watchdog
        return done if done.ended or done.jobs or done.remarks else None


def end_all(state: LocalGridState, *, keep_jobs: bool) -> StopReport:
    """End a grid's processes, found by record and marker, except its watchdog and, with `keep_jobs`, its jobs."""
    folder = Path(state.folder)
    alive = [process for process in state.alive if process.name != WATCHDOG]
    done = StopReport(ended=[process.name for process in alive])
    if state.own_ray:
        end_processes(alive)
        end_marked(
            state.marker,
            within=[local_process.pid for local_process in state.processes if local_process.name != WATCHDOG],
        )
        done.jobs = count_running(folder)
        if not keep_jobs:
            end_jobs(folder, REASON)
            end_marked(state.marker)
        remove_temp(state.temp)
    elif state.runs:
        _end_actors(state, keep_jobs, done)
    forget_processes(state)
    return done


def _end_actors(state: LocalGridState, keep_jobs: bool, done: StopReport) -> None:
    try:
        probe(state.address)
        with connected(state.address):
            actors = _actors_of(state)
            stop_actors(actors, end_jobs=not keep_jobs)
            done.ended += list(actors)
    except UnavailableError as error:
        done.remarks.append(
            f"{error}; the actors of the grid have ended with that Ray, or will be found by the next up"
        )
        with contextlib.suppress(OSError):
            done.jobs = count_running(Path(state.folder))


def begin_anew(name: str) -> None:
    """Delete the journals, jobs, output and recorded GRID.toml of a stopped grid.

    Raise UnavailableError if the grid is running, or if something cannot be deleted.
    """
    with working_on(name) as own:
        state = read_grid_state(name)
        if state is None:
            return
        if state.runs:
            raise UnavailableError(f"the grid {name!r} runs; run `gridweave down` first")
        end_all(state, keep_jobs=False)
        forget_jobs(Path(state.folder))
        (own / STATE).unlink(missing_ok=True)


def main() -> int:
    """Repair the grid that the first argument names."""
    try:
        repair(sys.argv[1])
    except GridweaveError as error:
        print(" ".join(str(error).split()), flush=True)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
