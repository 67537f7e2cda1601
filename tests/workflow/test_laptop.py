"""The experiment of a guide for a cluster, climbed on this machine as its own comment says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

import yaml
from project_copy import Checkout

EXPERIMENT = "config/experiments/ethernet6-mlp.yaml"


def test_a_guides_experiment_climbs_on_a_laptop(module_checkout: Callable[[], Checkout]) -> None:
    """The one that asks for NCCL: that variant and its first two stages, of which the guide has no second."""
    checkout = module_checkout()
    file = checkout.path / EXPERIMENT
    command = re.search(r"On a laptop, scaled down:\n# +snakemake (.+)", file.read_text())
    assert command is not None
    config = yaml.safe_load(file.read_text())
    config["variants"] = {"default": config["variants"]["default"]}
    assert config["variants"]["default"]["network"] == {"backend": "nccl"}
    config["measure"]["plain_baseline"] = False
    config["preflight"] = {"enabled": False}
    file.write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake("stage2", *shlex.split(command[1]))
    assert climbed.returncode == 0, climbed.stdout
    records = [json.loads(file.read_text()) for file in checkout.path.glob("results/*/runs/*/*/*/r1/record.json")]
    seen = {(record["spec"]["variant"], record["world"]["size"], record["world"]["backend"]) for record in records}
    assert seen == {("default", 1, "gloo"), ("default", 2, "gloo")}
    assert {rank["ended_by"] for record in records for rank in record["ranks"]} == {"max_steps"}
