"""Failures around the training: a node that could not be set up, records that could not be written, a lost launcher."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_ladder.common.files import Agent
from ddp_ladder.records import by_signature
from ddp_ladder.records.case import Case
from ddp_ladder.records.last_words import last_words
from ddp_ladder.records.raw_models import AgentEnd
from ddp_ladder.records.record import Failure
from ddp_ladder.slurm.states import slurms_words


def not_set_up(case: Case) -> Failure | None:
    """Return the failure of a node whose processes could not be started."""
    failed = [end for end in case.raw.agents.values() if end.error is not None]
    if not failed:
        return None
    end = _first_to_end(failed)
    key = str(end.error).partition(":")[0]
    if key == "workload.env":
        verdict = "a secret is missing"
        next_step = "start with snakemake, which takes it from the settings files, or export it first; then start again"
    elif key.startswith("workload."):
        verdict = "the working directory could not be used"
        next_step = (
            f"correct {key} in config.yaml: a directory that every node can make and write to, or null for the one "
            "that Snakemake was started in; then start snakemake again"
        )
    else:
        what, where = ("network", " or in the variant") if key.startswith("network.") else ("software", "")
        verdict = f"the site's {what} could not be set up"
        next_step = f"correct {key} in cluster.yaml{where}, or ask the site's support, and start snakemake again"
    return Failure(
        verdict=verdict,
        why=f"{_agent(end)} ({end.host}): {end.error}",
        next=next_step,
        node=end.host,
        at_s=end.ended_at_s,
    )


def not_written(case: Case) -> Failure | None:
    """Return the failure of a run whose records could not be written; its training may have succeeded."""
    if not case.raw.unwritten and case.outcome != "not written":
        return None
    path = case.directory.path
    why = list(case.raw.unwritten.values()) or [f"an agent could not write below {path}: see its message in the log"]
    return Failure(
        verdict="the records could not be written",
        why="; ".join(why[:2]),
        next=f"check space, quota and permissions of {path} (df -h {path}), and start snakemake again: the run is "
        "repeated",
    )


def launcher_failed(case: Case) -> Failure | None:
    """Return the failure of a launcher whose ranks report nothing."""
    if case.raw.ended and not case.raw.agents and not case.ends:
        log = case.directory.launcher_log
        words = slurms_words(log.read_text(errors="replace")) if log.exists() else []
        why = "; ".join(words[-2:]) or "no agent left an end record"
        return Failure(verdict="the launcher failed", why=why, next=case.look)
    agents = [end for end in case.raw.agents.values() if end.exit_code != 0 or end.signal]
    if not agents:
        return None
    end = _first_to_end(agents)
    if not case.ends and not end.signal and (named := by_signature.root_at_end(case, end.host)):
        return named
    exit_of = f"ended by {end.signal}" if end.signal else f"exit code {end.exit_code}"
    return Failure(
        verdict="the launcher failed",
        why=f"{_agent(end)}: {exit_of}{last_words(case.agent_log(end))}",
        next=case.look,
        node=end.host,
        at_s=end.ended_at_s,
    )


def _first_to_end(ends: Iterable[AgentEnd]) -> AgentEnd:
    """Return the end record of the agent that ended first; the others end as a consequence."""
    return min(ends, key=lambda end: float(end.ended_at_s))


def _agent(end: AgentEnd) -> Agent:
    return Agent(end.node_rank, end.local_rank)
