"""Environment variables of communication libraries: what is found, what is refused, and that nothing correct is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase, digits

import pytest
from ddp_ladder.climb.announcements import check_variables
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.messages import Problem, UserError
from ddp_ladder.node.launch import Places, node_environment
from ddp_ladder.preflight.environment import SHELL, EnvironmentResult, check_environment
from ddp_ladder.preflight.exported import PREFIXES, SET_FOR_EVERY_RUN
from ddp_ladder.preflight.known_variables import Variable, is_one_edit, known_variables
from ddp_ladder.preflight.variable_values import KINDS, objection
from ddp_ladder.preflight.variables import Misuse, Place, check_places, check_together
from ddp_ladder.settings.sources import Sources

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
KNOWN = known_variables()


def place(is_shell: bool = False, reason: bool = True, **values: str) -> Place:
    return Place(values, lambda name: f"here: {name}", lambda name: reason, "say so", is_shell)


def found(interfaces: list[str] | None = None, reason: bool = True, **values: str) -> list[Misuse]:
    places = [place(reason=reason, **values)]
    return [*check_places(places, interfaces), *check_together(places)]


def only(findings: list[Misuse]) -> tuple[bool, str]:
    (finding,) = findings
    return finding.wrong, str(finding.problem)


# The file


def test_every_row_is_well_formed() -> None:
    assert len(KNOWN.rows) > 600
    for row in (*KNOWN.rows.values(), *KNOWN.starts.values()):
        assert row.replacement.removeprefix("!") in {"", *KNOWN.rows}, row.name
        assert KNOWN.family(row.name), row.name
        assert row.exists or row.status == "never" or row.version, f"{row.name}: since when?"
        kind, *words = row.value.split(" ")
        assert kind in KINDS or re.fullmatch(r"[A-Z0-9_]+|[a-z_0-9]+|-?[0-9]+\.\.(-?[0-9]+)?", kind), row.name
        assert bool(words) == (kind in ("list", "exact", "functions")) or kind not in KINDS, row.name
    assert {prefix for prefix, closed in KNOWN.closed.items() if closed} == {"NCCL_", "GLOO_", "TORCH_NCCL_", "OMP_"}
    assert {*PREFIXES} | {"TORCH_NCCL_", "RCCL_", "UCC_"} == KNOWN.closed.keys()


# Names

# (name, value): parts of the message.
WRONG_NAMES = {
    ("NCCL_SOKET_IFNAME", "ib0"): ["no such variable", 'did you mean "NCCL_SOCKET_IFNAME"?'],
    ("NCCL_SOCKET_IF_NAME", "ib0"): ['did you mean "NCCL_SOCKET_IFNAME"?'],
    ("NCCL_SOCKET_NUM_THREADS", "4"): ['did you mean "NCCL_SOCKET_NTHREADS"?', "software.setup"],
    ("NCCL_IB_ENABLE", "1"): ["never had", "remove it", "by default", "NCCL_IB_DISABLE: 1"],
    ("NCCL_IB_ENABLE", "0"): ["never had", "write NCCL_IB_DISABLE: 1"],
    ("NCCL_ENABLE_IB", "0"): ["never had", "write NCCL_IB_DISABLE: 1"],
    ("NCCL_P2P_ENABLE", "0"): ["write NCCL_P2P_DISABLE: 1"],
    ("NCCL_SHM_ENABLE", "1"): ["remove it", "NCCL_SHM_DISABLE: 1"],
    ("NCCL_NVLS_DISABLE", "1"): ["write NCCL_NVLS_ENABLE: 0"],
    ("NCCL_NVLS_DISABLE", "0"): ["remove it", "NCCL_NVLS_ENABLE: 0"],
    ("NCCL_NET_GDR_ENABLE", "1"): ["did you mean NCCL_NET_GDR_LEVEL?"],
    ("NCCL_DEBUG_LEVEL", "INFO"): ["did you mean NCCL_DEBUG?"],
    ("NCCL_IB_GDR_LEVEL", "PHB"): ["renamed it in 2.4", "write NCCL_NET_GDR_LEVEL"],
    ("NCCL_IB_CUDA_SUPPORT", "1"): ["removed it in 2.4", "NCCL_NET_GDR_LEVEL is nearest"],
    ("NCCL_TREE_THRESHOLD", "0"): ["removed it in 2.5", "NCCL_ALGO is nearest"],
    ("NCCL_SINGLE_RING_THRESHOLD", "0"): ["removed it in 2.3", "remove it"],
    ("NCCL_TRACE_BUFFER_SIZE", "2000"): ['did you mean "TORCH_NCCL_TRACE_BUFFER_SIZE"?'],
    ("TORCH_NCCL_IB_DISABLE", "1"): ["torch has no such variable", 'did you mean "NCCL_IB_DISABLE"?'],
    ("TORCH_NCCL_TIMEOUT", "600"): ["never had", "remove it; the timeout is an argument of init_process_group"],
    ("GLOO_IFNAME", "eth0"): ["Gloo never had", "did you mean GLOO_SOCKET_IFNAME?"],
    ("OMP_NUM_THREAD", "8"): ["OpenMP has no", 'did you mean "OMP_NUM_THREADS"?'],
    ("nccl_debug", "INFO"): ["NCCL reads NCCL_DEBUG, and would ignore a name in lower case", "write NCCL_DEBUG"],
    ("OMP_THREADS", "8"): ["did you mean OMP_NUM_THREADS?"],
}


@pytest.mark.parametrize("variable", WRONG_NAMES, ids="=".join)
def test_names_that_nothing_reads(variable: tuple[str, str]) -> None:
    name, value = variable
    wrong, text = only(found(**{name: value}))
    assert wrong
    assert text.startswith(f"here: {name}: ")
    assert [part for part in WRONG_NAMES[variable] if part not in text] == []
    assert not next(check_places([place(is_shell=True, **{name: value})], None)).wrong


def test_a_name_like_no_other_may_be_a_plugins() -> None:
    wrong, text = only(found(NCCL_NOTHING_LIKE_THIS_XYZ="1"))
    assert not wrong
    assert "no such variable" in text
    assert "remove it, unless a plugin or a newer release reads it" in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"), ("FI_PROVIDR", "FI_PROVIDER"), ("UCX_TSL", "UCX_TLS")],
)
def test_in_an_open_family_one_letter_is_a_doubt(name: str, meant: str) -> None:
    wrong, text = only(found(**{name: "0"}))
    assert not wrong
    assert f'did you mean "{meant}"?' in text


@pytest.mark.parametrize(
    "name", ["UCX_ANYTHING", "FI_OTHER_THING", "CUDA_ARCH_BIN_X", "TORCH_SOMETHING", "UCC_TLS", "RCCL_DEBUG", "MY_RANK"]
)
def test_other_names_of_open_families_are_left_alone(name: str) -> None:
    assert found(**{name: "0"}) == []


def typos(name: str, letters: str) -> Iterator[str]:
    """Every name that one edit makes of it, with these letters."""
    heads = [(name[:place], name[place:]) for place in range(len(name) + 1)]
    yield from (head + rest[1:] for head, rest in heads if rest)
    yield from (head + rest[1] + rest[0] + rest[2:] for head, rest in heads if len(rest) > 1)
    yield from (head + letter + rest[1:] for head, rest in heads if rest for letter in letters)
    yield from (head + letter + rest for head, rest in heads for letter in letters)


def test_all_typos_of_one_letter_of_all_names_are_caught() -> None:
    """Also those in the prefix. UCC and RCCL are libraries of their own, whose names are not listed.

    "?" stands for any letter that gives no listed name; every tenth name is tried with all letters.
    """
    missed, tried = [], 0
    for number, row in enumerate(KNOWN.rows.values()):
        letters = "?" if number % 10 else f"?{ascii_uppercase}{digits}_"
        for typo in typos(row.name, letters) if row.exists else ():
            if KNOWN.find(typo) is None and not typo.startswith(("UCC_", "RCCL_")):
                tried += 1
                if KNOWN.misspelt(typo) is None:
                    missed.append((row.name, typo))
    assert missed == []
    assert tried > 100_000


def test_one_edit() -> None:
    assert all(is_one_edit("abc", other) for other in ("ab", "abcd", "xabc", "axc", "bac", "acb"))
    assert not any(is_one_edit("abc", other) for other in ("abc", "a", "cba", "axy", "abcde", "bca"))


# Values

# (name, value): parts of the message.
WRONG_VALUES = {
    ("NCCL_IB_DISABLE", "true"): ["allowed  0 or 1", "write 1: it is read as a number, and words as 0"],
    ("NCCL_IB_DISABLE", "2"): ["allowed  0 or 1"],
    ("NCCL_IB_DISABLE", ""): ["allowed  0 or 1"],
    ("NCCL_IB_TIMEOUT", "32"): ["a whole number from 0 to 31"],
    ("NCCL_IB_TIMEOUT", "20s"): ["a whole number from 0 to 31"],
    ("NCCL_BUFFSIZE", "8M"): ["write 8388608, the number of bytes"],
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10m"): ["a whole number from 0 on", "write one of these values"],
    ("NCCL_DEBUG", "INF"): ['did you mean "INFO"?', "VERSION, WARN"],
    ("NCCL_DEBUG_SUBSYS", "INIT,NETWORK"): ["INIT, COLL", "with commas"],
    ("NCCL_ALGO", "Rings"): ["ring, tree", "with commas"],
    ("NCCL_PROTO", "allreduce:LL129"): ["ll, ll128, simple"],
    ("NCCL_P2P_LEVEL", "phb"): ["write PHB: upper and lower case matter here"],
    ("NCCL_NET_GDR_LEVEL", "NODE"): ["LOC, NVL"],
    ("NCCL_NTHREADS", "100"): ["64, 128, 256, 512"],
    ("NCCL_SOCKET_FAMILY", "ipv4"): ["AF_INET, AF_INET6"],
    ("NCCL_SOCKET_IFNAME", "eth0, eth1"): ["names of interfaces", "no spaces"],
    ("NCCL_SOCKET_IFNAME", "=eth0,=eth1"): ["write the = and ^ once"],
    ("NCCL_SOCKET_IFNAME", "=^eth0"): ["write the = and ^ once"],
    ("NCCL_SOCKET_IFNAME", "eth0,"): ["names of interfaces"],
    ("NCCL_SOCKET_IFNAME", "/dev/ib0"): ["names of interfaces"],
    ("NCCL_IB_HCA", "mlx5_0 mlx5_1"): ["names of devices"],
    ("GLOO_SOCKET_IFNAME", "^docker0"): ["Gloo takes no ^ and no ="],
    ("NCCL_TOPO_FILE", "~me/topo.xml"): ["a path without ~"],
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4"): ["from 0 to 3"],
    ("TORCH_NCCL_BLOCKING_WAIT", "on"): ["write 1"],
    ("TORCH_DISTRIBUTED_DEBUG", "DETAILS"): ['did you mean "DETAIL"?'],
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments=True"): ["key:value pairs"],
    ("OMP_NUM_THREADS", "0"): ["a whole number from 1 on"],
    ("OMP_NUM_THREADS", "auto"): ["a whole number from 1 on"],
    ("OMP_PLACES", "core"): ["threads, cores, ll_caches", "write cores"],
    ("OMP_PLACES", "Socket(2)"): ["write sockets"],
    ("OMP_PROC_BIND", "closed"): ['did you mean "CLOSE"?'],
    ("CUDA_DEVICE_ORDER", "pci_bus_id"): ["write PCI_BUS_ID: upper and lower case matter here"],
    ("CUDA_DEVICE_MAX_CONNECTIONS", "64"): ["from 1 to 32"],
    ("CUDA_VISIBLE_DEVICES", "0;1"): ["numbers or UUIDs of GPUs"],
    ("CUDA_VISIBLE_DEVICES", "all"): ["numbers or UUIDs of GPUs"],
    ("FI_CXI_RX_MATCH_MODE", "hybird"): ['did you mean "HYBRID"?'],
    ("UCX_LOG_LEVEL", "infos"): ['did you mean "INFO"?'],
}


@pytest.mark.parametrize("variable", WRONG_VALUES, ids="=".join)
def test_values_that_are_not_taken(variable: tuple[str, str]) -> None:
    name, value = variable
    wrong, text = only([*check_places([place(**{name: value})], None)])
    assert wrong
    assert text.startswith(f"here: {name}: not a value that ")
    assert "\n  next     " in text
    assert [part for part in WRONG_VALUES[variable] if part not in text] == []


# Correct lines: those of the guides that the sites and experiments come from, and of the libraries' documentation.
CORRECT = """\
NCCL_NET=IB
NCCL_DEBUG=INFO
NCCL_DEBUG=WARN
NCCL_DEBUG=warn
NCCL_SOCKET_IFNAME=ib0
NCCL_SOCKET_IFNAME=ens1f1
NCCL_SOCKET_IFNAME=ens1f0np0
NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
NCCL_SOCKET_IFNAME=^docker0,lo
NCCL_SOCKET_IFNAME==ens1f0
NCCL_SOCKET_IFNAME=^=docker0
GLOO_SOCKET_IFNAME=ens1f1
GLOO_SOCKET_IFNAME=eth0,eth1
NCCL_NET_GDR_LEVEL=5
NCCL_NET_GDR_LEVEL=PHB
NCCL_IB_DISABLE=1
NCCL_IB_HCA=^=mlx5_1,mlx5_4
NCCL_IB_HCA==mlx5_0:1:0:0,mlx5_1:1:0:1
NCCL_ALGO=Ring
NCCL_ALGO=^tree,collnetdirect
NCCL_ALGO=allreduce:tree;broadcast:ring,tree
NCCL_ALGO=allreduce:^tree
NCCL_PROTO=^LL128
NCCL_CROSS_NIC=1
NCCL_DEBUG_FILE=/tmp/nccl.%h.%p
NCCL_DEBUG_FILE=/dev/stderr
NCCL_CUMEM_ENABLE=0
NCCL_SOCKET_MAGIC=0x1f
NCCL_CTA_POLICY=EFFICIENCY|ZERO
NCCL_RAS_TIMEOUT_FACTOR=1.5
NCCL_SHARP_DISABLE=1
NCCL_IB_PKEY=1
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
TORCH_NCCL_ENABLE_MONITORING=false
TORCH_DISTRIBUTED_DEBUG=detail
TORCH_CPP_LOG_LEVEL=0
TORCH_LOGS=+dynamo
PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2],expandable_segments:True
GLOO_DEVICE_TRANSPORT=TCP
OMP_NUM_THREADS=18
OMP_NUM_THREADS=4,2
OMP_NUM_THREADS={gpus_per_node} * 4
OMP_PROC_BIND=close,spread
OMP_PLACES={0:4}
OMP_PLACES=cores
OMP_PLACES=sockets(2)
GOMP_STACKSIZE=1024
KMP_STACKSIZE=512M
KMP_SCHEDULE=static
KMP_TEAMS_THREAD_LIMIT=4
CUDA_VISIBLE_DEVICES=
CUDA_VISIBLE_DEVICES=0,1
CUDA_VISIBLE_DEVICES=-1
CUDA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1
CUDA_VISIBLE_DEVICES=MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2
CUDA_DEVICE_MAX_CONNECTIONS=1
FI_PROVIDER=cxi
FI_MR_CACHE_MONITOR=userfaultfd
FI_CXI_DISABLE_HOST_REGISTER=1
FI_CXI_DEFAULT_CQ_SIZE=131072
FI_CXI_RDZV_PROTO=alt_read
FI_CXI_RX_MATCH_MODE=hybrid
UCX_TLS=rc,cuda_copy,cuda_ipc
UCX_NET_DEVICES=mlx5_0:1
"""


@pytest.mark.parametrize("line", CORRECT.splitlines())
def test_correct_lines_raise_no_alarm(line: str) -> None:
    name, _, value = line.partition("=")
    assert found(**{"NCCL_DEBUG": "INFO", name: value}) == []


@pytest.mark.parametrize(
    ("site", "experiment"),
    [
        ("local", "digits"),
        ("leonardo", "enccs-mnist"),
        ("leonardo", "torchrun-or-srun"),
        ("olivia", "olivia-cifar"),
        ("vega", "vega-resnet50"),
        ("ethernet6", "ethernet6-mlp"),
    ],
)
def test_shipped_sites_and_experiments_raise_no_alarm(
    site: str, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    sources = Sources(Path(f"config/experiments/{experiment}.yaml"), Path(f"config/sites/{site}.yaml"), {})
    result = check_environment((ladder := Ladder.of(sources.load())).settings, ladder.plan, sources, {})
    assert (result.wrong, result.doubts) == ((), ())
    assert result.checked or site == "local"


# Use


@pytest.mark.parametrize(
    ("values", "wrong", "part"),
    [
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, True, "it would find no network"),
        ({"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_DISABLE": "1"}, True, "none of which may be used"),
        ({"NCCL_IB_HCA": "mlx5_0", "NCCL_NET": "Socket"}, True, "NCCL is to use sockets"),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, True, "forbids all transfers"),
        ({"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "8"}, True, "the minimum is above the maximum"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, True, "at most 64 sockets"),
        ({"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, True, "NCCL_CUMEM_ENABLE: 0 forbids"),
        ({"NCCL_DEBUG_SUBSYS": "NET"}, False, "has no effect without it"),
        ({"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p", "NCCL_DEBUG": "VERSION"}, False, "stays empty"),
        ({"NCCL_DEBUG_FILE": "/tmp/nccl.%h", "NCCL_DEBUG": "INFO"}, False, "write for example /tmp/nccl.%h.%p"),
        ({"NCCL_MAX_NCHANNELS": "8"}, False, "write NCCL_MAX_CTAS in its place"),
        ({"NCCL_MIN_NRINGS": "8"}, False, "deprecated since NCCL 2.5;"),
        ({"NCCL_BLOCKING_WAIT": "1"}, False, "deprecated since torch 2.2;"),
        ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, False, "write TORCH_NCCL_ASYNC_ERROR_HANDLING in its place"),
    ],
)
def test_contradictions_and_doubtful_uses(values: dict[str, str], wrong: bool, part: str) -> None:
    findings = found(**values)
    assert len(findings) == 1
    assert only(findings)[0] == wrong
    assert part in only(findings)[1]


def test_what_agrees_is_no_contradiction() -> None:
    assert found(NCCL_NET="IB", NCCL_IB_DISABLE="0", NCCL_IB_HCA="mlx5") == []
    assert found(NCCL_NET="Socket", NCCL_IB_DISABLE="1", NCCL_MIN_CTAS="8", NCCL_MAX_CTAS="8") == []
    later = place(NCCL_IB_DISABLE="0")
    assert [*check_together([place(NCCL_NET="IB", NCCL_IB_DISABLE="1"), later])] == []  # which overrides it


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_SOCKET_IFNAME", "ib0", "matches no interface"),
        ("NCCL_SOCKET_IFNAME", "=eth", "matches no interface"),
        ("NCCL_SOCKET_IFNAME", "^eth,lo", "leaves no interface"),
        ("NCCL_SOCKET_IFNAME", "eth1", "also matches eth10"),
        ("GLOO_SOCKET_IFNAME", "eth", "matches no interface"),
    ],
)
def test_interfaces_of_this_machine(name: str, value: str, part: str) -> None:
    here = ["lo", "eth1", "eth10"]
    wrong, text = only(found(here, **{name: value}))
    assert (wrong, part in text) == (False, True)
    assert found(None, **{name: value}) == []  # of another machine nothing is known


@pytest.mark.parametrize("value", ["=eth1", "eth", "eth10", "^lo", "eth1,eth10"])
def test_interfaces_that_are_there(value: str) -> None:
    assert found(["lo", "eth1", "eth10"], NCCL_SOCKET_IFNAME=value) == []


def test_variables_for_debugging_need_a_reason() -> None:
    wrong, text = only(found(reason=False, NCCL_P2P_DISABLE="1"))
    assert not wrong
    assert "a variable for debugging" in text
    assert "next     say why: say so; or remove it" in text
    assert found(reason=False, NCCL_CROSS_NIC="1") == []


# Settings and shell


class Files:
    """A user's two files in an empty directory, and what their check finds."""

    def __init__(self, path: Path) -> None:
        self.sources = Sources(path / "config.yaml", path / "cluster.yaml", {})
        (path / "train.py").touch()
        self.write()

    def write(self, network: str = "{}", workload: str = "{}", default: str = "default: {}") -> None:
        assert self.sources.config
        config = CONFIG.replace("env: {}", f"env: {workload}").replace("default: {}", default)
        self.sources.config.write_text(config)
        self.sources.cluster.write_text(CLUSTER.replace("env: {}", f"env: {network}"))

    @property
    def ladder(self) -> Ladder:
        return Ladder.of(self.sources.load())

    def check(self, **shell: str) -> EnvironmentResult:
        ladder = self.ladder
        return check_environment(ladder.settings, ladder.plan, self.sources, shell)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)


