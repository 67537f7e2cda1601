"""The failure of a run: one verdict, its reason and what to do next. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.node.launch import training_python
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records import failed_ranks, lost_peers, shared_directory
from ddp_ladder.records.asks_slurm import asks_slurm
from ddp_ladder.records.diagnosis import Diagnosis
from ddp_ladder.records.gpu_access import no_gpu
from ddp_ladder.records.last_words import last_words, printed, tail
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, PlainLimit, RankEnd
from ddp_ladder.records.record import Check, Failure
from ddp_ladder.records.sanity import SAMPLES_SEEN
from ddp_ladder.slurm.states import advice, of_memory, slurms_words

PORT_TAKEN = "the port of the rendezvous is taken"
STILL_RUNNING = "the plain script was still running"


def explain(spec: RunSpec, raw: RawRun, found: Sequence[Diagnosis], directory: RunDirectory) -> Failure:
    """Return why a run failed: the ladder's own verdict, else an exception, else an exit code, else a check."""
    look = f"read {directory.log}, fix the cause, and start snakemake again: only failed runs are repeated"
    not_set_up = [end for end in raw.agents.values() if end.error is not None]
    if not_set_up:
        # This comes first: the other nodes wait for this one, and end with errors of their own or at the time limit.
        return _not_set_up(_first_to_end(not_set_up))
    if without_gpu := no_gpu(spec, raw):
        return without_gpu
    of_srun = directory.launcher_log.read_text(errors="replace") if directory.launcher_log.exists() else ""
    words = slurms_words(of_srun)
    if memory := of_memory(words):
        # This comes before its consequences: a process that is killed for memory reports nothing itself.
        explained = advice("OUT_OF_MEMORY", memory, spec.stage)
        return Failure(verdict="out of memory", why=f"{explained.why} ({memory})", next=explained.next)
    outcome = raw.ended.outcome if raw.ended else "unknown"
    if raw.ended and outcome == "plain limit" and raw.ended.plain_limit:
        return _still_running(raw.ended.plain_limit)
    ranks = [rank.end for _, rank in sorted(raw.ranks.items())]
    own = sorted((end for end in ranks if _failed_by_itself(end)), key=_time_of_end)
    killed = failed_ranks.killed(raw)
    if killed and (not own or killed[0].ended_at_s <= own[0].ended_at_s):
        return failed_ranks.by_signal(killed, directory.log)
    left = lost_peers.left_early(spec, raw)
    if left is not None:
        return left
    if outcome == "time limit":
        key = f"stages.{spec.stage}.runtime"
        return Failure(
            verdict="time limit",
            why=f"the job of scale {spec.scale} reached its {key}, or the end of the allocation that it runs in",
            next=f"raise {key} or ask for a longer allocation, or shorten the run with measure.max_steps or "
            "measure.max_seconds",
        )
    if stopped := _stopped_by_signal(ranks):
        return stopped
    if own and (own[0].exception or "").startswith("ModuleNotFoundError"):
        return _package_missing(raw, own[0])
    if own and (asks := asks_slurm(spec, own[0], printed(directory.log))):
        return asks
    if taken := _port_taken(raw, ranks, own, directory):
        return taken
    if own and own[0].exception:
        return Failure(
            verdict="the script raised an exception", why=f"rank {own[0].rank}: {own[0].exception}", next=look
        )
    if own:
        why = f"rank {own[0].rank}: exit code {own[0].exit_code}"
        return Failure(verdict="the script failed", why=why + last_words(directory, raw.run, own[0]), next=look)
    if raw.unwritten or outcome == "not written":
        return _not_written(raw, directory)
    if gone := failed_ranks.gone(spec, raw, [end for end in ranks if end.exception], directory):
        return gone
    if raw.ended and not raw.agents and not ranks:
        return Failure(
            verdict="the launcher failed", why="; ".join(words[-2:]) or "no agent left an end record", next=look
        )
    agents = [end for end in raw.agents.values() if end.exit_code != 0 or end.signal]
    if agents:
        end = _first_to_end(agents)
        why = f"{_agent(end)}: {_exit(end)}"
        return Failure(verdict="the launcher failed", why=why + last_words(directory, raw.run, end), next=look)
    unseen = _nothing_seen(spec, raw)
    if unseen is not None:
        return unseen
    first = next(each for each in found if not each.check.ok)
    if first.check.name == "enough steps":
        return _beside_files(_too_few_steps(spec, raw, first.check), raw)
    why = f"measured {first.check.measured}, wanted {first.check.wanted}"
    if first.check.name == SAMPLES_SEEN:
        return _no_samples(raw, why)
    return first.failure or Failure(verdict=first.check.name, why=why, next=look)


