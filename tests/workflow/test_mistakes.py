"""A user's mistake, seen from the terminal: one message, a non-zero exit, no traceback, and nothing was started."""

from __future__ import annotations

from project_copy import EXPERIMENT, Checkout


def test_mistake_is_reported_before_anything_starts(checkout: Checkout) -> None:
    """The unit tests of settings have the others."""
    file = checkout.path / "config/config.yaml"
    before = file.read_text()
    assert "repeats: 1" in before
    file.write_text(before.replace("repeats: 1", "repeat: 1", 1))
    done = checkout.snakemake("--cores", "all")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert 'did you mean "repeats"?' in done.stdout
    assert "config/config.yaml" in done.stdout
    assert "  next     " in done.stdout
    assert not checkout.results.exists()


def test_data_that_are_missing_are_reported_before_any_job(checkout: Checkout) -> None:
    """A dry run shows the plan all the same: its data may be on another machine."""
    workload = {**EXPERIMENT["workload"], "data_dir": "data/mine"}
    checkout.configure(workload=workload, stages={"stage1": {"scales": ["1x1"], "runtime": 5}})
    missing = "config/config.yaml: workload.data_dir: the training data are missing\n"
    planned = checkout.snakemake("--dry-run")
    assert planned.returncode == 0, planned.stdout
    assert f"warning: {missing}" in planned.stdout
    assert "\nstage1  1x1 " in planned.stdout
    refused = checkout.snakemake("stage1", "--profile", "profiles/local")
    assert (refused.returncode, missing in refused.stdout) == (1, True), refused.stdout
    assert refused.stdout.splitlines()[-1].startswith("  next     correct the path, or name in `workload.prepare`")
    assert "Traceback" not in refused.stdout
    assert not (checkout.results / "runs").exists()