def test_a_finding_names_file_line_and_key(files: Files) -> None:
    files.write("{NCCL_IB_ENABLE: 1}", "{NCCL_DEBUG: LOUD}", "default: {env: {OMP_NUM_THREAD: 8}}")
    places = [problem.where for problem in files.check().wrong]
    assert [place.removeprefix(f"{files.sources.cluster.parent}/") for place in places] == [
        "cluster.yaml, line 4: network.env.NCCL_IB_ENABLE",
        "config.yaml, line 5: workload.env.NCCL_DEBUG",
        "config.yaml, line 8: variants.default.env.OMP_NUM_THREAD",
    ]


def test_contradictions_between_the_files(files: Files) -> None:
    files.write("{NCCL_NET: IB}", "{}", "default: {reason: r, env: {NCCL_IB_DISABLE: 1}}\n  b: {}\n  c: {}")
    (problem,) = files.check().wrong
    assert "NCCL_IB_DISABLE: 1 (" in str(problem)
    assert "variants.default.env.NCCL_IB_DISABLE)" in str(problem)
    assert problem.where.endswith("network.env.NCCL_NET")


@pytest.mark.parametrize(
    ("transport", "variables", "wrong"),
    [
        ("ib", "NCCL_IB_DISABLE: 1", 1), ("ib", "NCCL_NET: Socket", 1), ("socket", "NCCL_NET: IB", 1),
        ("ofi", "NCCL_NET: IB", 1), ("ib", "NCCL_NET: IB", 0), ("ib", "NCCL_IB_DISABLE: 0", 0),
        ("ib", "NCCL_NET: somebodys-plugin", 0), ("socket", "NCCL_IB_DISABLE: 1", 0), ("any", "NCCL_IB_DISABLE: 1", 0),
    ],
)  # fmt: skip
def test_another_network_than_the_preflight_is_to_find(
    files: Files, transport: str, variables: str, wrong: int
) -> None:
    files.write(f"{{{variables}}}\n  transport: {transport}")
    cluster, config = files.sources.cluster, files.sources.config
    assert config
    assert files.check().wrong == ()  # on one node, and with Gloo
    cluster.write_text(cluster.read_text().replace("device: cpu", "device: cuda"))
    config.write_text(config.read_text().replace("variants:", "  stage3: {scales: [2x1]}\nvariants:", 1))
    config.write_text(
        config.read_text().replace("stages: {stage1: {scales: [1x1]}}", "stages:\n  stage1: {scales: [1x1]}")
    )
    found = files.check().wrong
    assert len(found) == wrong
    assert all(f"network.transport is {transport}" in str(each) for each in found)
    config.write_text(
        config.read_text().replace("default: {}", "default: {}\n  b: {reason: r, env: {NCCL_NET: Other}}")
    )
    assert files.check().wrong == found  # a variant may compare another network


