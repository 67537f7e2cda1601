"""Each site's job.sh and sbatch arguments, side by side with what the script in the site's own guide asks for.

The tables are golden/beside_<site>.txt. After an intended change write them again, and read them:
PYTHONPATH=workflow/scripts:tests python tests/unit/job_script/test_sites_beside_guides.py
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ddp_ladder.job_script.script import job_script
from ddp_ladder.node.launch import Places
from ddp_ladder.plan.plan import ScaleJob, make_plan
from ddp_ladder.settings.loading import load_settings
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.resources import slurm_resources
from read_job_script import BatchScript, read_job_script
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string

REPOSITORY = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[1] / "golden"
PROJECT = Path("/home/me/ladder")

Values = Mapping[str, str]


@dataclass(frozen=True)
class Guide:
    """What a guide's script says, by names that both sides can be compared under, and why ours differs."""

    scale: str
    sbatch: Values
    modules: tuple[str, ...]
    exports: Values
    srun: Values
    launch: Values  # torchrun's options; with srun as the launcher what the script is given in their place
    why: Values  # by "section name"
    interfaces: Values = field(default_factory=dict)


OURS = "so that the run is reproduced as it was measured"
COMMON = {
    "sbatch account": "asked for where the site's users have to; filled in here",
    "sbatch chdir": "relative paths of the configuration hold wherever the script is submitted from",
    "sbatch job-name": "names the run",
    "sbatch no-requeue": "a second start would write over what the first one wrote",
    "sbatch output": "beside the script",
    "sbatch time": "stages.<stage>.runtime of config.yaml: minutes for a measurement, not hours for a training",
    "exports GLOO_SOCKET_IFNAME": "the same interface, should Gloo be the backend",
    "exports MASTER_ADDR": "the first node's address on the training's interface; its name may stand for another",
    "exports MASTER_PORT": "of the job's own: on a shared node the second job could not have a fixed port",
    "exports OMP_NUM_THREADS": "the process's share of the cores: torchrun would take 1",
    "exports PET_SIGNALS_TO_HANDLE": "torchrun passes the scheduler's warnings on",
    "exports PYTHONUNBUFFERED": "the log can be followed; `python -u` does so for one process only",
    "exports NCCL_SOCKET_IFNAME": "network.interface",
    "exports NCCL_DEBUG": "NCCL's warnings say why it fails",
    "srun nodes": OURS,
    "srun ntasks": OURS,
    "srun ntasks-per-node": OURS,
    "srun cpus-per-task": "srun has none from sbatch since Slurm 22.05: the processes would share one core",
    "srun distribution": "ranks are numbered node by node whatever the site's default",
    "srun kill-on-bad-exit": "without the process that failed the others would wait",
    "srun mpi": "torch brings its own communication",
    "launch master-addr": "see MASTER_ADDR",
    "launch master-port": "see MASTER_PORT",
    "launch max-restarts": "a restart would be measured as part of the run",
    "launch node-rank": "ranks follow the job's nodes",
    "launch rdzv-backend": "c10d numbers the nodes by the text of their addresses, .10 before .9",
    "launch rdzv-conf": "a node that does not come is noticed sooner than after torchrun's 600 s",
    "launch rdzv-endpoint": "master-addr and master-port in its place",
    "launch rdzv-id": "no other job's processes can join",
}

