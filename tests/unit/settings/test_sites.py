"""The ready-made sites beside the guides that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.job_script.script import job_script
from ddp_ladder.node.launch import Places, python_command
from ddp_ladder.plan.plan import ScaleJob, make_plan
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.steps import sbatch_options
from make_records import make_spec
from read_job_script import launch_in

REPOSITORY = Path(__file__).parents[3]
SITES = REPOSITORY / "config" / "sites"

# What the guides' own scripts ask sbatch for and export, for a job of this scale.
GUIDES: dict[str, tuple[str, dict[str, str], dict[str, str], Any]] = {
    "vega": (
        "2x4", {"partition": "gpu", "gres": "gpu:4", "nodes": "2", "cpus-per-task": "32"},
        {"NCCL_NET": "IB", "NCCL_DEBUG": "WARN", "NCCL_NET_GDR_LEVEL": "5"}, "ib0",
    ),
    "leonardo": (
        "1x4", {"partition": "boost_usr_prod", "gres": "gpu:4", "nodes": "1", "cpus-per-task": "32"}, {}, "auto",
    ),
    "olivia": (
        "2x4", {"partition": "accel", "gres": "gpu:4", "nodes": "2", "cpus-per-task": "72", "mem": str(440 * 1024)},
        {
            "HSA_FORCE_FINE_GRAIN_PCIE": "1", "FI_MR_CACHE_MONITOR": "userfaultfd",
            "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_RDZV_PROTO": "alt_read",
            "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0",
            "FI_CXI_DEFAULT_TX_SIZE": "2048", "NCCL_CROSS_NIC": "1", "NCCL_NET_GDR_LEVEL": "PHB",
            "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3", "FI_CXI_RX_MATCH_MODE": "hybrid",
        }, "hsn0",
    ),
    "lumi": (
        "4x8",
        {"partition": "standard-g", "gres": "gpu:8", "nodes": "4", "cpus-per-task": "56", "mem": str(480 * 1024)},
        {"NCCL_SOCKET_IFNAME": "hsn", "NCCL_NET_GDR_LEVEL": "3"}, "hsn0",
    ),
    "jsc": (
        "1x4",
        {"partition": "booster", "gres": "gpu:4", "nodes": "1", "cpus-per-task": "48", "hint": "nomultithread"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "ib0",
    ),
    "ethernet6": (
        "6x1", {"nodes": "6", "gres": "gpu:1", "cpus-per-task": "1"}, {"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO"},
        {"master-node": "ens1f1", "node01": "ens1f1", "node02": "ens1f0np0", "node03": "ens1f1", "node04": "ens1f0",
         "node05": "ens1f0np0"},
    ),
}  # fmt: skip


def job_of(site: str, scale: str, directory: Path) -> ScaleJob:
    """The job of a scale on a site."""
    stages = {"stage2" if scale.startswith("1x") else "stage3": {"scales": [scale]}, "stage1": {}}
    config = directory / "config.yaml"
    config.write_text(json.dumps({"workload": {"script": __file__, "batch_per_gpu": 64}, "stages": stages}))
    return make_plan(load_settings(config, SITES / f"{site}.yaml")).job(Scale.parse(scale))


@pytest.mark.parametrize("site", GUIDES)
def test_a_site_beside_its_guide(site: str, tmp_path: Path) -> None:
    largest, asked, exported, interface = GUIDES[site]
    job = job_of(site, largest, tmp_path)
    options = dict(option.removeprefix("--").split("=") for option in sbatch_options(job, {}) if "=" in option)
    assert {name: options.get(name, "").removesuffix("M") for name in asked} == asked
    assert job.runs[0].env == exported
    assert (job.runs[0].interface, job.runs[0].backend) == (interface, "nccl")
    assert job.runs[0].launcher == ("srun" if site == "ethernet6" else "torchrun")


def test_every_site_is_beside_its_guide() -> None:
    assert {file.stem for file in SITES.glob("*.yaml")} == {*GUIDES, "local"}


# The launch lines of guides, in their long options, with the project in place of their directories.
LUMI = (  # 05-multi-gpu-and-node/run_ddp_torchrun_4.sh of the LUMI AI Guide
    "srun singularity run image python -m torch.distributed.run --numa-binding=exclusive --nnodes=4 --nproc-per-node=8"
)
OLIVIA = "srun apptainer exec --nv --bind /project --pwd /project image python3"  # PyTorchMultiNode.md of NRIS
PERLMUTTER = (  # a training on Perlmutter, with NERSC's podman-hpc
    "srun podman-hpc run --rm --gpu --network=host --ipc=host --workdir=/project --volume=/project:/project image "
    "python3"
)
PYXIS = (  # README.md of NVIDIA/pyxis, whose --container-mounts of a directory is x-create=auto,rbind
    "srun --container-image=image --container-mounts=/project:/project --container-workdir=/project python3"
)
OF_PYXIS = {
    "--container-image": "{}",
    "--container-mounts": "--mount={}:none:x-create=auto,rbind",
    "--container-workdir": "env --chdir {}",
}


@pytest.mark.parametrize(("engine", "guide"), [("apptainer", OLIVIA), ("podman-hpc", PERLMUTTER), ("enroot", PYXIS)])
def test_a_container_is_started_as_in_a_guide(engine: str, guide: str) -> None:
    container = {"image": "image", "engine": engine}
    spec = make_spec("1x2", device="cuda", directory="/project", container=container)
    wanted = (OF_PYXIS.get(name, name + equals + "{}").format(value) for name, equals, value in parts(guide))
    command = " ".join(python_command(spec, Places(Path("/project"), Path("/project/run")), ["/project"]))
    assert not {*" ".join(wanted).split()} - {*command.split()}


def parts(line: str) -> list[tuple[str, str, str]]:
    """The words of a launch line after srun, each as name, equals sign and value."""
    return [word.partition("=") for word in line.split()[1:]]


def test_lumi_is_launched_as_in_its_guide(tmp_path: Path) -> None:
    job = job_of("lumi", "4x8", tmp_path)
    launch = launch_in(job_script(job, job.runs[0], Places(tmp_path, tmp_path / "run"), ["/scratch"]))
    container = job.runs[0].container
    assert container is not None
    assert launch[:6] == ("singularity", "exec", "--bind", "/scratch", container.image, "python")
    assert not {*LUMI.split()[5:]} - {*launch}