@pytest.mark.parametrize(
    ("interface", "value", "doubts"),
    [("ib0", "eth0", 1), ("ib0", "ib", 0), ("ib0", "^lo", 0), ("auto", "eth0", 0), ("{node1: ib0}", "eth0", 0)],
)
def test_interfaces_other_than_the_sites_are_a_doubt(files: Files, interface: str, value: str, doubts: int) -> None:
    files.write(f"{{NCCL_SOCKET_IFNAME: {value}}}")
    text = files.sources.cluster.read_text()
    files.sources.cluster.write_text(text.replace("network:", f"network:\n  interface: {interface}", 1))
    result = files.check()
    assert (len(result.wrong), len(result.doubts)) == (0, doubts)
    assert all("network.interface is ib0" in str(doubt) for doubt in result.doubts)


@pytest.mark.parametrize(
    ("text", "doubts"),
    [
        ("{NCCL_P2P_DISABLE: 1}", 1),
        ("{NCCL_P2P_DISABLE: 1}  #", 1),
        ('{NCCL_P2P_DISABLE: 1, A: "x # y"}', 1),
        ("{NCCL_P2P_DISABLE: 1}  # the switch of rack 3 is broken", 0),
        ("  # this is where variables go\n    NCCL_P2P_DISABLE: 1\n    A: 1", 1),
        ("  # this is where variables go\n    A: 1\n    NCCL_P2P_DISABLE: 1", 1),
        ("\n    # the switch of rack 3 is broken\n    NCCL_P2P_DISABLE: 1", 0),
        ("\n    A: 1  # why A\n    NCCL_P2P_DISABLE: 1", 1),
    ],
)
def test_a_comment_is_a_reason(files: Files, text: str, doubts: int) -> None:
    files.write(network=text)
    result = files.check()
    assert (len(result.wrong), len(result.doubts)) == (0, doubts)
    assert all("say why: a comment on its line" in str(doubt) for doubt in result.doubts)


