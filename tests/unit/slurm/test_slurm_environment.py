from __future__ import annotations

import pytest
from ddp_ladder.slurm.query import question_environment, set_aside

KEPT = {
    "PATH": "/bin",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JWT": "secret",
    "SLURMD_NODENAME": "n1",
    "SLURMISH": "x",
}
DEFAULTS = dict.fromkeys(
    "SACCT_FORMAT SACCTMGR_X SALLOC_QOS SBATCH_SIGNAL SBATCH_TIMELIMIT SCANCEL_NAME SCONTROL_LOCAL SINFO_STATES "
    "SLURM_BITSTR_LEN SLURM_CLUSTERS SLURM_CPU_BIND SLURM_TIME_FORMAT SQUEUE_FORMAT SQUEUE_STATES SRUN_DEBUG".split(),
    "7",
)


def test_no_default_of_slurms_commands_reaches_a_question() -> None:
    assert question_environment({**KEPT, **DEFAULTS, "SLURM_JOB_ID": "42", "SLURM_NTASKS": "3"}) == KEPT


def test_who_submits_says_what_it_leaves_out() -> None:
    environment = {**KEPT, **DEFAULTS}
    said = set_aside(environment)
    assert environment == KEPT
    assert said.startswith(f"set aside: {', '.join(sorted(DEFAULTS))} (")
    assert "cluster.yaml" in said
    assert "\n" not in said
    assert set_aside(environment) == ""


@pytest.mark.parametrize("defaults", [{}, {"SBATCH_TIMELIMIT": "0:01"}], ids=["", "SBATCH_TIMELIMIT, "])
def test_in_the_shell_of_a_job_that_job_is_named_and_not_all_that_it_left(defaults: dict[str, str]) -> None:
    environment = {**KEPT, "SLURM_JOB_ID": "42", "SLURM_NTASKS": "3", **defaults}
    said = set_aside(environment)
    named = "".join(f"{name}, " for name in defaults)
    assert said.startswith(f"set aside: {named}SLURM_* of job 42, in whose shell this was started (")
    assert environment == KEPT
