from __future__ import annotations

import json
from pathlib import Path

import pytest
from ddp_ladder.messages import UserError
from ddp_ladder.snakemake_settings import CLUSTER, CONFIG, Sources, read_sources, runs_no_training, stages_up_to
from make_records import make_plan_of, make_specs


def test_without_options_the_shipped_files_count() -> None:
    assert read_sources([], {}) == Sources(CONFIG, CLUSTER, {})
    assert (Path("config/config.yaml"), Path("config/cluster.yaml")) == (CONFIG, CLUSTER)


def test_a_config_file_takes_the_place_of_the_shipped_one() -> None:
    assert read_sources(["mine.yaml"], {}).config == Path("mine.yaml")
    assert read_sources([], {"experiment": "mine.yaml", "repeats": 1}) == Sources(
        Path("mine.yaml"), CLUSTER, {"repeats": 1}
    )
    home = read_sources([], {"experiment": "~/mine.yaml", "cluster": "~/site.yaml"})
    assert (home.config, home.cluster) == (Path.home() / "mine.yaml", Path.home() / "site.yaml")


@pytest.mark.parametrize(
    ("files", "overrides"), [(["a.yaml", Path("b.yaml")], {}), (["a.yaml"], {"experiment": "b.yaml"})]
)
def test_two_config_files_are_refused(files: list[str | Path], overrides: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        read_sources(files, overrides)
    assert str(caught.value) == (
        "--configfile and --config experiment: more than one experiment\n"
        "  found    a.yaml b.yaml\n"
        "  allowed  one file, which takes the place of config/config.yaml\n"
        "  next     start snakemake once per experiment, each with `results` of its own"
    )


def test_the_site_comes_from_config_cluster_and_is_no_override() -> None:
    given = {"cluster": "sites/mine.yaml", "repeats": 1, "results": "r"}
    sources = read_sources([], given)
    assert sources.cluster == Path("sites/mine.yaml")
    assert sources.overrides == {"repeats": 1, "results": "r"}
    assert "cluster" in given


def test_overrides_travel_as_json_in_one_order() -> None:
    one = read_sources([], {"repeats": 1, "modes": ["weak"]}).overrides_json
    other = read_sources([], {"modes": ["weak"], "repeats": 1}).overrides_json
    assert one == other
    assert json.loads(one) == {"repeats": 1, "modes": ["weak"]}


def test_overrides_reach_the_settings(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    config, cluster = tmp_path / "config.yaml", tmp_path / "cluster.yaml"
    script = tmp_path / "train.py"
    config.write_text(f"workload: {{script: {script}, batch_per_gpu: 8}}\nstages: {{stage1: {{}}}}\n")
    cluster.write_text("site: here\nnode: {gpus: 1, device: cpu, cpus: 1}\n")
    sources = read_sources([config], {"cluster": str(cluster), "repeats": 9})
    assert sources.load().experiment.repeats == 9
    with pytest.raises(UserError, match="repeets"):
        Sources(config, cluster, {"repeets": 9}).load()


def test_stages_up_to() -> None:
    plan = make_plan_of(make_specs(("1x1", "2x1")))
    assert stages_up_to(plan, None, CONFIG) == ("stage1", "stage3")
    assert stages_up_to(plan, "stage1", CONFIG) == ("stage1",)
    assert stages_up_to(plan, "stage3", CONFIG) == ("stage1", "stage3")
    with pytest.raises(UserError) as caught:
        stages_up_to(plan, "stage2", CONFIG)
    assert str(caught.value) == (
        "config/config.yaml: stages.stage2: this experiment has no stage2\n"
        "  allowed  stage1, stage3\n"
        "  next     add stages.stage2 to the file, or name another stage"
    )


def test_targets_that_run_no_training() -> None:
    assert runs_no_training(["doctor"])
    assert runs_no_training(["eject"])
    assert runs_no_training(["report", "--profile", "profiles/local"])
    assert not runs_no_training(["stage2", "--cores", "all"])
    assert not runs_no_training([])
