"""Variables that no library reads, or that slow every step: each is a warning, and no other one is."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.messages import Problem
from ddp_ladder.settings.checks import SHELL, check_variables
from ddp_ladder.settings.load import Sources
from ddp_ladder_instrument.slow_settings import REMOVE

REPOSITORY = Path(__file__).parents[3]
CONFIG = """\
workload:
  script: train.py
  args: ["{batch_per_gpu}"]
  batch_per_gpu: 8
  env: {}
stages: {stage1: {scales: [1x1]}}
variants:
  default: {}
"""
CLUSTER = """\
site: test
node: {gpus: 1, device: cpu, cpus: 4}
network:
  env: {}
"""
TIMEOUT = "argument of init_process_group"

# name: the advice; None for no warning.
NAMES = {
    "NCCL_SOKET_IFNAME": 'did you mean "NCCL_SOCKET_IFNAME"?',
    "NCCL_SOCKET_IF_NAME": 'did you mean "NCCL_SOCKET_IFNAME"?',
    "NCLL_DEBUG": 'did you mean "NCCL_DEBUG"?',
    "NCCL_DEBGU": 'did you mean "NCCL_DEBUG"?',
    "NCCL_IB_ENABLE": 'did you mean "NCCL_IB_DISABLE"? It says the opposite',
    "NCCL_ENABLE_IB": 'did you mean "NCCL_IB_DISABLE"? It says the opposite',
    "NCCL_DISABLE_P2P": 'did you mean "NCCL_P2P_DISABLE"?',
    "NCCL_NVLS_DISABLE": 'did you mean "NCCL_NVLS_ENABLE"? It says the opposite',
    "NCCL_IB_GDR_LEVEL": 'did you mean "NCCL_NET_GDR_LEVEL"?',
    "NCCL_TRACE_BUFFER_SIZE": 'did you mean "TORCH_NCCL_TRACE_BUFFER_SIZE"?',
    "TORCH_NCCL_IB_DISABLE": 'did you mean "NCCL_IB_DISABLE"?',
    "NCCL_TIMEOUT": TIMEOUT,
    "TORCH_NCCL_TIMEOUT": TIMEOUT,
    "NCCL_NOTHING_LIKE_THIS_XYZ": "remove it, unless a plugin or a newer release reads it",
    "GLOO_IFNAME": 'did you mean "GLOO_SOCKET_IFNAME"?',
    "OMP_NUM_THREAD": 'did you mean "OMP_NUM_THREADS"?',
    "nccl_debug": 'did you mean "NCCL_DEBUG"?',
    "CUDA_VISIBLE_DEVICE": 'did you mean "CUDA_VISIBLE_DEVICES"?',
    "FI_PROVIDR": 'did you mean "FI_PROVIDER"?',
    # Valid, some of them in a single release of NCCL or in RCCL alone.
    **dict.fromkeys(
        "NCCL_DEBUG NCCL_IB_TIMEOUT NCCL_MAX_NRINGS NCCL_GIN_NCONTEXTS NCCL_SHM_USE_CUDA_MEMCPY NCCL_WORK_FIFO_DEPTH "
        "NCCL_NCHANNELS_PER_PEER NCCL_RINGS_REMAP NCCL_ASYNC_ERROR_HANDLING TORCH_DIST_USE_NCCL2 OMP_PLACES "
        "OMP_NUM_THREADS_DEV_1 NCCL_VERSION NCCL_MIN_NCHANNELS NCCL_RINGS TORCH_NCCL2_RECONFIGURE_SHRINK_GROW "
        # Of plugins that come with NCCL 2.28 to 2.30, and of RCCL in ROCm 6.
        "NCCL_INSPECTOR_ENABLE NCCL_PROFILE_EVENT_MASK NCCL_PROFILER_CE_TIMING NCCL_TUNER_CONFIG_FILE "
        "NCCL_AGG_ALLOC_MODE NCCL_GDRCOPY_TAIL_ENABLE TORCH_BLAS_PREFER_HIPBLASLT OMP_PREFIX".split()
    ),
    # Of other programs, or of families that are not listed whole.
    **dict.fromkeys("UCX_ANYTHING FI_OTHER_THING CUDA_ARCH_BIN_X RCCL_SOMETHING HSA_X UCC_TLS MY_RANK HF_HOME".split()),
}


class Files:
    """A user's two files in an empty directory, and the warnings about them."""

    def __init__(self, path: Path) -> None:
        self.sources = Sources(path / "config.yaml", path / "cluster.yaml", {})
        (path / "train.py").touch()
        self.write()

    def write(self, network: str = "{}", workload: str = "{}", default: str = "default: {}") -> None:
        assert self.sources.config
        config = CONFIG.replace("env: {}", f"env: {workload}").replace("default: {}", default)
        self.sources.config.write_text(config)
        self.sources.cluster.write_text(CLUSTER.replace("env: {}", f"env: {network}"))

    def check(self, **shell: str) -> tuple[Problem, ...]:
        return check_variables(Ladder.of(self.sources.load()).settings, shell)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)


def test_names_with_their_advice(files: Files) -> None:
    files.write("{" + ", ".join(f"{name}: 1" for name in NAMES) + "}")
    found = {problem.found: problem.next for problem in files.check()}
    assert found.keys() == {name for name, advice in NAMES.items() if advice}
    assert {name: text for name, text in found.items() if (NAMES[name or ""] or "") not in (text or "")} == {}


def test_a_warning_names_file_line_and_key(files: Files) -> None:
    files.write("{NCCL_IB_ENABLE: 1}", "{NCCL_DEBUGG: LOUD}", "default: {env: {OMP_NUM_THREAD: 8}}")
    places = [problem.where for problem in files.check(GLOO_IFNAME="eth0", OMPI_COMM="1", NCCL_VERSION="2.18")]
    assert [place.removeprefix(f"{files.sources.cluster.parent}/") for place in places] == [
        "config.yaml, line 5: workload.env.NCCL_DEBUGG",
        "config.yaml, line 8: variants.default.env.OMP_NUM_THREAD",
        "cluster.yaml, line 4: network.env.NCCL_IB_ENABLE",
        f"{SHELL}: GLOO_IFNAME",
    ]


@pytest.mark.parametrize(
    ("device", "transport", "told"),
    [
        ("cuda", "any", ["TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING"]),
        ("cuda", "ib", ["TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "NCCL_IB_DISABLE", "CUDA_LAUNCH_BLOCKING"]),
        ("cpu", "any", ["TORCH_DISTRIBUTED_DEBUG"]),
    ],
)
def test_a_variable_that_slows_every_step_is_a_warning(
    files: Files, device: str, transport: str, told: list[str]
) -> None:
    slow = "{NCCL_DEBUG: TRACE, NCCL_IB_DISABLE: 1}"
    files.write(slow, "{TORCH_DISTRIBUTED_DEBUG: DETAIL, TORCH_NCCL_BLOCKING_WAIT: 0}")
    cluster = files.sources.cluster
    text = cluster.read_text().replace("device: cpu", f"device: {device}")
    cluster.write_text(text.replace("network:", f"network:\n  transport: {transport}"))
    found = files.check(CUDA_LAUNCH_BLOCKING="1", NCCL_P2P_DISABLE="0")
    assert [problem.where.rpartition(".")[2].rpartition(" ")[2] for problem in found] == told
    assert {(problem.what, problem.next) for problem in found} == {("it slows every step", REMOVE)}
