"""Several scales of a stage on one machine: one after the other, and nodes that are called simulated."""

from __future__ import annotations

import json

from project_copy import Checkout


def test_scales_never_run_side_by_side_and_simulated_nodes_are_called_so(checkout: Checkout) -> None:
    """Whatever the site is called: it is Snakemake that starts them here."""
    checkout.configure(
        stages={
            "stage1": {"scales": ["1x1"], "runtime": 5},
            "stage3": {"scales": ["3x1", "2x1"], "runtime": 5},
        }
    )
    checkout.site(site="vega")
    checkout.without_torch()
    printed = checkout.snakemake("--cores", "all").stdout
    runs = [checkout.results / f"runs/default/weak/{scale}/r1" for scale in ("1x1", "3x1", "2x1")]
    times = [json.loads((run / "ended.json").read_text()) for run in runs]
    times_s = [each[key] for each in times for key in ("started_at_s", "ended_at_s")]
    assert times_s == sorted(times_s), printed
    simulated = "simulated nodes: 3 agents on 1 host"
    assert "Stage 3 (simulated nodes: 2 agents on 1 host) reached" in printed
    assert "2x1: simulated nodes: 2 agents on 1 host" in " ".join(printed.split())
    assert f"3x1: {simulated}" in " ".join(printed.split())
    for name in ("index.html", "scaling.md", "scaling.csv"):
        assert simulated in (checkout.results / "report" / name).read_text(), name
    record = checkout.record("default/weak/3x1/r1")
    assert len(set(record["world"]["nodes"])) == len(record["world"]["hosts"]) == 1
    assert [rank["node_rank"] for rank in record["ranks"]] == [0, 1, 2]
    assert "simulated" not in str(checkout.record("default/weak/1x1/r1"))