GUIDES = {
    "vega": Guide(
        scale="2x4",
        sbatch={
            "job-name": "2_node_training", "partition": "gpu", "gres": "gpu:4", "nodes": "2", "ntasks-per-node": "1",
            "cpus-per-task": "32", "time": "24:00:00", "output": "%x_%j.log",
        },
        modules=("Python/3.10", "CUDA/11.7", "NCCL"),
        exports={
            "MASTER_ADDR": "first host name", "MASTER_PORT": "29500", "GPUS_PER_NODE": "4", "NNODES": "$SLURM_NNODES",
            "NCCL_NET": "IB", "NCCL_IB_ENABLE": "1", "NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "INFO",
            "NCCL_NET_GDR_LEVEL": "5",
        },
        srun={},
        launch={
            "nproc-per-node": "4", "nnodes": "2", "node-rank": "$SLURM_NODEID", "rdzv-backend": "c10d",
            "rdzv-endpoint": "$MASTER_ADDR:$MASTER_PORT",
        },
        why={
            "modules": "a torch that brings CUDA and NCCL needs none; vega.yaml says how to take them",
            "exports GPUS_PER_NODE": "only for the guide's own use, in --nproc_per_node",
            "exports NNODES": "the guide's own script does not use it",
            "exports NCCL_IB_ENABLE": "no NCCL release has such a variable",
            "exports NCCL_DEBUG": "the guide's section 3.2 advises WARN: INFO fills the log",
            "launch node-rank": "asked of each node; in the batch script $SLURM_NODEID is 0 for every node",
        },
    ),
    "leonardo": Guide(
        scale="2x4",
        sbatch={
            "job-name": "mnist-ddp", "partition": "gpu", "time": "10:00", "nodes": "2",
            "ntasks-per-node": "1", "gres": "gpu:4", "cpus-per-task": "18",
        },
        modules=("profile/deeplrn", "cineca-ai/4.3.0"),
        exports={"OMP_NUM_THREADS": "18"},
        srun={},
        launch={
            "nproc-per-node": "4", "nnodes": "2", "rdzv-id": "1234", "rdzv-backend": "c10d",
            "rdzv-endpoint": "$(hostname --ip-address):29500",
        },
        why={
            "sbatch partition": "the exercises, which are for Leonardo, take boost_usr_prod",
            "sbatch cpus-per-task": "all 32 cores of the node, 8 per GPU as in the exercises",
            "exports OMP_NUM_THREADS": "8 cores per process; the slide's 18 for each of 4 processes are 72 on 18 cores",
        },
    ),
    "olivia": Guide(
        scale="2x4",
        sbatch={
            "account": "<project_number>", "job-name": "resnet_multinode_mod", "output": "multinode_module_%j.out",
            "error": "multinode_module_%j.err", "time": "01:00:00", "partition": "accel", "nodes": "2",
            "ntasks-per-node": "1", "gres": "gpu:4", "cpus-per-task": "72", "mem": "440G",
        },
        modules=("NRIS/GPU", "NCCL/2.26.6-GCCcore-14.2.0-CUDA-12.8.0", "PyTorch/2.8.0"),
        exports={"PYTORCH_OVERLAY_MODE": "ro", "RDZV_ENDPOINT": "first host name:29500"},
        srun={},
        launch={
            "nnodes": "2", "nproc-per-node": "4", "rdzv-id": "$SLURM_JOB_ID", "rdzv-backend": "c10d",
            "rdzv-endpoint": "$RDZV_ENDPOINT",
        },
        why={
            "sbatch error": "one log: what went wrong stands where it happened",
            "exports RDZV_ENDPOINT": "only for the guide's own use, in --rdzv_endpoint",
            **{
                f"exports {name}": "from Olivia's NCCL page: without it all-reduce may return wrong values"
                for name in (
                    "HSA_FORCE_FINE_GRAIN_PCIE FI_MR_CACHE_MONITOR FI_CXI_DISABLE_HOST_REGISTER FI_CXI_DEFAULT_CQ_SIZE "
                    "FI_CXI_RDZV_PROTO FI_CXI_RDZV_EAGER_SIZE FI_CXI_RDZV_THRESHOLD FI_CXI_RDZV_GET_MIN "
                    "FI_CXI_DEFAULT_TX_SIZE FI_CXI_RX_MATCH_MODE NCCL_CROSS_NIC NCCL_NET_GDR_LEVEL NCCL_SOCKET_IFNAME"
                ).split()
            },
        },
    ),
    "ethernet6": Guide(
        scale="6x1",
        sbatch={
            "nodes": "6", "ntasks-per-node": "1", "gres": "gpu:1",
            "nodelist": "all six", "output": "nccl_%j.out", "error": "nccl_%j.err",
        },
        modules=(),
        exports={
            "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO", "MASTER_ADDR": "192.168.20.15", "MASTER_PORT": "29500",
            "RANK": "$SLURM_PROCID", "WORLD_SIZE": "6", "LOCAL_RANK": "$SLURM_LOCALID",
            "NCCL_SOCKET_IFNAME": "by rank",
        },
        interfaces={
            "master-node": "ens1f1", "node01": "ens1f1", "node02": "ens1f0np0", "node03": "ens1f1", "node04": "ens1f0",
            "node05": "ens1f0np0",
        },
        srun={},
        launch={},
        why={
            "sbatch account": "the guide has none; filled in here",
            "sbatch cpus-per-task": "sbatch's default, said aloud",
            "sbatch nodelist": "a smaller scale has fewer nodes; stages.stage3.slurm.nodelist is for 6x1 alone",
            "sbatch error": "one log: what went wrong stands where it happened",
            "exports NCCL_SOCKET_IFNAME": "by node: rank 3 need not be on node03",
            "exports LOCAL_WORLD_SIZE": "what torchrun would tell the script",
            "exports GROUP_RANK": "what torchrun would tell the script",
        },
    ),
}  # fmt: skip


