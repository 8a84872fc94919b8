"""The description of the interface is that of the server: schemathesis asks it whatever the description allows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gridweave.grid.gateway.openapi import describe
from gridweave.grid.gateway.problems import KINDS, URN
from gridweave.grid.gateway.routes import ROUTES
from support.gateway import FakeBackend, a_job, make_tokens, serving
from support.machine import PATIENCE_S

# Streams have no end that a tool for requests and answers would wait for; they have tests of their own.
CONFIG = """
seed = 6
continue-on-failure = true
request-timeout = 10
[[operations]]
include-path-regex = "^/v1/events"
enabled = false
[[operations]]
# A token that nobody has is of the right type, and wrong.
include-name = "POST /v1/login"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "422", "429", "503"]
[checks.positive_data_acceptance]
# What is of the right types may be impossible all the same; 409 and 429 are limits.
expected-statuses = ["2xx", "404", "409", "422", "429", "503"]
"""


def test_every_route_is_described() -> None:
    """Each route has an operation with its parameters, all its types are there, and all of its refusals are known."""
    described = describe(ROUTES, with_tokens=True)
    schemas = described["components"]["schemas"]
    for route in ROUTES:
        operation = described["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        for kind in (route.body, route.answer):
            assert kind is None or kind.__name__ in schemas
        assert set(route.problems) <= set(KINDS)
        assert (operation["security"] == []) == (route.scope is None)
    text = msgspec.json.encode(described).decode()
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in schemas


def test_every_problem_is_in_the_documentation() -> None:
    """Each kind of refusal, each route and each setting is explained in docs/gateway.md."""
    from gridweave.grid.config.gateway import GatewaySettings

    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    for kind, (status, _) in KINDS.items():
        assert f"| `{kind}` | {status} |" in page
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in page
    for name in GatewaySettings.__struct_fields__:
        assert f"`{name}`" in page
    assert URN in page


# By itself: what lists tokens tells the id of the one that is used, and with that it would be revoked on the way.
REVOKING = "revoke_token"


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("choice", ["--exclude-operation-id", "--include-operation-id"])
async def test_schemathesis_finds_nothing(tmp_path: Path, choice: str) -> None:
    """Nothing that schemathesis asks gets an answer that the description does not allow, or an error of the gateway."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    backend = FakeBackend()
    token = make_tokens(tmp_path / "t", olga="operate")["olga"]
    unlimited = {"requests_per_s": 1e6, "burst": 1e6, "failed_logins_per_minute": 1e6}
    async with serving(backend, tokens=str(tmp_path / "t"), **unlimited) as grid:
        await grid.submit(*(a_job(user="anna", name=f"n{number}") for number in range(20)), token=token)
        for job_id in range(1, 21):
            backend.write(job_id, b"written\n")
            backend.end(job_id)
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(tmp_path / "schemathesis.toml"),
            "run",
        ]
        options = [
            "--header",
            f"Authorization: Bearer {token}",
            "--max-examples",
            "5",
            "--phases",
            "examples,coverage,fuzzing",
            "--suppress-health-check",
            "all",
            "--request-timeout",
            str(PATIENCE_S),
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            f"{grid.url}/openapi.json",
            *options,
            choice,
            REVOKING,
            "--no-color",
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 5 * PATIENCE_S)
    assert process.returncode == 0, printed.decode()[-8000:]
    # It does not ask for the description itself again.
    asked = [route.name for route in ROUTES if not route.path.startswith(("/v1/events", "/openapi.json"))]
    count = sum((name == REVOKING) == (choice == "--include-operation-id") for name in asked)
    assert f"Tested: {count}\n" in printed.decode()
