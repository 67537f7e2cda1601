"""Failures of the script itself: its exceptions and exit codes, its port, and the limits that ended it."""

from __future__ import annotations

import os
import re

from ddp_ladder.common.files import Agent
from ddp_ladder.records import asks_slurm, by_signature
from ddp_ladder.records.case import EXCEPTION, Case, is_consequence
from ddp_ladder.records.last_words import last_words, printed, tail
from ddp_ladder.records.quotes import caught, quote, where_raised
from ddp_ladder.records.record import Failure
from ddp_ladder.records.words import Words

PORT_TAKEN = "the port of the rendezvous is taken"
STILL_RUNNING = "the plain script was still running"


def still_running(case: Case) -> Failure | None:
    """Return the failure of a plain baseline that reached its own time limit."""
    limit = case.raw.ended.plain_limit if case.raw.ended else None
    if case.outcome != "plain limit" or limit is None:
        return None
    return Failure(
        verdict=STILL_RUNNING,
        why=f"{STILL_RUNNING} after {limit.after_s:.0f} s, {limit.after_s / limit.launched_s:.1f} times what it "
        "takes under the launcher",
        next="nothing has to be done: no gate needs it; measure.plain_baseline: false in config.yaml leaves it out",
    )


def time_limit(case: Case) -> Failure | None:
    """Return the failure of a run that the end of its job cut short."""
    if case.outcome != "time limit":
        return None
    key = f"stages.{case.spec.stage}.runtime"
    return Failure(
        verdict="time limit",
        why=f"the job of scale {case.spec.scale} reached its {key}, or the end of the allocation that it runs in",
        next=f"raise {key} or ask for a longer allocation, or shorten the run with measure.max_steps or "
        "measure.max_seconds",
    )


def needs_srun(case: Case) -> Failure | None:
    """Return the failure of a script that reads variables of srun, and was started by torchrun."""
    return asks_slurm.asks_slurm(case.spec, case.own[0], printed(case.directory.log)) if case.own else None


def port_taken(case: Case) -> Failure | None:
    """Return the failure of a launcher or a rank whose port was in use: the run's own, or one that the script chose."""
    run, own = case.raw.run, case.own
    first = Agent(0, None if run.agents_per_node == 1 else 0)
    output = own[0].exception if own else "" if case.ends else tail(case.directory.agent_log(first, run.agents))
    if not output or "EADDRINUSE" not in output:
        return None
    host, ours = run.rendezvous.host, run.rendezvous.port
    named = re.search(r"\bport: ([0-9]+)", output)  # torch 2.4 does not name it
    port = int(named[1]) if named else ours
    rank = own[0].rank if own else 0
    node = own[0].host if own else case.host(first)
    line = next(line for line in output.split("\n") if "EADDRINUSE" in line)
    evidence = quote(Words("rank" if own else "torchrun", rank if own else None, node, ()), [line])
    if port == ours:
        return Failure(
            verdict=PORT_TAKEN,
            why=f"another process listens on port {port} of {host}",
            next="start snakemake again, which takes another port; see what listens there with `ss --listening "
            "--processes`",
            node=node,
            evidence=evidence,
        )
    return Failure(
        verdict="the script's port is taken",
        why=f"rank {rank}: another process listens on port {port}, which the script has chosen",
        next=f"let the script leave MASTER_ADDR and MASTER_PORT as the launcher sets them (here {ours}, a free port), "
        "or end the process that listens there (`ss --listening --processes`), and start snakemake again",
        rank=rank,
        node=node,
        at_s=own[0].ended_at_s if own else None,
        evidence=evidence,
    )


def saved_state(case: Case) -> Failure | None:
    """Return the failure of a run that was cut short but saved its state (exit code 75).

    Read from the ranks, because the launcher replaces their exit codes by its own.
    """
    saved = [end for end in case.ends if end.exit_code == os.EX_TEMPFAIL]
    if not saved or any(end.exception and not is_consequence(end.exception) for end in case.ends):
        return None
    steps = max(end.steps.count for end in saved)
    which = ", ".join(str(end.rank) for end in saved)
    return Failure(
        verdict="stopped by a signal, saved its state",
        why=f"rank {which}: exit code {os.EX_TEMPFAIL} after {steps} steps, which says: saved, try again",
        next="start snakemake again: the run is repeated, and goes on where it was if workload.args say so "
        "(--checkpoint-dir and --resume of the reference workloads)",
    )


def own_failure(case: Case) -> Failure | None:
    """Return the first exception, verbatim, or exit code of a rank that failed by itself."""
    if not case.own:
        return None
    end = case.own[0]
    if end.exception and (named := by_signature.symptom_of(case, end)):
        return named
    if end.exception:
        verdict, why = EXCEPTION, end.exception
        evidence = where_raised(case.printed, end.rank, end.exception)
    elif named := by_signature.root_at_end(case, end.host, end.rank):
        return named
    else:
        verdict, why = "the script failed", f"exit code {end.exit_code}{last_words(case.agent_log(end), end.rank)}"
        evidence = caught(case.printed, end.host, end.rank)
    return Failure(
        verdict=verdict,
        why=f"rank {end.rank}: {why}",
        next=case.look,
        rank=end.rank,
        node=end.host,
        at_s=end.ended_at_s,
        evidence=evidence,
    )
