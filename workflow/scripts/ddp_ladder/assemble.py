"""Assemble a run's record from its raw files. Pure: the same files always give the same record.

That is also what makes a gate hard to deceive: it assembles each record anew and compares.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddp_ladder import agreement, correctness, failed_ranks, plausible, shared_directory
from ddp_ladder.blocks import data_wait_fraction, measure
from ddp_ladder.evidence import weakest
from ddp_ladder.files import Agent, RunDirectory, read_json
from ddp_ladder.fingerprint import whole_fingerprint
from ddp_ladder.gpu_access import no_gpu
from ddp_ladder.last_words import last_words, tail
from ddp_ladder.launch import training_python
from ddp_ladder.log_throughput import figures, printed_rates
from ddp_ladder.placement import placement
from ddp_ladder.plan import RunSpec
from ddp_ladder.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.record import Check, Failure, Job, Rank, Record, Throughput, Timing, World
from ddp_ladder.sanity import SAMPLES_SEEN, run_checks
from ddp_ladder.schemas import first_error
from ddp_ladder.slurm_states import advice, of_memory, slurms_words
from ddp_ladder.warmup import Warmup, find_warmup

PORT_TAKEN = "the port of the rendezvous is taken"
STILL_RUNNING = "the plain script was still running"

PARAMETERS = ("count", "bytes", "sharded", "checksum")  # of each rank, in the record


def assemble(directory: RunDirectory) -> Record:
    """Read the run directory and build its record.

    Raises OSError or ValueError when run.json, which says what was run, is missing or damaged.
    """
    spec, spec_hash, job = read_identity(directory)
    raw = read_raw_run(directory, spec.nodes, spec.world_size)
    warmup = _warmup(spec, raw)
    throughput, timing = _figures(spec, raw, warmup, directory)
    checks = run_checks(spec, raw, throughput)
    ok = all(check.ok for check in checks)
    return Record(
        status="ok" if ok else "failed",
        spec=spec,
        spec_hash=spec_hash,
        job=job,
        world=_world(raw),
        ranks=tuple(_rank(warmup, raw.ranks[k]) for k in sorted(raw.ranks)),
        throughput=throughput,
        timing=timing,
        fingerprint=whole_fingerprint(spec, raw),
        checks=checks,
        failure=None if ok else explain(spec, raw, checks, directory),
        remarks=(*correctness.remarks(spec, raw), *shared_directory.remarks(raw.ended)),
    )


def not_run(spec: RunSpec, why: str, next_step: str) -> Record:
    """The record of a run that was left out on purpose, so that the plan stays accounted for."""
    return Record(
        status="failed",
        spec=spec,
        spec_hash=spec.hash,
        job=None,
        world=World(None, None, (), ()),
        ranks=(),
        throughput=None,
        timing=None,
        fingerprint={},
        checks=(),
        failure=Failure("not run", why, next_step),
    )


def read_identity(directory: RunDirectory) -> tuple[RunSpec, str, Job]:
    """Spec, spec hash and job of run.json. Raises OSError or ValueError."""
    data = read_json(directory.run)
    wrong = first_error("run", data) or first_error("record", data["spec"], part="spec")
    if wrong:
        raise ValueError(f"{directory.run} does not describe a run: {wrong}")
    spec = RunSpec.from_json(data["spec"])
    if data["spec_hash"] != spec.hash:
        raise ValueError(f"{directory.run}: spec_hash is not that of its spec")
    if len(data["nodes"]) != spec.nodes:
        raise ValueError(f"{directory.run} names {len(data['nodes'])} nodes, its spec has {spec.nodes}")
    return spec, spec.hash, Job(**data["job"])


def _world(raw: RawRun) -> World:
    ends = [rank.end for _, rank in sorted(raw.ranks.items())]
    sizes = {end["world_size"] for end in ends}
    backends = {end["backend"] for end in ends}
    return World(
        size=sizes.pop() if len(sizes) == 1 else None,
        backend=backends.pop() if len(backends) == 1 else None,
        nodes=tuple(raw.run["nodes"]),
        hosts=tuple(dict.fromkeys(end["host"] for end in ends)),
    )


def _rank(warmup: Warmup, files: RankFiles) -> Rank:
    end, steps = files.end, files.steps
    measured = slice(warmup.steps, None)
    times = steps.step_time_s[measured]
    return Rank(
        rank=end["rank"],
        local_rank=end["local_rank"],
        node_rank=end["node_rank"],
        host=end["host"],
        pid=end["pid"],
        device=end["device"],
        exit_code=end["exit_code"],
        ended_by=end["ended_by"],
        steps=len(steps),
        samples=int(steps.samples.sum()),
        padding_samples=int(steps.padding_samples.sum()),
        step_time_s=float(np.median(times)) if len(times) else None,
        data_wait_fraction=data_wait_fraction(steps.data_wait_s[measured], times),
        startup_s=end["startup_s"],
        peak_memory_bytes=end["peak_memory_bytes"],
        parameters=_parameters(end),
        csv_sha256=files.csv_sha256,
    )


def _parameters(end: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many, and their checksum; each tensor's own digest stays in the raw file."""
    seen = end["parameters"]
    return {key: seen[key] for key in PARAMETERS if key in seen} if seen else None


