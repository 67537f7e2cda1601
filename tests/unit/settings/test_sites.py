"""The ready-made sites beside the guides that they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ddp_ladder.plan.plan import Plan, ScaleJob, make_plan
from ddp_ladder.settings import yaml as settings_yaml
from ddp_ladder.settings.keys import Settings, Site
from ddp_ladder.settings.load import load_settings, schema
from ddp_ladder.settings.terms import Scale, interface_on

REPOSITORY = Path(__file__).parents[3]
SITES = REPOSITORY / "config" / "sites"
GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTERS = ("vega", "leonardo", "olivia", "ethernet6")

# What the guides' own scripts say, word for word.
VEGA = """\
#SBATCH --partition=gpu
#SBATCH --gres=gpu:4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
module purge
module load Python/3.10
module load CUDA/11.7
module load NCCL
source $ENV_DIR/bin/activate
export NCCL_NET=IB
export NCCL_IB_ENABLE=1
export NCCL_SOCKET_IFNAME=ib0
export NCCL_DEBUG=INFO
export NCCL_NET_GDR_LEVEL=5
srun python -u -m torch.distributed.run
"""
LEONARDO_NODE = """\
srun --partition=boost_usr_prod --account=tra26_castiel2
--time=10:00 --nodes=1 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=8 --pty /bin/bash
"""
LEONARDO_TWO_GPUS = """\
salloc --partition=boost_usr_prod --account=tra26_castiel2
--time=10:00 --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=8 --reservation=<RESERVATION_NAME>
module load profile/deeplrn && module load cineca-ai/4.3.0
"""
OLIVIA = """\
#SBATCH --partition=accel
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --mem=440G
ml reset
ml load NRIS/GPU
ml load NCCL/2.26.6-GCCcore-14.2.0-CUDA-12.8.0
ml use /cluster/work/support/pytorch_module
ml load PyTorch/2.8.0
export PYTORCH_OVERLAY_MODE=ro
srun torchrun
"""
OLIVIA_NETWORK = """\
export HSA_FORCE_FINE_GRAIN_PCIE=1
export FI_MR_CACHE_MONITOR=userfaultfd
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_EAGER_SIZE=0
export FI_CXI_RDZV_THRESHOLD=0
export FI_CXI_RDZV_GET_MIN=0
export FI_CXI_DEFAULT_TX_SIZE=2048
export NCCL_CROSS_NIC=1
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export FI_CXI_RX_MATCH_MODE=hybrid
"""
ETHERNET6 = """\
--nodes=6
--ntasks-per-node=1
--gpus-per-node=1
0) export NCCL_SOCKET_IFNAME=ens1f1 ;; # master-node
1) export NCCL_SOCKET_IFNAME=ens1f1 ;; # node01
2) export NCCL_SOCKET_IFNAME=ens1f0np0 ;; # node02
3) export NCCL_SOCKET_IFNAME=ens1f1 ;; # node03
4) export NCCL_SOCKET_IFNAME=ens1f0 ;; # node04
5) export NCCL_SOCKET_IFNAME=ens1f0np0 ;; # node05
NCCL_IB_DISABLE=1
NCCL_DEBUG=INFO
"""


def settings_of(site: str, directory: Path, largest: str) -> Settings:
    """A site with a ladder that goes up to ``largest``."""
    cluster = SITES / f"{site}.yaml"
    gpus = yaml.safe_load(cluster.read_text())["node"]["gpus"]
    stages: dict[str, Any] = {"stage1": {}, "stage3": {"scales": [largest]}}
    if gpus > 1:
        stages["stage2"] = {"scales": [f"1x{gpus}"]}
    (directory / "train.py").touch()
    workload = {"script": str(directory / "train.py"), "batch_per_gpu": 64}
    config = directory / "config.yaml"
    config.write_text(json.dumps({"workload": workload, "repeats": 1, "stages": stages}))
    return load_settings(config, cluster)


def plan_of(site: str, directory: Path, largest: str) -> Plan:
    return make_plan(settings_of(site, directory, largest))


def asked_for(job: ScaleJob) -> dict[str, str]:
    """What a job asks sbatch for, under the names of sbatch's options."""
    options = {
        "partition": job.slurm.partition,
        "nodes": job.scale.nodes,
        "gres": job.gres,
        "cpus-per-task": job.cpus,
        "mem": job.memory_mb,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def guide_asks(text: str) -> dict[str, str]:
    """The options of a guide's script, GPUs as gres and memory in MB."""
    options = dict(re.findall(r"--([a-z-]+)=(\S+)", text))
    for ours in ("account", "time", "reservation"):
        options.pop(ours, None)
    if gpus := options.pop("gpus-per-node", None):
        options["gres"] = f"gpu:{gpus}"
    if memory := options.get("mem"):
        options["mem"] = str(int(memory.removesuffix("G")) * 1024)
    assert options.pop("ntasks-per-node") == "1"
    return options


def exports(text: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


def modules(text: str) -> list[str]:
    return re.findall(r"(?:module|ml) load (\S+)", text)


def test_vega_beside_its_guide(tmp_path: Path) -> None:
    job = plan_of("vega", tmp_path, "2x4").job(Scale(2, 4))
    assert asked_for(job) == guide_asks(VEGA)
    run, exported = job.runs[0], exports(VEGA)
    assert (run.launcher, run.backend) == ("torchrun", "nccl")
    assert run.interface == exported.pop("NCCL_SOCKET_IFNAME")
    del exported["NCCL_IB_ENABLE"]
    assert run.env == {**exported, "NCCL_DEBUG": "WARN"}
    text = (SITES / "vega.yaml").read_text()
    for named in ("NCCL_IB_ENABLE=1", "NCCL_DEBUG=INFO", f"modules: [{', '.join(modules(VEGA))}]  # [guide]"):
        assert named in text
    assert (run.python, run.modules) == (None, ())


def test_leonardo_beside_its_slides(tmp_path: Path) -> None:
    plan = plan_of("leonardo", tmp_path, "2x4")
    cpus_per_gpu = int(re.findall(r"--cpus-per-task=(\d+)", LEONARDO_TWO_GPUS)[0])
    assert asked_for(plan.job(Scale(1, 4))) == {**guide_asks(LEONARDO_NODE), "cpus-per-task": str(4 * cpus_per_gpu)}
    assert plan.job(Scale(1, 1)).cpus == cpus_per_gpu
    run = plan.runs[0]
    assert (run.modules, run.python, run.launcher) == (tuple(modules(LEONARDO_TWO_GPUS)), "python3", "torchrun")
    assert (run.backend, run.interface, run.env) == ("nccl", "auto", {})


def test_olivia_beside_its_guide(tmp_path: Path) -> None:
    job = plan_of("olivia", tmp_path, "2x4").job(Scale(2, 4))
    assert asked_for(job) == guide_asks(OLIVIA)
    run = job.runs[0]
    *first, pytorch = modules(OLIVIA)
    assert run.modules == tuple(first)
    steps = [f"module load {pytorch}", *re.findall(r"ml (use .*)", OLIVIA), *re.findall(r"export .*", OLIVIA)]
    for step in steps:
        assert step in run.setup
    assert run.env == exports(OLIVIA_NETWORK)
    assert run.interface == run.env["NCCL_SOCKET_IFNAME"].split(",")[0]
    assert (run.launcher, run.backend) == ("torchrun", "nccl")


def test_ethernet6_beside_its_guide(tmp_path: Path) -> None:
    job = plan_of("ethernet6", tmp_path, "6x1").job(Scale(6, 1))
    assert asked_for(job) == {**guide_asks(ETHERNET6), "cpus-per-task": "1"}
    run = job.runs[0]
    names = {node: name for name, node in re.findall(r"IFNAME=(\S+) ;; # (\S+)", ETHERNET6)}
    assert len(names) == 6
    assert run.interface == names
    assert {node: interface_on(run.interface, node) for node in names} == names
    assert run.env == dict(re.findall(r"^(NCCL_\w+)=(\S+)$", ETHERNET6, re.MULTILINE))
    assert (run.launcher, run.backend) == ("srun", "nccl")


TAG = re.compile(r"\[(guide|docs|slides)\]")


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data


def comment_of(lines: list[str], number: int) -> str:
    """A line (from 1) with the comment lines right above it."""
    first = number - 1
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first:number])


