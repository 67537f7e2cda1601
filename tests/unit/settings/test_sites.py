"""The ready-made sites beside the guides that they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.node.launch import Places, python_command
from ddp_ladder.plan.plan import ScaleJob, make_plan
from ddp_ladder.run.job_script import job_script
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from make_records import make_spec
from read_job_script import exports_in, launch_in

REPOSITORY = Path(__file__).parents[3]
SITES = REPOSITORY / "config" / "sites"

# What the guides' own scripts ask sbatch for and export, for a job of this scale. None: they have no such option.
GUIDES: dict[str, tuple[str, dict[str, str | None], dict[str, str], Any]] = {
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
    "roihu": (
        "1x4", {"partition": "gpumedium", "gres": "gpu:gh200:4", "cpus-per-task": "288", "mem": None}, {}, "auto",
    ),
    "marenostrum5": (
        "2x4",
        {"partition": "acc", "gres": "gpu:4", "nodes": "2", "cpus-per-task": "80", "mem": None}, {}, "auto",
    ),
    "jeanzay": (
        "1x4",
        {
            "partition": "gpu_p6", "constraint": "h100", "gres": "gpu:4", "ntasks-per-node": "4", "cpus-per-task": "24",
            "hint": "nomultithread", "mem": None,
        }, {}, "auto",
    ),
    "clariden": (
        "2x4", {"nodes": "2", "ntasks-per-node": "4", "gres": None, "mem": None, "exclusive": None}, {}, "auto",
    ),
    "jupiter": (
        "2x4",
        {"partition": "booster", "gres": "gpu:4", "nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "72"},
        {}, "auto",
    ),
    "isambard-ai": (
        "2x4", {"gres": "gpu:4", "nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "16"},
        {
            "NCCL_NET": "AWS Libfabric", "NCCL_SOCKET_IFNAME": "hsn", "NCCL_NET_GDR_LEVEL": "PHB",
            "NCCL_CROSS_NIC": "1", "NCCL_MIN_NCHANNELS": "4", "NCCL_GDRCOPY_ENABLE": "1",
            "NCCL_NET_FORCE_FLUSH": "0", "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_DEFAULT_TX_SIZE": "2048",
            "FI_CXI_DISABLE_NON_INJECT_MSG_IDC": "1", "FI_HMEM_CUDA_USE_GDRCOPY": "1",
            "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_MR_CACHE_MONITOR": "userfaultfd",
            "FI_CXI_RDZV_PROTO": "alt_read", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0",
            "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RX_MATCH_MODE": "hybrid",
        }, "hsn0",
    ),
    "snellius": (  # the least that a job may have: a quarter of a node
        "1x1", {"partition": "gpu_a100", "cpus-per-task": "18", "mem": str(120 * 1024)}, {}, "eno1np0",
    ),
    "karolina": ("1x1", {"partition": "qgpu", "cpus-per-task": "16", "mem": None}, {}, "auto"),
    "perlmutter": (
        "2x4", {"constraint": "gpu", "gres": "gpu:4", "ntasks-per-node": "4", "cpus-per-task": "32", "partition": None},
        {"FI_MR_CACHE_MONITOR": "userfaultfd"}, "auto",
    ),
}  # fmt: skip
WITH_SRUN = {"ethernet6", "jeanzay", "clariden", "jupiter", "isambard-ai", "perlmutter"}


def job_of(site: str, scale: str, directory: Path, **slurm: str) -> ScaleJob:
    """The job of a scale on a site. slurm: of its stage, where the site's file says so."""
    stage = "stage1" if scale == "1x1" else "stage2" if scale.startswith("1x") else "stage3"
    stages = {"stage1": {}, stage: {"slurm": slurm, **({} if stage == "stage1" else {"scales": [scale]})}}
    config = directory / "config.yaml"
    config.write_text(json.dumps({"workload": {"script": __file__, "batch_per_gpu": 64}, "stages": stages}))
    return make_plan(load_settings(config, SITES / f"{site}.yaml")).job(Scale.parse(scale))


@pytest.mark.parametrize("site", GUIDES)
def test_a_site_beside_its_guide(site: str, tmp_path: Path) -> None:
    largest, asked, exported, interface = GUIDES[site]
    job = job_of(site, largest, tmp_path)
    script = script_of(job, tmp_path)
    assert asked_by(script, asked) == asked
    assert job.runs[0].env == exported
    assert exported.items() <= exports_in(script).items()
    assert interface == "auto" or isinstance(interface, dict) or f"own_interface={interface}\n" in script
    assert (job.runs[0].interface, job.runs[0].backend) == (interface, "nccl")
    assert job.runs[0].launcher == ("srun" if site in WITH_SRUN else "torchrun")


def script_of(job: ScaleJob, directory: Path) -> str:
    return job_script(job, job.runs[0], Places(directory, directory / "run"))


def asked_by(script: str, names: Iterable[str]) -> dict[str, str | None]:
    """The values of these options of sbatch in job.sh; None of one that it does not have."""
    parts = (option.partition("=") for option in re.findall("(?m)^#SBATCH --(.*)$", script))
    options = {name: value.removesuffix("M") for name, _, value in parts}
    return {name: options.get(name) for name in names}


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


@pytest.mark.parametrize(
    ("site", "guide"),
    [
        ("clariden", "--environment=ddp-ladder python"),  # software/ml/pytorch.md of eth-cscs/cscs-docs
        (
            "perlmutter",
            "shifter --image=nersc/pytorch:24.08.01 --module=gpu,nccl-plugin python",
        ),  # submit_pm.sh of NERSC
    ],
)
def test_the_image_of_a_site_is_entered_as_in_its_guide(site: str, guide: str, tmp_path: Path) -> None:
    job = job_of(site, "2x4", tmp_path)
    launch = launch_in(job_script(job, job.runs[0], Places(tmp_path, tmp_path / "run"), ["/scratch"]))
    assert [word for word in launch if word in guide.split()] == guide.split()