def _warmup(spec: RunSpec, raw: RawRun) -> Warmup:
    """Where the warm-up of the run ends: at the planned minimum where the ranks' steps cannot be laid side by side."""
    steps = [rank.steps.step_time_s for rank in raw.ranks.values()]
    if len({len(times) for times in steps}) != 1:
        return Warmup(spec.warmup_steps, stable=False)
    return find_warmup(np.max(steps, axis=0), spec.warmup_steps, spec.min_steps)


def _figures(
    spec: RunSpec, raw: RawRun, warmup: Warmup, directory: RunDirectory
) -> tuple[Throughput | None, Timing | None]:
    """Figures where every rank is there with the same number of steps; else there is nothing to add up."""
    if spec.throughput_regex is not None:
        return _printed_figures(spec, raw, directory)
    ranks = [raw.ranks[k] for k in sorted(raw.ranks)]
    counts = {len(rank.steps) for rank in ranks}
    if raw.ended is None or len(ranks) != spec.world_size or len(counts) != 1:
        return None, None
    if counts.pop() <= warmup.steps:
        return None, None
    exposed = [rank.end["ddp"]["exposed_comm_s"] for rank in ranks if rank.end["ddp"]]
    startups = [rank.end["startup_s"]["total"] for rank in ranks]
    trained = [value for rank in ranks if (value := rank.end.get("training_s")) is not None]
    return measure(
        [rank.steps for rank in ranks],
        warmup,
        [value for value in exposed if value is not None],
        max((value for value in startups if value is not None), default=None),
        raw.ended["ended_at_s"] - raw.ended["started_at_s"],
        max(trained) if len(trained) == len(ranks) else None,
        weakest([rank.end for rank in ranks]),
    )


def _printed_figures(spec: RunSpec, raw: RawRun, directory: RunDirectory) -> tuple[Throughput | None, Timing | None]:
    assert spec.throughput_regex is not None
    rates = printed_rates(directory.log, spec.throughput_regex)
    if raw.ended is None or not rates:
        return None, None
    wall_s = raw.ended["ended_at_s"] - raw.ended["started_at_s"]
    return figures(rates, spec.warmup_steps, spec.global_batch, None, wall_s)


