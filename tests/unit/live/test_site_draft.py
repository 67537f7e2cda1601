"""The draft of cluster.yaml from what Slurm 22.05.8 printed on the test cluster (tests/unit/slurm_output)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import new_site
import pytest
import yaml
from ddp_ladder.common.messages import UserError
from ddp_ladder.live.doctor import Cluster, cluster_of, draft
from ddp_ladder.settings.keys import Site
from ddp_ladder.settings.load import CLUSTER, CONFIG, load_settings
from ddp_ladder.slurm.query import records
from make_files import put_on_path, write_programs
from project_copy import ROOT
from slurm_captured import CAPTURED, NODES, PARTITIONS, shows

GPUS_IN_DEBUG = "\n".join(
    line.replace(*(("Partitions=gpu,", "Partitions=") if "debug" in line else ("Gres=gpu:a100:4", "Gres=(null)")))
    for line in NODES.splitlines()
)


def captured(*partitions: str, nodes: str = NODES) -> Cluster:
    """The cluster of the captured output, with these partitions alone."""
    own = {name: PARTITIONS[name] for name in partitions or PARTITIONS}
    return cluster_of("ladder", own, list(records(nodes, "NodeName")))


def loaded(cluster: Cluster, directory: Path) -> Site:
    """The draft as the ladder reads it, with the shipped experiment."""
    (directory / "site.yaml").write_text(draft(cluster, directory / "site.yaml"))
    return load_settings(CONFIG, directory / "site.yaml").site


def test_the_draft_of_the_captured_cluster(tmp_path: Path) -> None:
    site = loaded(captured(), tmp_path)
    assert (site.site, site.slurm.partition, site.slurm.account) == ("ladder", "gpu", None)
    assert site.node.model_dump() == {"gpus": 4, "device": "cuda", "cpus": 8, "gres": "gpu:a100", "memory_mb": 16000}
    text = (tmp_path / "site.yaml").read_text()
    listed = [line.split(":")[0].removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    assert listed[:3] == ["gpu", "debug", "picky"]  # those that are closed, hidden or for root come last
    assert set(listed) == set(PARTITIONS)
    assert "#   gpu: 6 nodes with 4 GPUs (gpu:a100), 8 CPUs and 16000 MB; default, MaxTime=1-00:00:00\n" in text
    assert "; MaxNodes=2, " not in text.partition("picky")[0]
    assert all(len(line) <= 200 for line in text.splitlines())


@pytest.mark.parametrize(
    ("cluster", "partition", "node"),
    [
        # What a job of the partition may have of a node, not what the node has.
        (captured("picky"), "picky", {"gpus": 4, "device": "cuda", "cpus": 6, "gres": "gpu:a100", "memory_mb": 8000}),
        # Without GPUs: two CPU processes.
        (
            captured("gpu", nodes=NODES.replace("Gres=gpu:a100:4", "Gres=(null)")), "gpu",
            {"gpus": 2, "device": "cpu", "cpus": 8, "gres": None, "memory_mb": 16000},
        ),
        # As sites with Slurm 23 and sockets print it; of several types that of most GPUs.
        (
            captured("gpu", nodes=NODES.replace("gpu:a100:4", "gpu:nvidia_a100-80gb:2(S:0),gpu:h100:7(S:1),nvme:1")),
            "gpu", {"gpus": 7, "device": "cuda", "cpus": 8, "gres": "gpu:h100", "memory_mb": 16000},
        ),
        # The default partition has no GPUs, so another one is chosen.
        (
            captured("gpu", "debug", nodes=GPUS_IN_DEBUG),
            "debug", {"gpus": 4, "device": "cuda", "cpus": 8, "gres": "gpu:a100", "memory_mb": 16000},
        ),
    ],
)  # fmt: skip
def test_other_clusters(cluster: Cluster, partition: str, node: dict[str, Any], tmp_path: Path) -> None:
    site = loaded(cluster, tmp_path)
    assert (site.slurm.partition, site.node.model_dump()) == (partition, node)


def test_of_mig_slices_one_is_described_with_its_share(tmp_path: Path) -> None:
    text = draft(
        captured("gpu", nodes=NODES.replace("gpu:a100:4", "gpu:a100_1g.5gb:14(S:0-1)")), tmp_path / "site.yaml"
    )
    node = {"gpus": 1, "device": "cuda", "gres": "gpu:a100_1g.5gb", "cpus": 1, "memory_mb": 1142}
    assert yaml.safe_load(text)["node"] == node
    assert "  # One of its 14 MIG slices: a process sees one, so scales such as 1x2 cannot work.\n  gpus: 1\n" in text


def test_without_nodes_there_is_nothing_to_draft() -> None:
    with pytest.raises(UserError, match="no partition has nodes"):
        captured(nodes="")


@pytest.mark.parametrize(
    ("shown", "instead"),
    [("RealMemory=16000", "RealMemory=0"), ("Gres=gpu:a100:4", f"Gres=gpu:a100:4,gpu:b:{'9' * 5000}")],
)
def test_what_slurm_does_not_know_or_cannot_mean_is_not_in_the_draft(shown: str, instead: str, tmp_path: Path) -> None:
    site = loaded(captured("gpu", nodes=NODES.replace(shown, instead)), tmp_path)
    assert (site.node.gpus, site.node.memory_mb) == (4, None if "Mem" in shown else 16000)


# Where it is written


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's config, on a machine with the captured Slurm."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    named = "case $* in *config) echo 'ClusterName             = vega';; esac"
    put_on_path(monkeypatch, tmp_path, scontrol=f"{named}\n{shows()}")
    return tmp_path


def drafted(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert new_site.main([*arguments]) == 0
    return capsys.readouterr().out


def test_the_shipped_site_is_replaced_and_a_file_that_someone_wrote_is_not(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"written: {CLUSTER}\n" in drafted(capsys)
    assert "partition: gpu" in CLUSTER.read_text()
    assert f"nothing to write: {CLUSTER} is this draft already" in drafted(capsys)

    mine = CLUSTER.read_text().replace("account: null", "account: mine")
    CLUSTER.write_text(mine)
    ready_made = Path("config/sites/vega.yaml").read_text()
    printed = drafted(capsys)
    assert (CLUSTER.read_text(), Path("config/sites/vega.yaml").read_text()) == (mine, ready_made)
    compare = "diff config/cluster.yaml config/sites/vega-2.yaml"
    assert f"kept as it is: config/cluster.yaml (to compare: {compare})" in printed
    assert "written: config/sites/vega-2.yaml" in printed
    assert "snakemake doctor --config cluster=config/sites/vega-2.yaml\n" in printed
    assert "nothing to write: config/sites/vega-2.yaml is this draft already" in drafted(capsys)
    load_settings(CONFIG, Path("config/sites/vega-2.yaml"))


def test_a_draft_that_the_ladder_refuses_is_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "\n".join(line.replace("gpu,", "a#b,") for line in NODES.splitlines())
    (here / "odd").write_text("PartitionName=a#b State=UP Default=YES MaxTime=UNLIMITED\n")
    (here / "nodes").write_text(odd)
    write_programs(here, scontrol=shows(here / "nodes", here / "odd"))
    shipped = CLUSTER.read_text()
    assert new_site.main([]) == 1
    told = capsys.readouterr().err
    assert "slurm.partition: nothing is written: Slurm shows a value that cluster.yaml cannot hold, not in the" in told
    assert '"a#b"' in told
    assert CLUSTER.read_text() == shipped


def test_a_chosen_partition_whose_nodes_are_all_down_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning" not in drafted(capsys)
    nodes = "".join(f"{row} State=DOWN*+DRAIN\n" for row in NODES.replace("State=", "Was=").splitlines())
    (here / "down.txt").write_text(nodes)
    scontrol = here / "scontrol"
    scontrol.write_text(scontrol.read_text().replace(f"{CAPTURED}/node.txt", f"{here}/down.txt"))
    assert "warning: no node of it starts a job now: node1 (DOWN*+DRAIN), " in drafted(capsys)


def test_without_slurm_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert new_site.main(["--out", str(tmp_path / "new.yaml")]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Slurm: a draft of cluster.yaml needs the answers of Slurm"
    assert told[-1].startswith("  next     try `sinfo` on this machine")
    assert not (tmp_path / "new.yaml").exists()
