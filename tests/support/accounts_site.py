"""A site on a real Slurm cluster whose jobs run as their users, in a process that a test can start as any user.

Use it to show that users cannot reach each other's jobs or the site's secrets (tests/slurm/test_own_accounts.py).
``python tests/support/accounts_site.py PLAN``, with src and tests on PYTHONPATH, reads a plan as JSON, runs the jobs of
two users, and prints the results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

import msgspec

from gridweave.site.job import JobRequest, Program
from gridweave.site.launch import MachineRules
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.service.site import check_plan
from gridweave.slurm.system import BatchPlan
from support.machine import PATIENCE_S
from support.slurm import BatchSite, SlurmCluster

USERS = {"anna": "gw-test-anna", "bert": "gw-test-bert"}


class Conf:
    """A cluster that another process has started; replaces `SlurmCluster`."""

    def __init__(self, conf: str) -> None:
        self.conf = conf

    def run(self, *_: str) -> str:
        """Return an empty queue, which only error messages use."""
        return ""


class AccountsSite(BatchSite):
    """A site whose jobs run as their users."""

    def __init__(self, folder: Path, plan: BatchPlan) -> None:
        super().__init__(cast("SlurmCluster", Conf(plan.settings.conf)), folder, name="own")
        self.plan = plan
        self.slurm = Slurm(plan.settings)  # type: ignore[assignment]

    async def hand_in(self, user: str, *argv: str, nodes: int = 1) -> int:
        """Submit a job of a user; return its number, or -1 if the site declines it."""
        request = JobRequest(program=Program(argv=argv), nodes=nodes, limit_ms=1_200_000, user=user)
        (answer,) = await self.driver.submit([(f"{user} {argv}"[:100], request)])
        return getattr(answer, "job_id", -1)

    async def left(self) -> list[str]:
        """Return the users of the jobs in Slurm that have the site's names and have not ended."""
        view = await self.slurm.view(self.shared.prefix)
        return [each.runs_as for each in view.allocations if each.state != "ended"]


def plan_of(slurm: dict[str, object], folder: str, python: str) -> BatchPlan:
    """Return the plan of a site on a cluster."""
    users = {user: {"runs_as": name} for user, name in USERS.items()}
    settings = msgspec.convert({"partition": "main", **slurm}, SlurmSettings)
    given = {"settings": settings, "folder": folder, "host": "127.0.0.1", "python": python}
    plan = msgspec.convert(given | {"users": users, "poll_s": 0.3, "lease_s": 20}, BatchPlan)
    return msgspec.structs.replace(plan, rules=MachineRules(mapped=tuple(USERS)))


ATTACK = """\
echo "as $(id -un) in $(umask), sees $(squeue -h -u {name} -t R -o %i | wc -l)"
for path in {shared}/secret {shared}/owners {shared}/nodes {shared}/users {other} {other}/nodes {other}/nodes/*; do
  ls $path/ 2>/dev/null && echo GOT list $path
  cat $path 2>/dev/null && echo GOT read $path
  touch $path/x 2>/dev/null && echo GOT write $path
done
touch {shared}/x 2>/dev/null && echo GOT write
for job in $(squeue -h -u {name} -o %i); do
  scontrol write batch_script $job - 2>/dev/null | grep -q python && echo GOT script
  scancel $job 2>/dev/null && echo GOT cancelled
  scontrol -d show job $job | grep -q {key} && echo GOT key shown
done
for name in $(squeue -h -o %j); do test -e {shared}/owners/$name && echo GOT owners; done
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -q {key} && echo GOT key
cat {token} 2>/dev/null && echo GOT token
sbatch --quiet --hold --output=/dev/null --job-name=$(squeue -h -u {name} -t R -o %j) --wrap true
echo asked
"""


async def play(folder: Path, plan: BatchPlan) -> dict[str, object]:
    """Run jobs of two users who do not trust each other, and of a user who is not in the table."""
    await check_plan(plan, 1)
    site = AccountsSite(folder, plan)
    await site.start()
    told: dict[str, object] = {}
    try:
        wide = await site.over(await site.hand_in("anna", "sh", "-c", "id -un; id -gn; echo $HOME $SECRET", nodes=2))
        told["wide"] = [wide.outcome, wide.reason, *(site.output(wide, rank) for rank in range(2))]
        long = await site.hand_in("anna", "sh", "-c", "echo private; echo private > private; sleep 100000")
        await site.until(site.running(long), "a running job")
        (name,) = (each for each in site.hub._kept if site.shared.job_of(each) == long)
        key = json.loads(msgspec.json.encode(site.shared.ticket(name)))["key"]
        names = {
            "shared": plan.folder,
            "name": USERS["anna"],
            "other": site.shared.base(USERS["anna"]),
            "key": f"[{key[0]}]{key[1:]}",
        }
        script = ATTACK.format(**names, token=f"{plan.settings.tokens}/{USERS['anna']}.jwt")
        attack = await site.over(await site.hand_in("bert", "sh", "-c", script))
        told["attack"] = [attack.outcome, site.output(attack)]
        told["carl"] = await site.hand_in("carl", "true")
        await site.driver.apply_action("cancel", [long])
        told["long"] = (await site.over(long)).outcome
        told["private"] = site.output(site.record(long))
        waits = [
            await site.hand_in("anna", "sleep", "100000", nodes=4),
            await site.hand_in("bert", "sleep", "99999", nodes=4),
        ]
        await site.until(lambda: any(site.running(each)() for each in waits), "a running job")
        await site.driver.apply_action("cancel", waits)
        for each in waits:
            await site.over(each)
        async with asyncio.timeout(PATIENCE_S):
            # One job stays: the attacker's, which has the name of a job of the site but another owner.
            while len(await site.left()) > 1:
                await asyncio.sleep(0.3)
        told["left"] = await site.left()
    finally:
        await site.kill()
    return told


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    made = plan_of(given["slurm"], given["folder"], given["python"])
    print(json.dumps(asyncio.run(play(Path(given["journal"]), made))))