@pytest.mark.parametrize("site", CLUSTERS)
def test_every_value_names_its_source(site: str) -> None:
    document = settings_yaml.read(SITES / f"{site}.yaml")
    lines = document.file.read_text().splitlines()
    of_site = schema(Site)["properties"]
    keys = {(name, key): part for name in of_site for key, part in of_site[name].get("properties", {}).items()}
    defaults = {path: part["default"] for path, part in keys.items() if "default" in part}
    defaults |= {("launcher",): of_site["launcher"]["default"]}
    for path, value in leaves({key: part for key, part in document.data.items() if key != "site"}):
        if path in defaults and defaults[path] == value:
            continue
        places = [comment_of(lines, document.lines[path[:length]]) for length in range(1, len(path) + 1)]
        assert any(TAG.search(place) for place in places[1:] or places), f"{'.'.join(map(str, path))} of {site}"


@pytest.mark.parametrize("site", CLUSTERS)
def test_every_source_has_a_date(site: str) -> None:
    text = (SITES / f"{site}.yaml").read_text()
    head, _, body = text.partition("\nsite: ")
    used = set(TAG.findall(body))
    assert used
    for tag in used:
        entry = re.search(rf"#   \[{tag}\](.*\n(#    .*\n)*)", head)
        assert entry, tag
        assert "read in 2026-11" in entry[0], tag
