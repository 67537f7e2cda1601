"""What users type beside a climb, and their mistakes: one message, a non-zero exit, and nothing was started."""

from __future__ import annotations

import subprocess

from make_runs import write_ladder
from project_copy import EXPERIMENT, ONE_STAGE, Checkout, environment


def test_dry_run_shows_the_plan_up_to_the_stage(checkout: Checkout) -> None:
    """Also on a terminal that cannot print a character. test_second_start.py has one on results that are there."""
    workload = {**EXPERIMENT["workload"], "args": ["{batch_per_gpu}", "größe"]}
    checkout.configure(workload=workload, variants={"default": {"env": {"NCCL_SOCKET_IFNAM": "eth0"}}})
    planned = checkout.snakemake("stage2", "--dry-run", PYTHONIOENCODING="ascii:strict")
    assert planned.returncode == 0, planned.stdout
    warning, _, plan = planned.stdout.partition("The plan for site local:")
    assert warning.count("variants.default.env.NCCL_SOCKET_IFNAM: ") == 1
    assert '  next     did you mean "NCCL_SOCKET_IFNAME"?' in warning
    assert "rule " not in plan  # Snakemake's list of jobs comes with --printshellcmds
    rows = [line.split() for line in plan.splitlines() if line.startswith("stage")]
    assert ["stage1", "1x1", "1", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.08"] in rows
    assert ["stage2", "1x2", "2", "1", "(default;", "weak;", "1", "repeat)", "1", "5", "min", "0.17"] in rows
    assert not [row for row in rows if row[0] == "stage3"]
    assert "At most 0.25 process hours from here" in plan
    assert "loop.py 16 gr\\xf6\\xdfe" in plan
    assert not checkout.results.exists()


def test_compares_variants_as_typed(checkout: Checkout) -> None:
    write_ladder(checkout.results, scales=("1x1",), variants=("default", "other"))
    done = checkout.snakemake("compare")
    assert done.returncode == 0, done.stdout
    assert "At 1x1 weak, not beyond chance: other 1.0" in done.stdout
    assert "written  results/report/comparison.csv" in done.stdout
    assert "Nothing has been measured" not in done.stdout  # the summary of a climb


RANK = "import os; os.write(1, f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())\n"


def test_ejects_as_typed_and_a_script_trains_by_itself(checkout: Checkout) -> None:
    """Where there is no Slurm; slurm/test_eject_on_slurm.py has the rest."""
    checkout.without_torch(RANK, launcher="torchrun")
    done = checkout.snakemake("eject")
    assert done.returncode == 0, done.stdout
    scripts = sorted(checkout.results.glob("runs/default/weak/*/r1/job.sh"))
    assert [script.parts[-3] for script in scripts] == ["1x1", "1x2", "2x1"]
    assert "3 scripts, none of them started" in done.stdout
    assert "    sbatch results/runs/default/weak/2x1/r1/job.sh\n" in done.stdout
    command = "bash results/runs/default/weak/1x2/r1/job.sh here"  # 2x1 needs Slurm
    assert f"    {command}\n" in done.stdout
    assert "Nothing has been measured" not in done.stdout
    trained = subprocess.run(
        command.split(), cwd=checkout.path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert trained.returncode == 0, trained.stderr
    assert sorted(trained.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert not list(checkout.results.glob("**/run.json"))


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
    checkout.configure(workload=workload, stages=ONE_STAGE)
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
