"""Asking slurmrestd: over TLS, with tokens that end, what is told when something is wrong; and asking a real one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pwd
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.grid.service.cluster import SitePlan, batch_notes
from gridweave.site.resources.chunks import Chunk
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.system import AllocationRequest, BatchPlan, BatchView
from support.machine import PATIENCE_S, make_certificate, unused_port
from support.slurm import SlurmCluster, running_cluster, running_slurmrestd, with_tokens

OWN = pwd.getpwuid(os.geteuid()).pw_name


def jwt(lifespan_s: float = 3600.0) -> str:
    """Return a token of this account that nobody has signed."""
    claims = json.dumps({"exp": time.time() + lifespan_s, "sun": OWN}).encode()
    return "e30." + base64.urlsafe_b64encode(claims).decode().rstrip("=") + ".c2ln"


class FakeRestd:
    """A slurmrestd of one version of the interface, with a cluster of one idle node."""

    def __init__(self, version: str = "v0.0.42") -> None:
        self.version = version
        self.answers: dict[str, Any] = {
            "jobs": {"jobs": []},
            "nodes": {"nodes": [{"state": ["IDLE"], "partitions": ["main"]}]},
            "partition/main": {"partitions": [{"name": "main"}], "meta": {"slurm": {"release": "24.11.5"}}},
        }
        self.tokens: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as slurmrestd does."""
        self.tokens.append(request.headers["X-SLURM-USER-TOKEN"])
        if request.path == "/openapi/v3":
            return web.json_response({"paths": {f"/slurm/{self.version}/jobs": {}, "/slurmdb/v0.0.42/x": {}}})
        found = self.answers.get(request.path.removeprefix(f"/slurm/{self.version}/"), 404)
        if isinstance(found, int):
            return web.Response(status=found, text="Unable find requested URL.")
        return web.json_response(found, status=500 if "errors" in found else 200)