def explain(spec: RunSpec, raw: RawRun, checks: Sequence[Check], directory: RunDirectory) -> Failure:
    """Say what went wrong: the ladder's own verdict, else an exception, else an exit, else a check."""
    look = f"read {directory.log}, mend the cause, and start snakemake again: only failed runs are repeated"
    not_set_up = [end for end in raw.agents.values() if "error" in end]
    if not_set_up:
        # First of all: the other nodes wait for this one, to their own errors or to the time limit.
        return _not_set_up(_first_to_end(not_set_up))
    if blind := no_gpu(spec, raw):
        return blind
    of_srun = directory.launcher_log.read_text(errors="replace") if directory.launcher_log.exists() else ""
    words = slurms_words(of_srun)
    if memory := of_memory(words):
        # Before what it caused: whoever is killed for it leaves no words of its own.
        told = advice("OUT_OF_MEMORY", memory, spec.stage)
        return Failure("out of memory", f"{told.why} ({memory})", told.next)
    outcome = raw.ended["outcome"] if raw.ended else "unknown"
    if raw.ended and outcome == "plain limit" and raw.ended.get("plain_limit"):
        return _still_running(raw.ended)
    ranks = [rank.end for _, rank in sorted(raw.ranks.items())]
    own = sorted((end for end in ranks if _failed_by_itself(end)), key=_time_of_end)
    killed = failed_ranks.killed(raw)
    if killed and (not own or killed[0]["ended_at_s"] <= own[0]["ended_at_s"]):
        return failed_ranks.by_signal(killed, directory.log)
    left = correctness.left_early(spec, raw)
    if left is not None:
        return left
    if outcome == "time limit":
        key = f"stages.{spec.stage}.runtime"
        return Failure(
            "time limit",
            f"the job of scale {spec.scale} reached its {key}, or the end of the allocation that it runs in",
            f"raise {key} or ask for a longer allocation, or shorten the run with measure.max_steps or "
            "measure.max_seconds",
        )
    if told_to_stop := _told_to_stop(ranks):
        return told_to_stop
    if own and (own[0]["exception"] or "").startswith("ModuleNotFoundError"):
        return _package_missing(raw, own[0])
    if taken := _port_taken(raw, ranks, own, directory):
        return taken
    if own and own[0]["exception"]:
        return Failure("the script raised an exception", f"rank {own[0]['rank']}: {own[0]['exception']}", look)
    if own:
        why = f"rank {own[0]['rank']}: exit code {own[0]['exit_code']}"
        return Failure("the script failed", why + last_words(directory, raw.run, own[0]), look)
    if raw.unwritten or outcome == "not written":
        return _not_written(raw, directory)
    if gone := failed_ranks.gone(spec, raw, [end for end in ranks if end["exception"]], directory):
        return gone
    if raw.ended and not raw.agents and not ranks:
        return Failure("the launcher failed", "; ".join(words[-2:]) or "no agent left an end record", look)
    agents = [end for end in raw.agents.values() if end["exit_code"] != 0 or end["signal"]]
    if agents:
        end = _first_to_end(agents)
        why = f"{_agent(end)}: {_exit(end)}"
        return Failure("the launcher failed", why + last_words(directory, raw.run, end), look)
    unseen = _nothing_seen(spec, raw)
    if unseen is not None:
        return unseen
    first = next(check for check in checks if not check.ok)
    if first.name == "enough steps":
        return _beside_files(_too_few_steps(spec, raw, first), raw)
    of_ranks = (*agreement.findings(spec, raw), *plausible.findings(spec, raw), *correctness.findings(spec, raw))
    for finding in (correctness.world(spec, raw), placement(spec, raw), *of_ranks):
        if finding.check == first:
            return finding.failure
    why = f"measured {first.measured}, wanted {first.wanted}"
    if first.name == SAMPLES_SEEN:
        return _no_samples(raw, why)
    return Failure(first.name, why, look)


def _port_taken(
    raw: RawRun, ranks: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]], directory: RunDirectory
) -> Failure | None:
    """The failure of a launcher or a rank that could not listen where the others were to find it."""
    first = Agent(0, None if raw.run["agents_per_node"] == 1 else 0)
    agents = len(raw.run["nodes"]) * raw.run["agents_per_node"]
    said = own[0]["exception"] if own else "" if ranks else tail(directory.agent_log(first, agents))
    if "EADDRINUSE" not in (said or ""):
        return None
    host, ours = raw.run["rendezvous"].get("host"), raw.run["rendezvous"].get("port")
    named = re.search(r"\bport: ([0-9]+)", said)  # torch 2.4 does not name it
    port = int(named[1]) if named else ours
    if port == ours:
        return Failure(
            PORT_TAKEN,
            f"another process listens on port {port} of {host}",
            "start snakemake again, which takes another port; see what listens there with `ss --listening --processes`",
        )
    return Failure(
        "the script's port is taken",
        f"rank {own[0]['rank'] if own else 0}: another process listens on port {port}, which the script has chosen",
        f"let the script leave MASTER_ADDR and MASTER_PORT as the launcher sets them (here {ours}, a free port), or "
        "end the process that listens there (`ss --listening --processes`), and start snakemake again",
    )


