"""The shipped experiment end to end on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import report
import yaml
from ddp_ladder.records.witness import missing_witnesses
from project_copy import ANY_EFFICIENCY, Checkout

Climbed = tuple[Checkout, subprocess.CompletedProcess[str]]


@pytest.fixture
def checkout(shipped: Climbed) -> Checkout:
    """The one of the module, after its climb."""
    return shipped[0]


@pytest.fixture(scope="module")
def shipped(module_checkout: Callable[[], Checkout]) -> Climbed:
    """The shipped experiment, climbed with fewer epochs and with gates that a busy machine passes as well."""
    checkout = module_checkout()
    file = checkout.path / "config/config.yaml"
    config = yaml.safe_load(file.read_text())
    for stage in ("stage2", "stage3"):
        config["stages"][stage]["gate"] = {"min_efficiency": 0.01, "max_efficiency": ANY_EFFICIENCY}
    args = config["workload"]["args"]
    args[args.index("--epochs") + 1] = 10
    config["repeats"] = 1
    config["preflight"] = {"enabled": False}  # its tests switch it on
    config["monitor"] = {"every_s": 0.25}  # so that the shortest training has samples
    file.write_text(yaml.safe_dump(config))
    return checkout, checkout.snakemake("--profile", "profiles/local")


def test_climbs_to_the_top_and_says_what_it_found(shipped: Climbed) -> None:
    _, climbed = shipped
    assert climbed.returncode == 0, climbed.stdout
    lines = climbed.stdout.splitlines()
    doubt = ", uncertain: this is an estimate from one repeat"
    # Beside other tests slow steps may recur.
    efficiency = r" \dx\d efficiency [\d.]+ %(, samples / time)?,"
    gates = [re.sub(efficiency, "", line) for line in lines if line.startswith("gate ")]
    assert [line.partition(";")[0] for line in gates] == [
        *("gate stage1: open", f"gate stage2: open{doubt}", f"gate stage3: open{doubt}")
    ]
    table = [line.split() for line in lines if re.match(r"\dx\d ", line)]
    assert [row[0] for row in table] == ["1x1", "1x2", "2x1"]
    assert "results/report/index.html" in climbed.stdout


def test_learns_the_digits_at_every_scale(checkout: Checkout) -> None:
    logs = list(checkout.results.glob("runs/*/*/*/r*/train.log"))
    assert len(logs) == 4
    accuracies = {log: float(re.findall(r"held-out accuracy ([\d.]+) %", log.read_text())[-1]) for log in logs}
    assert min(accuracies.values()) > 95, accuracies
    # 360 held-out digits: the noise of one run is 0.8 points.
    assert max(accuracies.values()) - min(accuracies.values()) < 3, accuracies


def test_counts_samples_and_not_padding(checkout: Checkout) -> None:
    """1,437 digits: two ranks draw 719 each, one of them a repetition."""
    args = checkout.record("default/weak/1x1/r1")["spec"]["args"]
    epochs = int(args[args.index("--epochs") + 1])
    for scale, padding in (("1x1", 0), ("1x2", 1), ("2x1", 1)):
        ranks = checkout.record(f"default/weak/{scale}/r1")["ranks"]
        assert sum(rank["samples"] for rank in ranks) == 1437 * epochs
        assert sum(rank["padding_samples"] for rank in ranks) == padding * epochs


def test_one_run_before_the_others_shows_which_batches_are_trained_on(shipped: Climbed) -> None:
    checkout, climbed = shipped
    seen = json.loads((checkout.results / "witness/default.json").read_text())
    trains, validates = seen["places"]
    assert (seen["status"], trains["trained"], validates["trained"]) == ("witnessed", trains["batches"], 0)
    assert 2 * 1437 < trains["samples"] < 9 * 1437
    assert [*validates["sizes"]] == ["360"]  # it ends about a second after the second pass
    for run in ("default/weak/1x1/r1", "plain/weak/1x1/r1", "default/weak/1x2/r1", "default/weak/2x1/r1"):
        told = checkout.record(run)["witness"]
        assert (told["status"], told["places"]) == ("witnessed", seen["places"])
    first, *_, last = re.findall(r"^stage1 1x1: witness of default, plain: (\w+)", climbed.stdout, re.MULTILINE)
    assert (first, last) == ("follows", "witnessed")
    with contextlib.chdir(checkout.path):
        assert missing_witnesses(checkout.planned, checkout.results) == ()


def test_every_run_has_a_rendezvous_of_its_own(checkout: Checkout) -> None:
    met = [json.loads(file.read_text())["rendezvous"]["id"] for file in checkout.results.glob("runs/**/run.json")]
    assert len({*met}) == len(met) == 4


def test_the_script_alone_is_a_baseline_too(shipped: Climbed) -> None:
    """The same digits, with no process group; the two baselines differ by what DDP costs."""
    checkout, climbed = shipped
    plain, launched = (checkout.record(f"{variant}/weak/1x1/r1") for variant in ("plain", "default"))
    assert (plain["status"], plain["world"]["backend"], launched["world"]["backend"]) == ("ok", None, "gloo")
    assert plain["ranks"][0]["samples"] == launched["ranks"][0]["samples"]
    assert "% against the script without DDP)" in climbed.stdout.replace("\u00a0", " ")
    table = pd.read_csv(checkout.results / "report/scaling.csv").set_index(["variant", "stage"])
    rates, against = table["samples_per_s"], table["efficiency_plain"]
    for stage, ranks in (("stage1", 1), ("stage2", 2), ("stage3", 2)):
        ratio = rates["default", stage] / rates["plain", "stage1"] / ranks
        assert against["default", stage] == pytest.approx(ratio, rel=1e-4)


def test_the_start_up_is_split_and_adds_up(checkout: Checkout) -> None:
    table = pd.read_csv(checkout.results / "report/scaling.csv").set_index(["variant", "stage"])
    names = ["spawn", "import_torch", "process_group", "script", "first_step"]
    parts = table[[f"startup_{name}_s" for name in names]]
    assert parts.sum(axis=1).tolist() == pytest.approx(table["startup_s"].tolist(), abs=0.01)
    assert (parts.isna().sum().to_dict(), table["startup_compile_s"].tolist()) == (
        {f"startup_{name}_s": int(name == "process_group") for name in names},  # the plain baseline has none
        [0] * 4,
    )
    assert (parts.fillna(1) > 0).all(axis=None)
    # torchrun imports torch itself before it starts a rank.
    spawn_s = table["startup_spawn_s"]
    assert spawn_s["default", "stage1"] > spawn_s["plain", "stage1"]


def test_figures_are_possible(checkout: Checkout) -> None:
    for file in checkout.results.glob("runs/*/*/*/r*/record.json"):
        record = json.loads(file.read_text())
        timing, throughput, seen = (record[part] for part in ("timing", "throughput", "fingerprint"))
        size, rank = record["spec"]["nodes"] * record["spec"]["gpus_per_node"], record["ranks"][0]
        assert 0 < timing["step_time_s_p5"] < timing["step_time_s"]
        assert timing["step_time_s_p5"] < timing["step_time_s_p95"]
        samples, least_s = rank["samples"] * size, rank["steps"] * timing["step_time_s_p5"]
        assert least_s + timing["startup_s"] < timing["wall_s"]
        assert samples / timing["wall_s"] < throughput["samples_per_s_end_to_end"] < samples / least_s
        assert seen["global_batch"] == size * seen["batch_per_gpu"]
        assert seen["gradient_bytes"] == (4 * rank["parameters"]["count"] if seen["bucket_bytes"] else None)
        assert (record["spec"]["variant"] == "plain") == (seen["bucket_bytes"] is None)
        assert seen["threads"] <= seen["cpus"]


def test_the_report_shows_what_the_runs_used_also_from_a_copy(checkout: Checkout, tmp_path: Path) -> None:
    copy = shutil.copytree(checkout.results, tmp_path / "copied")
    shutil.rmtree(copy / "report")
    assert report.main(["--results", str(copy)]) == 0
    for results in (checkout.results, copy):
        page = (results / "report/index.html").read_text()
        _, _, section = page.partition(">What the runs used</h2>")
        assert re.findall(r'alt="What (\S+) weak, r1 used over time\.', section) == ["1x1", "1x2", "2x1"]
        assert "GPU busy" not in section.partition("<h2")[0]
        for scale in ("1x1", "1x2", "2x1"):
            drawn = (results / f"report/usage/usage_default_weak_{scale}_r1.svg").read_text()
            for text in ("CPU, %", "Network", "Host memory, GB", "start-up", "warm-up", "busiest"):
                assert text in drawn, text
        assert "## What the runs used" in (results / "report/scaling.md").read_text()
        table = pd.read_csv(results / "report/scaling.csv")
        assert table["cpu_fraction"].between(0.1, 1).all()
        assert table["gpu_busy_fraction"].isna().all()


def test_each_stage_was_forecast_before_it_began_and_compared_after(shipped: Climbed) -> None:
    checkout, climbed = shipped
    lines = climbed.stdout.splitlines()
    for below, stage, scale in (("stage1", "stage2", "1x2"), ("stage2", "stage3", "2x1")):
        forecast = rf"{stage} {scale}: (?:forecast|at most) "
        told = re.compile(rf"gate {below}: |{forecast}|gate {stage}: ")
        said = [line.partition(": ")[0] for line in lines if told.match(line)]
        assert said == [f"gate {below}", f"{stage} {scale}", f"gate {stage}"]
        (one,) = json.loads((checkout.results / f"forecast/{stage}.json").read_text())["series"]
        measured = checkout.record(f"default/weak/{scale}/r1")["throughput"]["samples_per_s"]
        assert 0.1 < (one["samples_per_s"] or one["samples_per_s_bound"]) / measured < 10
        assert (one["samples_per_s"] is None) or below != "stage1"
        wall_s = checkout.record(f"default/weak/{scale}/r1")["timing"]["wall_s"]
        assert 0.1 < one["run_s"] / wall_s < 10
        assert [line for line in lines if line.startswith(f"forecast {scale}: ") and "; measured " in line]
    text = (checkout.results / "report/scaling.md").read_text()
    assert "| scale | forecast | measured since |" in text
