"""Make the reports of agents whose ranks make no step."""

from __future__ import annotations

from typing import Any

from ddp_ladder.records.raw_models import AgentStall, RankStall
from ddp_ladder.settings.keys import Hang

BOUNDS = Hang(times_median_step=10.0, at_least_s=60.0, first_step_s=1800.0)


def rank_stall(rank: int, stack: str | None, **changes: Any) -> RankStall:
    """Return a rank that is stuck in its 13th step, with what its stack shows; ``changes`` are its fields."""
    usual = {"stuck": True, "process": "alive", "pid": 100 + rank, "phase": "training", "steps": 12, "step_s": 0.25}
    usual |= {"silent_s": 62.0 + rank, "sequence": 20}
    return RankStall.model_validate({**usual, "rank": rank, "stack": stack, **changes})


def agent_stall(node: int, *ranks: RankStall, **changes: Any) -> AgentStall:
    """Return the report of node<k>; ``changes`` are its fields, such as those that name the run."""
    job = {"id": "1", "attempt": 1, "run_id": "r"}
    usual = {"schema_version": 1, "spec_hash": "0", "job": job, "node": f"node{node}", "host": f"node{node}"}
    usual |= {"node_rank": node, "local_rank": None, "found_at_s": 1000.0, "bounds": BOUNDS, "ranks": ranks}
    return AgentStall.model_validate({**usual, **changes})