def _too_few_steps(spec: RunSpec, raw: RawRun, check: Check) -> Failure:
    """The failure of a run that ended before enough steps were measured."""
    made = min(len(rank.steps) for rank in raw.ranks.values())
    limits = {rank.end["ended_by"] for rank in raw.ranks.values()} & {"max_steps", "max_seconds"}
    longer = f"raise measure.{limits.pop()}" if limits else "train longer (more epochs or data in workload.args)"
    lower = f"lower measure.min_steps to {made - spec.warmup_steps} or less"
    if made <= spec.warmup_steps:
        lower = f"lower measure.warmup_steps and measure.min_steps to {made} or less together"
    return Failure(
        check.name,
        f"measured {check.measured}, wanted {check.wanted}",
        f"{longer}, or {lower} in config.yaml, and start snakemake again",
    )


def _still_running(ended: Mapping[str, Any]) -> Failure:
    """The failure of a plain baseline that reached its own time limit."""
    after_s, launched_s = ended["plain_limit"]["after_s"], ended["plain_limit"]["launched_s"]
    return Failure(
        STILL_RUNNING,
        f"{STILL_RUNNING} after {after_s:.0f} s, {after_s / launched_s:.1f} times what it takes under the launcher",
        "nothing has to be done: no gate needs it; measure.plain_baseline: false in config.yaml leaves it out",
    )


def _not_written(raw: RawRun, directory: RunDirectory) -> Failure:
    """The failure of a run whose training may have gone well, and whose records could not be kept."""
    why = list(raw.unwritten.values()) or [f"an agent could not write below {directory.path}: see its words in the log"]
    return Failure(
        "the records could not be written",
        "; ".join(why[:2]),
        f"see to space, quota and permissions of {directory.path} (df -h {directory.path}), and start snakemake "
        "again: the run is repeated",
    )


def _no_samples(raw: RawRun, why: str) -> Failure:
    """The failure of a training whose batches came from something else than a torch DataLoader."""
    imported = sorted({name for rank in raw.ranks.values() for name in rank.end.get("feeders", ())})
    return Failure(
        SAMPLES_SEEN,
        why + (f"; imported, and no torch DataLoader: {', '.join(imported)}" if imported else ""),
        "set workload.samples_per_step in config.yaml to the samples that one process takes in one optimizer step, "
        'such as "{batch_per_gpu}"; where they differ from step to step, let the script write its steps to the file '
        "that DDP_LADDER_METRICS names (config/README.md)",
    )


def _package_missing(raw: RawRun, end: Mapping[str, Any]) -> Failure:
    """The failure of a script that imports what its Python does not have."""
    pythons = dict.fromkeys(training_python(agent["argv"]) for agent in raw.agents.values() if agent["argv"])
    which = f" ({', '.join(pythons)})" if pythons else ""
    return Failure(
        "a Python package is missing",
        f"rank {end['rank']}: {end['exception']}{which}",
        "install it for that Python, or name in software.python of cluster.yaml the one that has it; then start "
        "snakemake again. `snakemake doctor` shows which Python trains",
    )


def _failed_by_itself(end: Mapping[str, Any]) -> bool:
    """Whether this rank failed, and not because it had lost another."""
    return not correctness.is_consequence(end) if end["exception"] else bool(end["exit_code"] != 0)


def _time_of_end(end: Mapping[str, Any]) -> float:
    return float(end["ended_at_s"])