def job_of(site: str, scale: str, slurm: Mapping[str, Any] | None = None) -> ScaleJob:
    """A site's job with the account filled in; ``slurm`` goes over the site's own values."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data = yaml.safe_load((REPOSITORY / "config/sites" / f"{site}.yaml").read_text())
        data["slurm"] = {**data["slurm"], "account": "p200", **(slurm or {})}
        (directory / "cluster.yaml").write_text(yaml.safe_dump(data))
        (directory / "train.py").touch()
        workload = {"script": str(directory / "train.py"), "batch_per_gpu": 64}
        stages: dict[str, Any] = {"stage1": {}, "stage3": {"scales": ["2x1" if scale == "1x1" else scale]}}
        config = {"workload": workload, "repeats": 1, "stages": stages}
        if data["node"]["gpus"] > 1:
            stages["stage2"] = {"scales": [f"1x{data['node']['gpus']}"]}
        (directory / "config.yaml").write_text(json.dumps(config))
        plan = make_plan(load_settings(directory / "config.yaml", directory / "cluster.yaml"))
    return plan.job(Scale.parse(scale))


def script_of(job: ScaleJob, site: str) -> BatchScript:
    run = job.runs[0]
    return read_job_script(job_script(job, run, Places(PROJECT, PROJECT / "results/runs" / run.name)))


# What Snakemake's executor makes of a job


SHORT = {"-A": "account", "-p": "partition", "-t": "time", "-C": "constraint", "-D": "chdir", "--mem": "mem"}
OF_THE_EXECUTOR = ("parsable", "job-name", "output", "export", "comment")


class Resources(dict[str, Any]):
    """Resources as Snakemake's jobs have them."""

    __getattr__ = dict.__getitem__


def executor_asks(job: ScaleJob) -> dict[str, str]:
    """The executor's sbatch command line for a stand-in job, with the settings of profiles/slurm, option by option."""
    profile = yaml.safe_load((REPOSITORY / "profiles/slurm/config.yaml").read_text())
    resources = Resources({name: value for name, value in slurm_resources(job).items() if value is not None})
    account, partition = resources.get("slurm_account"), resources.get("slurm_partition")
    params = {
        "run_uuid": "uuid",
        "slurm_logfile": "log",
        "comment_str": "rule",
        "account": f" -A {shlex.quote(account)}" if account else "",
        "partition": f" -p {shlex.quote(partition)}" if partition else "",
        "workdir": str(PROJECT),
    }
    settings = SimpleNamespace(
        requeue=False, no_requeue=profile["slurm-no-requeue"], qos=None, reservation=profile.get("slurm-reservation")
    )
    stand_in = SimpleNamespace(resources=resources, threads=1)
    call = get_submit_command(stand_in, params, settings) + set_gres_string(stand_in)
    return parsed_command(shlex.split(call)[1:])


def parsed_command(words: list[str]) -> dict[str, str]:
    asked: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in SHORT or word in ("--job-name", "--output", "--comment", "--clusters"):
            name, value = SHORT.get(word, word.removeprefix("--")), next(rest)
        else:
            name, _, value = word.removeprefix("--").partition("=")
        assert word.startswith("-"), word
        assert name not in asked, name
        asked[name] = value
    return {name: value for name, value in asked.items() if name not in OF_THE_EXECUTOR}


def comparable(asked: Mapping[str, str]) -> dict[str, str]:
    """The same request in the same words: tasks and cores per node, memory in MB, minutes."""
    same = {name: value for name, value in asked.items() if name not in OF_THE_EXECUTOR}
    nodes = int(same["nodes"])
    tasks = int(same.pop("ntasks-per-node", 0)) or int(same.pop("ntasks", nodes)) // nodes
    same.pop("ntasks", None)
    same["cores per node"] = str(tasks * int(same.pop("cpus-per-task")))
    if "mem" in same:
        same["mem"] = str(megabytes(same["mem"]))
    return same


def megabytes(text: str) -> int:
    return int(text.rstrip("MG")) * (1024 if text.endswith("G") else 1)


EVERY_KEY = {
    "qos": "devel",
    "constraint": "a100&ib",
    "reservation": "course",
    "nodelist": "n[1-9]",
    "exclude": "n[3-4],n6",
    "extra": ["--exclusive", "--signal=TERM@60"],
}


