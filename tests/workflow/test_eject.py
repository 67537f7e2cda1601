"""`snakemake eject` and its scripts where there is no Slurm; slurm/test_eject_on_slurm.py has the rest."""

from __future__ import annotations

import subprocess

from project_copy import Checkout, environment

RANK = "import os; os.write(1, f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\".encode())\n"


def test_ejects_as_typed_and_a_script_trains_by_itself(checkout: Checkout) -> None:
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