def _told_to_stop(ranks: Sequence[Mapping[str, Any]]) -> Failure | None:
    """The failure of a run that was cut short but saved its state, as its exit code tells; None for any other end.

    Asked of the ranks: their launcher makes a code of its own of theirs.
    """
    told = [end for end in ranks if end["exit_code"] == os.EX_TEMPFAIL]
    if not told or any(end["exception"] and not correctness.is_consequence(end) for end in ranks):
        return None
    steps = max(end["steps"]["count"] for end in told)
    which = ", ".join(str(end["rank"]) for end in told)
    return Failure(
        "stopped by a signal, saved its state",
        f"rank {which}: exit code {os.EX_TEMPFAIL} after {steps} steps, which says: saved, try again",
        "start snakemake again: the run is repeated, and goes on where it was if workload.args say so "
        "(--checkpoint-dir and --resume of the reference workloads)",
    )


def _nothing_seen(spec: RunSpec, raw: RawRun) -> Failure | None:
    """The failure of a run that ended well without anything to measure; None when there was."""
    if (
        spec.throughput_regex is not None
        or len(raw.ranks) < spec.world_size
        or any(len(rank.steps) for rank in raw.ranks.values())
    ):
        return None
    own_processes = sum(rank.end.get("own_processes", 0) for rank in raw.ranks.values())
    if own_processes:
        return Failure(
            "the script starts its own ranks",
            f"it started {own_processes} processes with torch.multiprocessing.spawn; no optimizer stepped outside them",
            "let the launcher start the ranks: call the training function directly, with rank, local rank and "
            "world size from the environment (RANK, LOCAL_RANK, WORLD_SIZE)",
        )
    reasons = [reason for rank in raw.ranks.values() for reason in rank.end["not_measured"]]
    unhooked = [reason.partition(": ")[2] for reason in reasons if reason.startswith("steps: ")]
    if unhooked:
        return Failure(
            "the training could not be measured",
            unhooked[0],
            "use torch 2.4 or newer, and import it before anything that puts import hooks on sys.meta_path; or let the "
            "script write its steps to the file that DDP_LADDER_METRICS names",
        )
    failure = Failure(
        "no training step was seen",
        "the script ended well, but on no rank did a torch optimizer step",
        "let a torch.optim optimizer make the steps in the process that the launcher started; a program without one "
        "can write its steps to the file that DDP_LADDER_METRICS names, or set workload.throughput_regex",
    )
    return _beside_files(failure, raw)


def _beside_files(failure: Failure, raw: RawRun) -> Failure:
    """The same for a run with few steps that may have gone on from what another one left."""
    found = shared_directory.files_found(raw.ended)
    if not found:
        return failure
    what = shared_directory.found_in_words(found)
    return Failure(
        failure.verdict,
        f"{failure.why}; it found {what} in the working directory, and may have gone on from it",
        f"{shared_directory.OWN_DIRECTORY_ADVICE}; else {failure.next}",
    )


def _not_set_up(end: Mapping[str, Any]) -> Failure:
    key = end["error"].partition(":")[0]
    if key.startswith("workload."):
        return Failure(
            "the working directory could not be used",
            f"{_agent(end)} ({end['host']}): {end['error']}",
            f"correct {key} in config.yaml: a directory that every node can make and write to, or null for the one "
            "that Snakemake was started in; then start snakemake again",
        )
    what, where = ("network", " or in the variant") if key.startswith("network.") else ("software", "")
    return Failure(
        f"the site's {what} could not be set up",
        f"{_agent(end)} ({end['host']}): {end['error']}",
        f"correct {key} in cluster.yaml{where}, or ask the site's support, and start snakemake again",
    )


def _agent(end: Mapping[str, Any]) -> Agent:
    return Agent(end["node_rank"], end["local_rank"])


def _first_to_end(nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Who ended first; the others are ended because of it."""
    return min(nodes, key=_time_of_end)


def _exit(end: Mapping[str, Any]) -> str:
    return f"ended by {end['signal']}" if end["signal"] else f"exit code {end['exit_code']}"