def _port_taken(
    raw: RawRun, ranks: Sequence[RankEnd], own: Sequence[RankEnd], directory: RunDirectory
) -> Failure | None:
    """Return the failure of a launcher or a rank whose rendezvous port was in use; None for any other."""
    first = Agent(0, None if raw.run.agents_per_node == 1 else 0)
    agents = raw.run.agents
    output = own[0].exception if own else "" if ranks else tail(directory.agent_log(first, agents))
    if not output or "EADDRINUSE" not in output:
        return None
    host, ours = raw.run.rendezvous.host, raw.run.rendezvous.port
    named = re.search(r"\bport: ([0-9]+)", output)  # torch 2.4 does not name it
    port = int(named[1]) if named else ours
    if port == ours:
        return Failure(
            verdict=PORT_TAKEN,
            why=f"another process listens on port {port} of {host}",
            next="start snakemake again, which takes another port; see what listens there with `ss --listening "
            "--processes`",
        )
    return Failure(
        verdict="the script's port is taken",
        why=f"rank {own[0].rank if own else 0}: another process listens on port {port}, which the script has chosen",
        next=f"let the script leave MASTER_ADDR and MASTER_PORT as the launcher sets them (here {ours}, a free port), "
        "or end the process that listens there (`ss --listening --processes`), and start snakemake again",
    )


def _too_few_steps(spec: RunSpec, raw: RawRun, check: Check) -> Failure:
    """Return the failure of a run that ended before enough steps were measured."""
    made = min(len(rank.steps) for rank in raw.ranks.values())
    limits = {rank.end.ended_by for rank in raw.ranks.values()} & {"max_steps", "max_seconds"}
    longer = f"raise measure.{limits.pop()}" if limits else "train longer (more epochs or data in workload.args)"
    lower = f"lower measure.min_steps to {made - spec.warmup_steps} or less"
    if made <= spec.warmup_steps:
        lower = f"lower measure.warmup_steps and measure.min_steps to {made} or less together"
    return Failure(
        verdict=check.name,
        why=f"measured {check.measured}, wanted {check.wanted}",
        next=f"{longer}, or {lower} in config.yaml, and start snakemake again",
    )


def _still_running(limit: PlainLimit) -> Failure:
    """Return the failure of a plain baseline that reached its own time limit."""
    return Failure(
        verdict=STILL_RUNNING,
        why=f"{STILL_RUNNING} after {limit.after_s:.0f} s, {limit.after_s / limit.launched_s:.1f} times what it "
        "takes under the launcher",
        next="nothing has to be done: no gate needs it; measure.plain_baseline: false in config.yaml leaves it out",
    )


def _not_written(raw: RawRun, directory: RunDirectory) -> Failure:
    """Return the failure of a run whose records could not be written; its training may have succeeded."""
    why = list(raw.unwritten.values()) or [
        f"an agent could not write below {directory.path}: see its message in the log"
    ]
    return Failure(
        verdict="the records could not be written",
        why="; ".join(why[:2]),
        next=f"check space, quota and permissions of {directory.path} (df -h {directory.path}), and start snakemake "
        "again: the run is repeated",
    )


def _no_samples(raw: RawRun, why: str) -> Failure:
    """Return the failure of a training whose batches did not come from a torch DataLoader."""
    imported = sorted({name for rank in raw.ranks.values() for name in rank.end.feeders})
    return Failure(
        verdict=SAMPLES_SEEN,
        why=why + (f"; imported, and no torch DataLoader: {', '.join(imported)}" if imported else ""),
        next="set workload.samples_per_step in config.yaml to the samples that one process takes in one optimizer "
        "step, "
        'such as "{batch_per_gpu}"; where they differ from step to step, let the script write its steps to the file '
        "that DDP_LADDER_METRICS names (config/README.md)",
    )


def _package_missing(raw: RawRun, end: RankEnd) -> Failure:
    """Return the failure of a script that imports a package its Python does not have."""
    pythons = dict.fromkeys(training_python(agent.argv) for agent in raw.agents.values() if agent.argv)
    which = f" ({', '.join(pythons)})" if pythons else ""
    return Failure(
        verdict="a Python package is missing",
        why=f"rank {end.rank}: {end.exception}{which}",
        next="install it for that Python, or name in software.python of cluster.yaml the one that has it; then start "
        "snakemake again. `snakemake doctor` shows which Python trains",
    )