def test_the_comment_that_explains_the_key_is_no_reason(files: Files) -> None:
    files.write("{NCCL_P2P_DISABLE: 1}")
    cluster = files.sources.cluster
    cluster.write_text(cluster.read_text().replace("  env:", "  # Variables of the network.\n  env:"))
    assert len(files.check().doubts) == 1


def test_a_variants_reason(files: Files) -> None:
    files.write(default="default: {env: {NCCL_P2P_DISABLE: 1}}")
    (doubt,) = files.check().doubts
    assert "say why: reason: in variants.default" in str(doubt)
    files.write(default="default: {env: {NCCL_P2P_DISABLE: 1}, reason: is it the switch}")
    assert files.check().doubts == ()


def test_what_the_shell_exports_is_named_and_never_refused(files: Files) -> None:
    assert files.check(PATH="/bin", CUDA_HOME="/cuda", CUDA_VISIBLE_DEVICES="0", NCCL_VERSION="2.18", FI_X="1") == (
        EnvironmentResult()
    )
    result = files.check(NCCL_IB_ENABLE="1", UCX_TLS="rc", NCCL_SOCKET_IFNAME="eth0")
    assert result.wrong == ()
    wrong, named = result.doubts
    assert wrong.where == f"{SHELL}: NCCL_IB_ENABLE"
    assert named.found == "NCCL_IB_ENABLE=1, UCX_TLS=rc"  # network.interface sets NCCL_SOCKET_IFNAME
    assert "unset NCCL_IB_ENABLE UCX_TLS" in str(named)


