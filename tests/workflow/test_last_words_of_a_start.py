"""How a start that fails ends in the terminal: with the ladder's box, and Snakemake's report in its log file alone.

An error that is none of ours to tell stays where Snakemake prints it.
"""

from __future__ import annotations

import re

from project_copy import EXPERIMENT, NO_TORCH, Checkout, last_box

LOCAL = ("--profile", "profiles/local")
SNAKEMAKES = re.compile(
    r"RuleException|Error in rule|CalledProcessError|exited with non-zero|Shutting down|Exiting because"
    r"|Complete log|Elapsed time|WorkflowError"
)
PREPARE = r"""
import sys
print("\x1b[31mtrying\x1b[0m\nfetched 10 %\rfetched 20 %", flush=True)
sys.exit("no route to host: example.org")
"""
SLOWER_TOGETHER = NO_TORCH.replace("0.001 +", "0.001 * int(os.environ['WORLD_SIZE']) +")


def snakemakes_log(checkout: Checkout) -> str:
    """The latest one."""
    return max((checkout.path / ".snakemake/log").glob("*.log")).read_text()


def test_a_failed_preparation_is_reported_in_the_box(checkout: Checkout) -> None:
    (checkout.path / "prepare.py").write_text(PREPARE)
    workload = {**EXPERIMENT["workload"], "data_dir": "mine", "prepare": ["prepare.py", "{data_dir}"]}
    checkout.configure(workload=workload)
    checkout.without_torch()
    done = checkout.snakemake(*LOCAL)
    assert done.returncode == 1
    assert not SNAKEMAKES.search(done.stdout), done.stdout
    box = last_box(done.stdout)
    assert box["verdict"] == "workload.prepare failed: exit code 1"
    assert box["printed"] == "trying fetched 10 % fetched 20 % no route to host: example.org"
    assert box["log"].startswith("results/logs/prepare_data.log")
    log = snakemakes_log(checkout)
    assert "RuleException" in log
    assert "Error in rule prepare_data" in log
    assert "Complete log" in log


def test_a_closed_gate_has_the_last_word(checkout: Checkout) -> None:
    stages = EXPERIMENT["stages"]
    checkout.configure(stages={**stages, "stage2": {**stages["stage2"], "gate": {"min_efficiency": 0.9}}})
    checkout.without_torch(SLOWER_TOGETHER)
    done = checkout.snakemake("stage2", *LOCAL)
    assert done.returncode == 1
    assert not SNAKEMAKES.search(done.stdout), done.stdout
    box = last_box(done.stdout)
    doubt = " on the estimate, uncertain"  # one repeat
    assert box["verdict"].endswith(f"the gate of stage2 is closed{doubt}; nothing above it was started")
    assert "stages.stage2.gate" in box["next"]
    assert re.search(r"^log +\.snakemake/log/\S+\.log$", done.stdout, re.MULTILINE)
    assert "Error in rule gate" in snakemakes_log(checkout)
    assert "Job stats" not in done.stdout
