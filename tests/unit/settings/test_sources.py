from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.common.files import OWN
from ddp_ladder.common.messages import UserError
from ddp_ladder.settings.load import (
    CLUSTER,
    CONFIG,
    Sources,
    module_sources,
    read_sources,
)


def test_a_config_file_takes_the_place_of_the_shipped_one() -> None:
    assert read_sources(["mine.yaml"], {}).config == Path("mine.yaml")
    assert read_sources([], {}) == Sources(Path("config/config.yaml"), Path("config/cluster.yaml"), {})
    given = {"experiment": "mine.yaml", "cluster": "here.yaml", "repeats": 1}
    assert read_sources([], given) == Sources(Path("mine.yaml"), Path("here.yaml"), {"repeats": 1})
    assert "cluster" in given
    home = read_sources([], {"experiment": "~/mine.yaml", "cluster": "~/site.yaml"})
    assert (home.config, home.cluster) == (Path.home() / "mine.yaml", Path.home() / "site.yaml")


def test_an_overlay_is_laid_over_the_experiment_and_the_command_line_over_both(tmp_path: Path) -> None:
    config, cluster, overlay = (tmp_path / f"{name}.yaml" for name in ("config", "cluster", "overlay"))
    config.write_text(
        f"workload: {{script: {__file__}, batch_per_gpu: 8, args: [--a, 1e-3], env: {{B: 2}}}}\n"
        "repeats: 5\nstages: {stage1: {}}\n"
    )
    cluster.write_text("site: here\nnode: {gpus: 2, device: cpu, cpus: 2}\n")
    overlay.write_text(
        "workload: {batch_per_gpu: 4, args: [--a, 1.0e-4, ~/b], env: {C: 3.0}}\nstages: {stage2: {scales: [1x2]}}\n"
        "repeats: 2\nvariants: {default: {}, x: {args: [1e-5]}}\n"
    )
    given = {"cluster": str(cluster), "overlay": str(overlay), "repeats": 1, "variants": {"x": {"reason": "why"}}}
    experiment = read_sources([config], given).load().experiment
    workload = experiment.workload
    assert (workload.batch_per_gpu, workload.env) == (4, {"B": "2", "C": "3.0"})
    assert workload.args == ("--a", "1.0e-4", str(Path.home() / "b"))
    assert (experiment.repeats.most, [str(scale) for scale in experiment.scales]) == (1, ["1x1", "1x2"])
    variants = experiment.variants.values()
    assert [(variant.args, variant.reason) for variant in variants] == [((), None), (("1e-5",), "why")]


def test_a_mistake_in_an_overlay_is_named_with_its_own_file_and_line(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("measure:\n  max_step: 3\nworkload: {lr: x, args: [{}]}\n")
    with pytest.raises(UserError) as caught:
        read_sources([], {"overlay": str(overlay), "measure": {"min_steps": 0}}).load()
    said = str(caught.value)
    for place in ("2: measure.max_step: unknown key", "3: workload.lr: ", "3: workload.args[0]: "):
        assert f"{overlay}, line {place}" in said
    assert "--config: measure.min_steps: " in said
    with pytest.raises(UserError, match=r"nowhere.yaml: there is no such file"):
        read_sources([], {"overlay": "nowhere.yaml"}).load()


def test_what_is_not_in_the_working_directory_is_looked_for_in_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = Path("config/sites/vega.yaml")
    assert read_sources([], {"cluster": str(site)}) == Sources(OWN / CONFIG, OWN / site, {})


def test_the_config_of_a_module() -> None:
    assert module_sources({}) == Sources(CONFIG, CLUSTER, {})
    assert module_sources({"repeats": 1, "cluster": "c.yaml"}) == Sources(CONFIG, Path("c.yaml"), {"repeats": 1})
    workload = {"workload": {"script": "train.py"}}
    assert module_sources(workload) == Sources(None, CLUSTER, workload)
    assert module_sources({"experiment": "e.yaml", **workload}) == Sources(Path("e.yaml"), CLUSTER, workload)