@pytest.mark.parametrize("name", ["NCLL_DEBUG", "NCC_DEBUG", "NCCLDEBUG", "OPM_NUM_THREADS", "GLO_SOCKET_IFNAME"])
def test_a_typo_in_the_prefix_of_what_the_shell_exports(files: Files, name: str) -> None:
    misspelt, inherited = files.check(**{name: "1"}).doubts
    assert misspelt.where == f"{SHELL}: {name}"
    assert inherited.found == f"{name}=1"


def test_other_programs_variables_that_begin_nearly_like_these_are_not_named(files: Files) -> None:
    names = (
        "OMPI_MCA_btl",
        "I_MPI_ROOT",
        "RCCL_MSCCL_ENABLE",
        "UCC_TLS",
        "COMP_WORDBREAKS",
        "GI_TYPELIB_PATH",
        "CI_JOB_ID",
    )
    assert files.check(**dict.fromkeys(names, "1")).doubts == ()


def test_a_key_is_never_shown(files: Files) -> None:
    result = files.check(NCCL_PSK="hidden", NCCL_PSKK="hidden")
    assert result.doubts[-1].found == "NCCL_PSK, NCCL_PSKK"
    files.write("{NCCL_PSKK: hidden}")
    assert [problem.found for problem in files.check().wrong] == ["NCCL_PSKK: (not shown)"]
    assert "hidden" not in f"{result} {files.check()}"


