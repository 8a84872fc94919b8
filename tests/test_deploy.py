"""The files in deploy/ for Ray clusters of several hosts: what can be said of them without such a cluster."""

from __future__ import annotations

import copy
import re
import subprocess
import tomllib
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from gridweave.grid.config.reading import grid_of_text
from gridweave.site.service.calls import GRID_LABEL, SITE_LABEL
from support.machine import PATIENCE_S

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {"spec": {"type": "object", "required": ["containers"]}},
}
GROUP = {"rayStartParams": TEXTS, "labels": TEXTS, "template": TEMPLATE}
# What KubeRay's CRD (ray.io_rayclusters.yaml, v1) says of the fields that are used here; all of it has 900 kB.
RAY_CLUSTER = {
    "type": "object",
    "required": ["headGroupSpec"],
    "additionalProperties": False,
    "properties": {
        "rayVersion": {"type": "string"},
        "authOptions": {"type": "object", "properties": {"mode": {"enum": ["disabled", "token"]}}},
        "headGroupSpec": {
            "type": "object",
            "required": ["rayStartParams", "template"],
            "additionalProperties": False,
            "properties": GROUP,
        },
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"],
                "additionalProperties": False,
                "properties": GROUP
                | {"groupName": {"type": "string"}}
                | {name: {"type": "integer"} for name in ("replicas", "minReplicas", "maxReplicas")},
            },
        },
    },
}


@pytest.fixture(scope="module")
def manifest() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of the manifest for Kubernetes, by kind and name."""
    documents = list(yaml.safe_load_all((DEPLOY / "kuberay" / "gridweave.yaml").read_text()))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_the_cluster_of_the_manifest_is_one_for_kuberay(manifest: dict[tuple[str, str], dict[str, Any]]) -> None:
    """It has the fields of KubeRay's schema, and keeps the rules by which its operator refuses a cluster."""
    jsonschema = pytest.importorskip("jsonschema")
    spec = manifest["RayCluster", "gridweave"]["spec"]
    jsonschema.validate(spec, RAY_CLUSTER)
    # A token wants 2.52; labels, and resources, are said in one place alone.
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 52, 0)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert "labels" not in group["rayStartParams"]
        assert "resources" not in group


def test_the_sites_of_the_manifest_have_a_group_each(manifest: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Each site of its GRID.toml has one worker group with its label and a volume of its own, and nobody else has."""
    text = manifest["ConfigMap", "gridweave"]["data"]["grid.toml"]
    grid = grid_of_text(text, "grid.toml", "")
    groups = manifest["RayCluster", "gridweave"]["spec"]["workerGroupSpecs"]
    assert [group["labels"] for group in groups] == [{SITE_LABEL: site.name} for site in grid.file.sites]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for group in groups
        for volume in group["template"]["spec"]["volumes"]
    ]
    assert sorted({("PersistentVolumeClaim", claim) for claim in claims} - set(manifest)) == []
    assert len(set(claims)) == len(groups)
    pod = manifest["Deployment", "gridweave"]["spec"]["template"]["spec"]["containers"][0]
    assert f"--labels={GRID_LABEL}=default" in pod["args"][0]
    where = Path(tomllib.loads(text)["folder"])
    for container in (pod, *(group["template"]["spec"]["containers"][0] for group in groups)):
        mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
        assert any(where.is_relative_to(place) for place in mounted)


def test_the_pod_of_the_grid_joins_with_the_token_of_the_cluster(
    manifest: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """KubeRay calls the Service of the head, and the Secret of the token, by the cluster; probes ask the gateway."""
    name = manifest["RayCluster", "gridweave"]["metadata"]["name"]
    container = manifest["Deployment", "gridweave"]["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each for each in container["env"]}
    assert environment["HEAD"]["value"] == f"{name}-head-svc:6379"
    assert environment["RAY_AUTH_MODE"]["value"] == "token"
    assert environment["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}
    port = tomllib.loads(manifest["ConfigMap", "gridweave"]["data"]["grid.toml"])["gateway"]["port"]
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert [each["port"] for each in manifest["Service", "gridweave"]["spec"]["ports"]] == [port]
    selector = manifest["Service", "gridweave"]["spec"]["selector"]
    assert selector == manifest["Deployment", "gridweave"]["spec"]["template"]["metadata"]["labels"]
    done = subprocess.run(["bash", "-n", "-c", container["args"][0]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_file_for_ray_up_is_one() -> None:
    """Ray's own schema takes it, as `ray up` completes it."""
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((DEPLOY / "ray-up" / "hosts.yaml").read_text())
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])


@pytest.mark.skipif(which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_units_are_ones_for_systemd() -> None:
    """Systemd finds nothing wrong with them, but that their programs are not installed here."""
    units = sorted(map(str, (DEPLOY / "systemd").glob("gridweave-*")))
    assert len(units) == 4
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if not re.search(r"Command /opt/gridweave/\S+ is not exec", line)]
    assert told == []