@pytest.mark.parametrize("slurm", [{}, EVERY_KEY], ids=["as shipped", "every key"])
@pytest.mark.parametrize(("site", "scale"), [(s, x) for s, g in GUIDES.items() for x in ("1x1", "2x1", g.scale)])
def test_job_sh_asks_for_what_the_executor_asks_for_with_a_stand_in_job(
    site: str, scale: str, slurm: dict[str, Any]
) -> None:
    job = job_of(site, scale, slurm)
    executor, ours = executor_asks(job), script_of(job, site).sbatch
    assert comparable(ours) == comparable(executor)
    for key, value in slurm.items():
        if key != "extra":
            assert ours[key] == value
    assert {"exclusive", "signal"} <= ours.keys() or not slurm


# Side by side


# Name, what the guide says, what job.sh says, what the executor tells sbatch, and how the guide's and ours compare.
Row = tuple[str, str, str, str, str]


def rows_of(site: str) -> list[Row]:
    """Every line of the guide's script, and every line of ours."""
    guide, job = GUIDES[site], job_of(site, GUIDES[site].scale)
    script = script_of(job, site)
    rows = compared("sbatch", alike(guide.sbatch), alike(script.sbatch), guide.why, alike(executor_asks(job)))
    rows += compared_modules(guide, script)
    rows += compared("exports", guide.exports, exports_of(script), guide.why)
    rows += [
        (f"interface of {node}", guide.interfaces.get(node, "-"), script.interfaces.get(node, "-"), "", "=")
        for node in sorted(guide.interfaces.keys() | script.interfaces.keys())
    ]
    rows += compared("srun", guide.srun, options_of(script.srun), guide.why)
    return rows + compared("launch", guide.launch, options_of(script.launch), guide.why)


def alike(sbatch: Values) -> dict[str, str]:
    """Units and words that mean the same, made the same."""
    asked = dict(sbatch)
    if "ntasks" in asked:
        asked["ntasks-per-node"] = str(int(asked.pop("ntasks")) // int(asked["nodes"]))
    if "mem" in asked:
        asked["mem"] = f"{megabytes(asked['mem'])}M"
    return asked


def compared_modules(guide: Guide, script: BatchScript) -> list[Row]:
    theirs, ours = (" ".join(names) or "-" for names in (guide.modules, script.modules))
    return [("modules", theirs, ours, "", "=" if theirs == ours else guide.why["modules"])]


def exports_of(script: BatchScript) -> dict[str, str]:
    """With the name of the interface where the whole site has one."""
    return {
        name: value.replace("$own_interface", script.interface or "$own_interface")
        for name, value in script.exports.items()
    }


def options_of(words: tuple[str, ...]) -> dict[str, str]:
    pairs = (word.removeprefix("--").partition("=") for word in words if word.startswith("--") and word != "--")
    return {name: value for name, _, value in pairs}


def compared(section: str, theirs: Values, ours: Values, why: Values, executor: Values | None = None) -> list[Row]:
    """Names in the guide's order, then ours. Raises KeyError where a difference has no reason."""
    rows = []
    for name in dict.fromkeys((*theirs, *ours)):
        key = f"{section} {name}"
        same = theirs.get(name) == ours.get(name)
        reason = "=" if same else {**COMMON, **why}[key]
        asked = "" if executor is None or name in OF_THE_EXECUTOR else executor.get(name, "-") or "yes"
        rows.append((key, theirs.get(name, "-"), ours.get(name, "-") or "yes", asked, reason))
    return rows


def table(site: str) -> str:
    rows = [("", "the guide", "job.sh", "sbatch's arguments", ""), *rows_of(site)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "".join(f"{line.rstrip()}\n" for line in lines)


@pytest.mark.parametrize("site", GUIDES)
def test_beside_its_guide(site: str) -> None:
    assert table(site) == (GOLDEN / f"beside_{site}.txt").read_text()


@pytest.mark.parametrize("site", GUIDES)
def test_every_reason_is_for_a_difference_that_there_is(site: str) -> None:
    differing = {name for name, *_, reason in rows_of(site) if reason != "="}
    assert GUIDES[site].why.keys() <= differing


@pytest.mark.parametrize("site", GUIDES)
def test_interfaces_are_the_guides(site: str) -> None:
    assert script_of(job_of(site, GUIDES[site].scale), site).interfaces == GUIDES[site].interfaces


def test_a_value_that_drifts_is_seen() -> None:
    """The comparison itself: a site that asked for other cores than its guide would have no reason for it."""
    other = {**GUIDES["vega"].sbatch, "cpus-per-task": "16"}
    with pytest.raises(KeyError, match="sbatch cpus-per-task"):
        compared("sbatch", other, script_of(job_of("vega", "2x4"), "vega").sbatch, GUIDES["vega"].why)


if __name__ == "__main__":
    for each in GUIDES:
        (GOLDEN / f"beside_{each}.txt").write_text(table(each))