def _failed_by_itself(end: RankEnd) -> bool:
    """Return True if this rank failed for a reason of its own, and not because it lost another."""
    return not lost_peers.is_consequence(end.exception) if end.exception else end.exit_code != 0


def _time_of_end(end: RankEnd | AgentEnd) -> float:
    return end.ended_at_s


def _stopped_by_signal(ranks: Sequence[RankEnd]) -> Failure | None:
    """Return the failure of a run that was cut short but saved its state (exit code 75); None for any other end.

    Read from the ranks, because the launcher replaces their exit codes by its own.
    """
    saved = [end for end in ranks if end.exit_code == os.EX_TEMPFAIL]
    if not saved or any(end.exception and not lost_peers.is_consequence(end.exception) for end in ranks):
        return None
    steps = max(end.steps.count for end in saved)
    which = ", ".join(str(end.rank) for end in saved)
    return Failure(
        verdict="stopped by a signal, saved its state",
        why=f"rank {which}: exit code {os.EX_TEMPFAIL} after {steps} steps, which says: saved, try again",
        next="start snakemake again: the run is repeated, and goes on where it was if workload.args say so "
        "(--checkpoint-dir and --resume of the reference workloads)",
    )


def _nothing_seen(spec: RunSpec, raw: RawRun) -> Failure | None:
    """Return the failure of a run that ended well but made no measurable step; None if one was seen."""
    if (
        spec.throughput_regex is not None
        or len(raw.ranks) < spec.world_size
        or any(len(rank.steps) for rank in raw.ranks.values())
    ):
        return None
    own_processes = sum(rank.end.own_processes for rank in raw.ranks.values())
    if own_processes:
        return Failure(
            verdict="the script starts its own ranks",
            why=f"it started {own_processes} processes with torch.multiprocessing.spawn; no optimizer stepped "
            "outside them",
            next="let the launcher start the ranks: call the training function directly, with rank, local rank and "
            "world size from the environment (RANK, LOCAL_RANK, WORLD_SIZE)",
        )
    reasons = [reason for rank in raw.ranks.values() for reason in rank.end.not_measured]
    unhooked = [reason.partition(": ")[2] for reason in reasons if reason.startswith("steps: ")]
    if unhooked:
        return Failure(
            verdict="the training could not be measured",
            why=unhooked[0],
            next="use torch 2.4 or newer, and import it before anything that puts import hooks on sys.meta_path; or "
            "let the script write its steps to the file that DDP_LADDER_METRICS names",
        )
    failure = Failure(
        verdict="no training step was seen",
        why="the script ended well, but on no rank did a torch optimizer step",
        next="let a torch.optim optimizer make the steps in the process that the launcher started; a program without "
        "one can write its steps to the file that DDP_LADDER_METRICS names, or set workload.throughput_regex",
    )
    return _beside_files(failure, raw)


def _beside_files(failure: Failure, raw: RawRun) -> Failure:
    """Return the failure with the files that the run found, if it may have resumed from another run's files."""
    found = shared_directory.files_found(raw.ended)
    if not found:
        return failure
    what = shared_directory.found_in_words(found)
    return Failure(
        verdict=failure.verdict,
        why=f"{failure.why}; it found {what} in the working directory, and may have gone on from it",
        next=f"{shared_directory.OWN_DIRECTORY_ADVICE}; else {failure.next}",
    )


def _not_set_up(end: AgentEnd) -> Failure:
    key = str(end.error).partition(":")[0]
    if key.startswith("workload."):
        return Failure(
            verdict="the working directory could not be used",
            why=f"{_agent(end)} ({end.host}): {end.error}",
            next=f"correct {key} in config.yaml: a directory that every node can make and write to, or null for the "
            "one that Snakemake was started in; then start snakemake again",
        )
    what, where = ("network", " or in the variant") if key.startswith("network.") else ("software", "")
    return Failure(
        verdict=f"the site's {what} could not be set up",
        why=f"{_agent(end)} ({end.host}): {end.error}",
        next=f"correct {key} in cluster.yaml{where}, or ask the site's support, and start snakemake again",
    )


def _agent(end: AgentEnd) -> Agent:
    return Agent(end.node_rank, end.local_rank)


def _first_to_end(ends: Sequence[AgentEnd]) -> AgentEnd:
    """Return the end record of the agent that ended first; the others end as a consequence."""
    return min(ends, key=_time_of_end)


def _exit(end: AgentEnd) -> str:
    return f"ended by {end.signal}" if end.signal else f"exit code {end.exit_code}"
