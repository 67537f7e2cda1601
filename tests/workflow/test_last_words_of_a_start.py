"""How a start that fails ends in the terminal: with the ladder's box, and Snakemake's report in its log file alone.

An error that is none of ours to tell stays where Snakemake prints it. test_climb.py has a gate that closes.
"""

from __future__ import annotations

from project_copy import EXPERIMENT, SNAKEMAKES_REPORT, Checkout, last_box

LOCAL = ("--profile", "profiles/local")
PREPARE = r"""
import sys
print("\x1b[31mtrying\x1b[0m\nfetched 10 %\rfetched 20 %", flush=True)
sys.exit("no route to host: example.org")
"""


def test_a_failed_preparation_is_reported_in_the_box(checkout: Checkout) -> None:
    (checkout.path / "prepare.py").write_text(PREPARE)
    workload = {**EXPERIMENT["workload"], "data_dir": "mine", "prepare": ["prepare.py", "{data_dir}"]}
    checkout.configure(workload=workload)
    checkout.without_torch()
    done = checkout.snakemake(*LOCAL)
    assert done.returncode == 1
    assert not SNAKEMAKES_REPORT.search(done.stdout), done.stdout
    box = last_box(done.stdout)
    assert box["verdict"] == "workload.prepare failed: exit code 1"
    assert box["printed"] == "trying fetched 10 % fetched 20 % no route to host: example.org"
    assert box["log"].startswith("results/logs/prepare_data.log")
    log = checkout.snakemakes_log
    assert "RuleException" in log
    assert "Error in rule prepare_data" in log
    assert "Complete log" in log