@contextlib.asynccontextmanager
async def listening(restd: FakeRestd, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yield where a slurmrestd listens on this machine."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", restd.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", unused_port(), ssl_context=tls)
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Return a folder with a token of this account."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    path = folder / f"{OWN}.jwt"
    path.touch(0o600)
    path.write_text(jwt())
    return folder


def over(where: str, **settings: object) -> Slurm:
    """Return the plug for a cluster that is asked over slurmrestd."""
    values = {"partition": "main", "access": "rest", "rest": where} | settings
    return Slurm(SlurmSettings(**values))  # type: ignore[arg-type]


async def problem(slurm: Slurm) -> str:
    """Return what is wrong at the start, in one line."""
    with pytest.raises(GridweaveError) as found:
        await slurm.check()
    assert "\n" not in str(found.value)
    return str(found.value)


def certified(folder: Path, name: str = "head") -> tuple[ssl.SSLContext, str]:
    """Return what a server has of a certificate that is signed by itself, and the file of it."""
    cert, key = make_certificate(folder, name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    return tls, cert


@pytest.mark.asyncio
async def test_tls(tokens: Path, tmp_path: Path) -> None:
    """Only with a certificate that is trusted is anything sent; what is wrong with one is told, and what would help."""
    tls, cert = certified(tmp_path)
    _, other = certified(tmp_path, "other")
    restd = FakeRestd()
    async with listening(restd, tls) as where:
        said = f"slurmrestd at {where} does not answer: its certificate is not trusted: self-signed certificate; name"
        for ca in ("", other):
            assert (await problem(over(where, tokens=str(tokens), ca=ca))).startswith(said)
        assert restd.tokens == []
        slurm = over(where, tokens=str(tokens), ca=cert)
        assert await slurm.check() == ()
        assert (await slurm.view("gw-")) == BatchView(nodes=1, idle=1)
        by_name = where.replace("127.0.0.1", "localhost")
        said = await problem(over(by_name, tokens=str(tokens), ca=cert))
        assert "its certificate is not trusted: Hostname mismatch" in said
        assert "(ca)" not in said
        assert (
            await problem(over(where, tokens="/t", ca="/nowhere.pem")) == "ca: /nowhere.pem: No such file or directory"
        )
        path = f"{tokens}/{OWN}.jwt"
        assert f"ca: {path}: contains no PEM certificate" == await problem(over(where, tokens="/t", ca=path))
    async with listening(restd) as where:
        said = await problem(over(where.replace("http:", "https:"), tokens=str(tokens), ca=cert))
        assert "does not answer: TLS fails (" in said


@pytest.mark.asyncio
async def test_what_does_not_answer(tokens: Path) -> None:
    """One line says which it is: no host of that name, nobody there, another interface, no tokens, a token refused."""
    kept = {"tokens": str(tokens)}
    said = await problem(over("https://nobody.invalid:6820", **kept))
    assert said.startswith("slurmrestd at https://nobody.invalid:6820 does not answer: ")
    assert "nobody.invalid" not in said.partition("answer: ")[2]
    said = await problem(over(f"http://127.0.0.1:{unused_port()}", **kept))
    assert said.endswith(" does not answer: Connection refused")
    async with listening(FakeRestd("v0.0.36")) as where:
        assert " offers interface versions v0.0.36; expected one of v0.0.37, v0.0.38," in await problem(
            over(where, **kept)
        )
    restd = FakeRestd()
    async with listening(restd) as where:
        good = restd.answers["partition/main"]
        for answer, words in {
            401: "accepts no tokens; start it with -a rest_auth/jwt",
            502: "answers with status 502: 'Unable find",
            1007: f"rejects the token of {OWN}: Protocol authentication error; create a token with scontrol token;",
            -1: f"rejects the token of {OWN}, or slurmctld is down: Protocol authentication error; create",
            2000: "partition 'main' does not exist on this cluster",
            1: "cannot answer /partition/main: Protocol authentication error",
        }.items():
            errors = [{"error": "Protocol authentication error", "error_number": answer}]
            restd.answers["partition/main"] = answer if answer in (401, 502) else {"errors": errors}
            assert words in await problem(over(where, **kept))
        restd.answers["partition/main"] = good | {"meta": {"Slurm": {"release": "20.11.9"}}}
        assert await problem(over(where, **kept)) == (
            "this Slurm is 20.11; expected at least 22.05, the oldest tested version"
        )


@pytest.mark.asyncio
async def test_a_slurmrestd_of_another_version_comes(tokens: Path) -> None:
    """After an upgrade the next look finds the version that there is now."""
    restd = FakeRestd("v0.0.40")
    async with listening(restd) as where:
        slurm = over(where, tokens=str(tokens))
        await slurm.view("gw-")
        restd.version = "v0.0.44"
        with pytest.raises(UnavailableError, match=r"no longer offers interface version v0\.0\.40$"):
            await slurm.view("gw-")
        assert (await slurm.view("gw-")).nodes == 1


@pytest.mark.asyncio
async def test_tokens_of_a_command_are_used_again(tmp_path: Path) -> None:
    """One is made for all questions until half its time is over, and at once if it is not taken."""
    count = tmp_path / "count"
    script = tmp_path / "token"
    script.write_text(f"#!/bin/sh\necho >> {count}\nprintf '%s' \"$(cat {tmp_path}/jwt)\"\n")
    script.chmod(0o755)
    (tmp_path / "jwt").write_text(jwt())
    restd = FakeRestd()
    made = lambda: len(count.read_text())  # noqa: E731
    async with listening(restd) as where:
        slurm = over(where, token_command=(str(script), "{account}"))
        await slurm.view("gw-")
        await slurm.view("gw-")
        assert made() == 1
        nodes, restd.answers["nodes"] = restd.answers["nodes"], {"errors": [{"error": "no", "error_number": 1007}]}
        with pytest.raises(UnavailableError):
            await slurm.view("gw-")
        restd.answers["nodes"] = nodes
        await slurm.view("gw-")
        assert made() == 2
        (tmp_path / "jwt").write_text(jwt(-1))
        with pytest.raises(InputError, match=f"the token of {OWN} expired at "):
            await over(where, token_command=(str(script),)).view("gw-")


@pytest.mark.asyncio
async def test_jobs_that_are_not_shown(tokens: Path) -> None:
    """Nodes that are taken, and nobody is seen who has them: the site starts, and says what that means."""
    restd = FakeRestd()
    restd.answers["nodes"]["nodes"].append({"state": ["ALLOCATED"], "partitions": ["main"]})
    async with listening(restd) as where:
        slurm = over(where, tokens=str(tokens))
        (note,) = await slurm.check()
        assert note.startswith(
            f"apparently PrivateData=jobs in slurm.conf hides the jobs of other users from {OWN}: its"
        )
        plan = SitePlan(name="far", nodes=1, batch=BatchPlan(settings=slurm.settings, folder=str(tokens)))
        assert await asyncio.to_thread(batch_notes, plan) == (f"site far: {note}",)
        restd.answers["jobs"] = {"jobs": [{"job_id": 1, "job_state": ["RUNNING"], "node_count": 1}]}
        assert await over(where, tokens=str(tokens)).check() == ()


@pytest.mark.asyncio
async def test_a_job_that_is_taken_and_has_to_wait(tokens: Path) -> None:
    """Slurm gives its number, and with it an error that says why it waits; without a number that refuses the job."""
    restd = FakeRestd()
    error = {"error": "Required node not available (down, drained or reserved)", "error_number": 2015}
    async with listening(restd) as where:
        slurm = over(where, tokens=str(tokens))
        restd.answers["job/submit"] = {"job_id": 71, "errors": [error]}
        assert await slurm.submit(asked("gw-1", 1)) == "71"
        restd.answers["job/submit"] = {"errors": [error]}
        with pytest.raises(InputError, match=r"^Slurm rejects the job: Required node not available"):
            await slurm.submit(asked("gw-1", 1))


@pytest.mark.parametrize("runs_as", ["", OWN])
@pytest.mark.asyncio
async def test_a_token_that_is_made_anew(tokens: Path, runs_as: str) -> None:
    """A job is not refused while there is none, or a part of it alone: it waits, whoever it belongs to."""
    restd = FakeRestd()
    restd.answers["job/submit"] = {"job_id": 71}
    request = msgspec.structs.replace(asked("gw-1", 1), runs_as=runs_as)
    path = tokens / f"{OWN}.jwt"
    good = path.read_text()
    async with listening(restd) as where:
        slurm = over(where, tokens=str(tokens), submit="rest" if runs_as else "self")
        for bad in ("", good[:20], jwt(-1)):
            path.write_text(bad)
            with pytest.raises(UnavailableError, match=f"^the token of {OWN} "):
                await slurm.submit(request)
        path.write_text(good)
        assert await slurm.submit(request) == "71"


@pytest.mark.asyncio
async def test_a_command_for_tokens_that_is_not_there(tmp_path: Path) -> None:
    """The site does not start, and says which command that is; nor with one that cannot be run."""
    script = tmp_path / "token"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)
    async with listening(FakeRestd()) as where:
        for command, said in (
            ("no-such-command", "no-such-command is missing or not executable; expected its full path"),
            (str(script), f"{script} cannot be run: No such file or directory"),
        ):
            with pytest.raises(InputError, match=f"^token_command: {said}$"):
                await over(where, token_command=(command, "{account}")).check()


class Ground:
    """A real cluster with a slurmrestd, and before that what has TLS."""

    def __init__(self, cluster: SlurmCluster, socket: Path) -> None:
        self.cluster, self.socket = cluster, socket
        self.folder = cluster.folder.parent
        token = self.folder / f"{OWN}.jwt"
        token.touch(0o600)
        token.write_text(cluster.run("scontrol", "token", f"username={OWN}"))

    @contextlib.asynccontextmanager
    async def proxied(self) -> AsyncIterator[dict[str, object]]:
        """Yield how slurmrestd is asked over TLS."""
        tls, cert = certified(self.folder)
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", unused_port(), ssl=tls)
        where = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield {"rest": where, "ca": cert, "tokens": str(self.folder), "bin": str(self.folder)}

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(str(self.socket))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
                target.close()

        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """Return a cluster of four nodes, which slurmrestd can read the settings of: it does not run as root."""
    folder = Path(tempfile.mkdtemp(prefix="gridweave-slurm-", dir="/run" if os.geteuid() == 0 else None))
    folder.chmod(0o755)
    try:
        with (
            running_cluster(folder / "cluster", "rest", 4, "60", with_tokens(folder)) as cluster,
            running_slurmrestd(cluster, "nobody") as socket,
        ):
            yield Ground(cluster, socket)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def asked(name: str, nodes: int, script: str = "sleep 600") -> AllocationRequest:
    """Return a request for nodes for half an hour."""
    return AllocationRequest(
        name=name, nodes=nodes, length_ms=1_800_000, script=f"#!/bin/sh\n{script}\n", folder="/tmp"
    )


async def until(slurm: Slurm, states: dict[str, str]) -> BatchView:
    """Return what is seen as soon as the allocations are in these states."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            view = await slurm.view("gw-")
            if {each.name: each.state for each in view.allocations} == states:
                return view
            await asyncio.sleep(0.1)


async def alike(slurm: Slurm, other: Slurm) -> BatchView:
    """Return what both see, looked at while nothing changes."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            before, view, after = await other.view("gw-"), await slurm.view("gw-"), await other.view("gw-")
            if before == after:
                assert view == before
                return view


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_real_cluster_over_tls(ground: Ground) -> None:
    """Submitted, seen, and cancelled by the site's own token, without a command; the commands see just the same."""
    ground.cluster.run("scontrol", "update", f"nodename={ground.cluster.name}4", "state=drain", "reason=x")
    by_commands = Slurm(SlurmSettings(partition="main", conf=str(ground.cluster.conf)))
    async with ground.proxied() as how:
        slurm = Slurm(SlurmSettings(partition="main", access="rest", **how))  # type: ignore[arg-type]
        assert await slurm.check() == await by_commands.check() == ()
        await slurm.submit(asked("gw-1", 2))
        await until(slurm, {"gw-1": "running"})
        await slurm.submit(asked("gw-3", 1, "exit 3"))
        await slurm.submit(asked("gw-2", 3))
        ground.cluster.run("sbatch", "--hold", "--array=1-3", "--output=/dev/null", "--wrap", "true")
        await until(slurm, {"gw-1": "running", "gw-2": "waiting", "gw-3": "ended"})
        async with asyncio.timeout(PATIENCE_S):
            while (await slurm.view("gw-")).allocations[1].start_ms is None:
                await asyncio.sleep(0.1)
        view = await alike(slurm, by_commands)
        assert (view.nodes, view.idle, view.longest_ms, len(view.busy)) == (3, 1, 3_600_000, 2)
        assert "(Resources)" in (await slurm.view("gw-2")).allocations[0].reason
        await slurm.cancel(view.allocations)
        ended = dict.fromkeys(("gw-1", "gw-2", "gw-3"), "ended")
        await until(slurm, ended)
        await alike(slurm, by_commands)
        if ground.cluster.version() == (24, 11):  # it refuses what the others have wait
            with pytest.raises(InputError, match=r"^Slurm rejects the job: "):
                await slurm.submit(asked("gw-4", 99))
            return
        await slurm.submit(asked("gw-4", 99))
        view = await until(slurm, ended | {"gw-4": "waiting"})
        async with asyncio.timeout(PATIENCE_S):
            while "(PartitionConfig)" not in (await slurm.view("gw-4")).allocations[0].reason:
                await asyncio.sleep(0.1)
        await slurm.cancel(view.allocations)
        await until(slurm, ended | {"gw-4": "ended"})


@pytest.mark.slow
@pytest.mark.asyncio
async def test_chunks_on_a_real_cluster(ground: Ground) -> None:
    """Submitted over slurmrestd and by commands, the same chunks are the same job; both see the same free nodes."""
    with contextlib.suppress(subprocess.CalledProcessError):  # it is not drained if this test runs alone
        ground.cluster.run("scontrol", "update", f"nodename={ground.cluster.name}4", "state=resume")
    by_commands = Slurm(SlurmSettings(partition="main", conf=str(ground.cluster.conf), chunks=True))
    async with ground.proxied() as how:
        slurm = Slurm(SlurmSettings(partition="main", access="rest", chunks=True, **how))  # type: ignore[arg-type]
        shown = []
        chunks = [(Chunk(), 3, 4), (Chunk(), 3, 2), (Chunk(per_node=2), 4, 4), (Chunk(exclusive=True), 1, 1)]
        for number, (chunk, width, nodes) in enumerate(chunks):
            for how_asked, through in (("rest", slurm), ("commands", by_commands)):
                request = msgspec.structs.replace(asked(f"gw-{number}-{how_asked}", nodes), chunk=chunk, width=width)
                job = await through.submit(request)
                line = ("squeue", "-h", "-t", "R", "-j", job, "-o", "%D %C %h")
                ground.cluster.wait(lambda line=line: bool(ground.cluster.run(*line)), "a running job")  # type: ignore[misc]
                shown.append(ground.cluster.run(*line).strip())
                view = await alike(slurm, by_commands)
                free = sum(group.free[0] * group.count for group in view.groups)
                assert free == 8 - int(shown[-1].split()[1])
                await slurm.cancel([each for each in view.allocations if each.state == "running"])
                # Jobs of other tests on this cluster may still be waiting.
                ground.cluster.wait(lambda: not ground.cluster.run("squeue", "-h", "-t", "R,CG"), "no running job")
        assert shown[::2] == shown[1::2]
        assert [line.split()[:2] for line in shown[::2]] == [["2", "3"], ["2", "3"], ["2", "4"], ["1", "2"]]