def test_what_every_run_sets_is_not_inherited(files: Files) -> None:
    places = Places(Path(), Path())
    ours = node_environment(files.ladder.plan.runs[0], places, {}, Path("run.json"), "lo", 0.0)
    assert {name for name in ours if name.startswith(PREFIXES)} == {*SET_FOR_EVERY_RUN, "CUDA_VISIBLE_DEVICES"}
    assert files.check(OMP_NUM_THREADS="3") == EnvironmentResult()  # each process gets its share of the cores
    files.write(default="default: {env: {NCCL_DEBUG: WARN}}")
    assert files.check(NCCL_DEBUG="INFO").doubts == ()
    files.write(default="default: {env: {NCCL_DEBUG: WARN}}\n  other: {}")
    assert [doubt.found for doubt in files.check(NCCL_DEBUG="INFO").doubts] == ["NCCL_DEBUG=INFO"]


def test_a_contradiction_with_the_shell_is_a_doubt(files: Files) -> None:
    files.write("{NCCL_NET: IB}")
    result = files.check(NCCL_IB_DISABLE="1")
    assert result.wrong == ()
    assert any("it would find no network" in doubt.what for doubt in result.doubts)


def test_without_any_such_variable_the_file_is_not_read(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_ladder.preflight.known_variables.known_variables", None)
    monkeypatch.setattr("ddp_ladder.preflight.variables.known_variables", None)
    monkeypatch.setattr("ddp_ladder.preflight.environment.known_variables", None)
    assert files.check(PATH="/bin", HOME="/root", OMP_NUM_THREADS="1") == EnvironmentResult()
    files.write("{NCCL_NET: IB}")
    with pytest.raises(TypeError):
        files.check()


# Before a start


def start(files: Files, dry_run: bool = False) -> list[str]:
    return check_variables(files.ladder, files.sources, ["stage1"], on_nodes=False, dry_run=dry_run)


def test_a_start_is_refused_and_a_dry_run_warns(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    files.write("{NCCL_IB_ENABLE: 1, NCCL_P2P_DISABLE: 1}")
    with pytest.raises(UserError, match="NCCL never had this variable") as error:
        start(files)
    assert "for debugging" not in str(error.value)
    warnings = start(files, dry_run=True)
    assert ["never had" in warnings[0], "for debugging" in warnings[1]] == [True, True]
    files.write("{NCCL_P2P_DISABLE: 1}")
    assert ["for debugging" in warning for warning in start(files)] == [True]


def test_a_start_that_measures_nothing_is_not_checked(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write("{NCCL_IB_ENABLE: 1}")
    monkeypatch.setattr(Ladder, "measures", lambda ladder, stages: False)
    assert start(files) == []


def test_a_message_is_whole() -> None:
    assert str(found(NCCL_SOKET_IFNAME="ib0")[0].problem) == str(
        Problem(
            "here: NCCL_SOKET_IFNAME",
            "NCCL has no such variable, and would ignore it",
            'NCCL_SOKET_IFNAME: "ib0"',
            next='did you mean "NCCL_SOCKET_IFNAME"?',
        )
    )
    assert objection("0..1", "1") is None
    assert replace(Variable("X"), status="never").exists is False
