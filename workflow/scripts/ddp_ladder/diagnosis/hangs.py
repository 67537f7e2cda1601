"""The failure of a run that hung: the rank that the others wait for, and what it was doing. Pure.

The stacks are those that Python's faulthandler prints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count, duration, in_short, rank_numbers
from ddp_ladder.common.messages import leave_out
from ddp_ladder.diagnosis.case import LIBRARY, OWN_PORT, Case, of_threads, own_port_advice
from ddp_ladder.diagnosis.correctness import EQUALLY_MANY, NAMED
from ddp_ladder.diagnosis.signatures import LONGEST_OF_SEVERAL, cut, matches
from ddp_ladder.records.raw_models import AgentStall, RankStall
from ddp_ladder.records.record import Evidence, Failure

LINES = 3  # of the stack of a rank
SAME_CALLS = (
    "let every rank make the same collective calls in the same order: one of them makes a call (barrier, all_reduce, "
    "broadcast) that the others do not make, or leaves it out, most often under an `if` on its rank, or in a function "
    "that is called there"
)
FAILS_ALONE = (
    "fix what raised the exception; a rank that handles one must call no collective (barrier, all_reduce) in its "
    "`except` or `finally`: the others are elsewhere"
)
AS_LAUNCHED = (
    "let the script call init_process_group() without rank and world size, and leave RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT as the launcher sets them"
)


def in_backward(stack: str) -> bool | None:
    """Return True if a rank waits in a backward pass, and False in another call; None if it shows in neither.

    A forward pass may be one of the training or of a validation, and work of a GPU is waited for at any line.
    """
    if "in _engine_run_backward" in stack:
        return True
    return None if "torch/distributed/" not in stack or "in _call_impl" in stack else False


def against_leaving(steps: set[int], backward: bool | None) -> str:
    """Return what to do if ranks ended while others waited.

    steps: how many each of them made. backward: whether those that waited were in a backward pass, if it is known.
    """
    if len(steps) > 1 or backward:
        return EQUALLY_MANY
    return SAME_CALLS if backward is False else f"{SAME_CALLS}; if all do, {EQUALLY_MANY}"


@dataclass(frozen=True)
class Stalled:
    """One rank of a hang."""

    stall: RankStall
    node_rank: int
    host: str
    stack: list[Frame]  # of its main thread, the most recent call first; empty if none is known

    @property
    def waits(self) -> bool:
        return in_collective(self.stack)

    @property
    def ended(self) -> bool:
        return self.stall.phase == "ended"

    @property
    def is_elsewhere_after_its_steps(self) -> bool:
        """True if its stack shows that it waits for no other rank, out of the training loop."""
        return self.stall.phase in ("between passes", "evaluating") and bool(self.stack) and not self.waits

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        speaker = f"rank {self.stall.rank} on {self.host}"
        return tuple(Evidence(speaker=speaker, line=frame.text) for frame in of_script(self.stack)[:LINES])

    @property
    def text(self) -> str:
        """Where it was: ``rank 3 (node 1, node7) after 12 steps: File "train.py", line 12, in train, in barrier()``."""
        stall = self.stall
        place, after = f"rank {stall.rank} (node {self.node_rank}, {self.host})", f"after {count(stall.steps, 'step')}"
        if stall.process == "stopped":  # how many steps it made since its last sign is not known
            return f"{place}: its process {stall.pid} was stopped"
        if self.ended:
            then = f"; then {of_script(self.stack)[0].text}" if self.stack else ""
            return f"{place}: its script ended {after}{then}"
        if not self.stack:
            return f"{place} {after}: it left no stack ({stall.process})"
        handles = f"while it handled {cut(stall.handles, LONGEST_OF_SEVERAL)}" if stall.handles else ""
        at = ", ".join(filter(None, (of_script(self.stack)[0].text, doing(self.stack), handles)))
        return f"{place} {after}: {at}"


def hung(case: Case) -> Failure | None:
    """Return the failure of a run that hung; None if it did not, or if a rank failed by itself before."""
    reports = case.raw.stalls
    if case.outcome != "hang" or not reports or case.own_at_s < min(report.found_at_s for report in reports):
        return None
    ranks = case.raw.directory.ranks
    stacks = f"{case.raw.directory.nodes}/hang-*.json"
    if any(ranks.glob("flight_*")):
        stacks += f"; torch's flight recorder has their last collectives: torchfrtrace {ranks} --prefix flight_"
    return with_threads(case, hang_failure(reports, stacks))


def with_threads(case: Case, failure: Failure) -> Failure:
    """Return the failure of a hang with the exceptions that ended threads of the ranks, for which they may wait."""
    died = of_threads(case)
    if not died:
        return failure
    return failure.replace(
        why=f"{failure.why}; a thread ended by {cut(died[-1].line, LONGEST_OF_SEVERAL)}",
        next=f"fix what ended the thread, if the ranks wait for it; else {failure.next}",
        evidence=(*died, *failure.evidence),
    )


TIMED_OUT = re.compile(r"Timed out waiting|timed? ?out|failed to pass monitoredBarrier", re.IGNORECASE)


def kept_waiting(case: Case) -> Failure | None:
    """Return the failure of a run whose ranks waited for one until their call timed out; None if it is not known."""
    reports, victims = case.raw.stalls, matches((*case.said, *case.printed), "victim", "symptom")
    if case.outcome == "hang" or not reports or not any(TIMED_OUT.search(match.line) for match in victims):
        return None
    causes, failed = lagging(stalled(reports)), {rank.rank for rank in case.seen_to_fail}
    if not causes or any(rank.waits or rank.ended or rank.stall.rank in failed for rank in causes):
        return None
    failure = hang_failure(reports, "")
    told = failure.replace(
        verdict="a rank kept the others waiting",
        why=f"{failure.why}; then their call timed out",
        next="see why it does not go on at that line; what rank 0 alone does (download, prepare, save) can be done "
        "before the run (workload.prepare in config.yaml), or the others given more time: "
        "init_process_group(timeout=...)",
    )
    return with_threads(case, told)


def stalled(reports: Sequence[AgentStall]) -> list[Stalled]:
    """Return the ranks of these reports, in order."""
    stalls = ((stall, report) for report in reports for stall in report.ranks)
    ranks = (Stalled(stall, report.node_rank, report.host, main_stack(stall.stack or "")) for stall, report in stalls)
    return sorted(ranks, key=lambda rank: rank.stall.rank)


def lagging(ranks: Sequence[Stalled]) -> list[Stalled]:
    """Return the ranks that the others wait for; empty if none stands out.

    The first case that holds decides:

    1. some are stopped: these;
    2. there is one rank: this one;
    3. some have ended, and all others are past their steps and wait for none: these others;
    4. all have ended: those whose process is still there, if others are gone;
    5. some have ended: these, and of them those with the fewest steps;
    6. some are in no collective while others are in one: these, and of them those with the fewest steps;
    7. all are in collectives, and in different ones: those that handle an exception, else those that are in another one
       than most (numbers of calls and steps tell nothing here: a rank that leaves one out is ahead);
    8. some have begun fewer collectives: those with the fewest;
    9. some have made fewer steps: those with the fewest.
    """
    stopped = [rank for rank in ranks if rank.stall.process == "stopped"]
    ended = [rank for rank in ranks if rank.ended]
    elsewhere = [rank for rank in ranks if not rank.waits]
    if stopped:
        return stopped
    if len(ranks) == 1:
        return list(ranks)
    left = [rank for rank in ranks if not rank.ended]
    if ended and left and all(rank.is_elsewhere_after_its_steps for rank in left):
        return left
    if not left:  # the rank that is still there keeps the run from ending
        alive = [rank for rank in ranks if rank.stall.process != "gone"]
        return alive if len(alive) < len(ranks) else []
    for some in (ended, elsewhere):
        if 0 < len(some) < len(ranks):
            return _fewest_steps(some) or some
    if _in_different_collectives(ranks):
        failing = [rank for rank in ranks if rank.stall.handles]
        if 0 < len(failing) < len(ranks):
            return failing
        (usual, most), (_, second), *_ = Counter(doing(rank.stack) for rank in ranks).most_common()
        return [rank for rank in ranks if doing(rank.stack) != usual] if most > second else []
    begun = [rank.stall.sequence for rank in ranks]
    if None not in begun and len(set(begun)) > 1:
        least = min(number for number in begun if number is not None)
        return [rank for rank in ranks if rank.stall.sequence == least]
    return _fewest_steps(ranks)


def _in_different_collectives(ranks: Sequence[Stalled]) -> bool:
    return all(rank.waits for rank in ranks) and len({doing(rank.stack) for rank in ranks}) > 1


def _fewest_steps(ranks: Sequence[Stalled]) -> list[Stalled]:
    """Return the ranks with the fewest steps; empty if all made as many."""
    fewest = min(rank.stall.steps for rank in ranks)
    least = [rank for rank in ranks if rank.stall.steps == fewest]
    return least if len(least) < len(ranks) else []


def hang_failure(reports: Sequence[AgentStall], stacks: str) -> Failure:
    """Return the failure of the run that these reports are about. stacks: where the ranks' stacks are, in words."""
    ranks = stalled(reports)
    silent_s = min(rank.stall.silent_s for rank in ranks)
    if cut := _cuts(reports):
        return _cut_off(reports, cut, silent_s)
    if own := _at_own_rendezvous(ranks):
        return own.replace(at_s=reports[0].found_at_s - silent_s)
    causes = lagging(ranks)
    named = [in_short([rank.text for rank in causes or ranks], NAMED, "; ")]
    awaited = {rank.stall.rank for rank in causes}
    waiting = [rank for rank in ranks if rank.stall.rank not in awaited and rank.waits]
    if causes and waiting:
        others = rank_numbers([rank.stall.rank for rank in waiting])
        named.append(f"{others} waited {doing(waiting[0].stack)}")
    if causes and not causes[0].ended and (ended := [rank.text for rank in ranks if rank.ended]):
        named.append(in_short(ended, NAMED, "; "))
    verdict, next_step = _verdict(ranks, causes, stacks)
    one_in_each = {doing(rank.stack): rank for rank in reversed(waiting)}  # collective
    return Failure(
        verdict=verdict,
        why=f"{'; '.join(named)}; no rank made progress for {duration(silent_s)}",
        next=next_step,
        rank=causes[0].stall.rank if causes else None,
        node=causes[0].host if causes else None,
        at_s=reports[0].found_at_s - silent_s,
        evidence=tuple(line for rank in (*causes[:NAMED], *reversed(one_in_each.values())) for line in rank.evidence),
    )


def _cuts(reports: Sequence[AgentStall]) -> dict[tuple[int, int], str]:
    """Return which node does not reach which other, and why.

    A node that none of its testers reaches may have a firewall, if it reaches the head itself, or if all others have
    one, too. The head has none: there the ranks had met.
    """
    cut = {(report.node_rank, other.node_rank): other.why for report in reports for other in report.unreached}
    reached = {(report.node_rank, node) for report in reports for node in report.tested} - cut.keys()
    without_firewall = {0, *(node for _, node in reached)}
    silent = {node for _, node in cut} - {report.node_rank for report in reports}
    unheard = set[int]() if without_firewall == {0} else silent
    suspects = without_firewall | unheard | {node for node, other in cut if other == 0}
    return {pair: why for pair, why in cut.items() if pair[1] in suspects}


def _cut_off(reports: Sequence[AgentStall], cut: Mapping[tuple[int, int], str], silent_s: float) -> Failure:
    """Return the failure of a run of which some nodes do not reach others: the one with most cuts is the suspect."""
    hosts = {report.node_rank: report.host for report in reports}

    def named(node: int) -> str:
        return f"node {node}{f' ({hosts[node]})' if node in hosts else ''}"

    pairs = {frozenset(pair): (pair, why) for pair, why in sorted(cut.items())}
    ways = [f"from {named(node)} to {named(other)} ({why})" for (node, other), why in pairs.values()]
    (suspect, _), *_ = Counter(sorted((node for pair in pairs for node in pair), reverse=True)).most_common()
    return Failure(
        verdict="nodes are cut off from each other",
        why=f"no connection {in_short(ways, NAMED)}; no rank made progress for {duration(silent_s)}",
        next="look at the links and the switch ports of these nodes (ip -s link), and at the network that "
        f"network.interface in cluster.yaml names; if a node is broken, {leave_out()}; then start snakemake again",
        node=hosts.get(suspect),
        at_s=min(report.found_at_s for report in reports) - silent_s,
    )


def _at_own_rendezvous(ranks: Sequence[Stalled]) -> Failure | None:
    """Return the failure of ranks that meet elsewhere than the launcher says; None if these are not why none goes on.

    At a place of their own they may well meet, once those that are elsewhere have come.
    """
    met = [rank for rank in ranks if rank.stall.own_rendezvous and in_rendezvous(rank.stack)]
    taken = next((rank for rank in met if rank.stall.listener), None)
    if not met or (taken is None and len(met) < len(ranks)):
        return None
    first = taken or met[0]
    who = rank_numbers([rank.stall.rank for rank in met])
    why = f"{who} wait in init_process_group() at {first.stall.own_rendezvous}, which the script names itself; the "
    why += f"launcher gave another place; {first.text}"
    if taken is None:
        verdict, next_step = "the script names a rendezvous of its own", f"{AS_LAUNCHED}; then start snakemake again"
    else:
        verdict, next_step = OWN_PORT, own_port_advice(first.host)
        why = f"{first.stall.listener} listens there: {why}"
    return Failure(verdict=verdict, why=why, next=next_step, node=first.host, evidence=first.evidence)


def _verdict(ranks: Sequence[Stalled], causes: Sequence[Stalled], stacks: str) -> tuple[str, str]:
    if causes and causes[0].stall.process == "stopped":
        return (
            "a rank was stopped",
            f"find out what stopped it on {causes[0].host} (a signal SIGSTOP or SIGTSTP, a debugger), and start "
            "snakemake again",
        )
    all_ended = all(rank.ended for rank in ranks)
    if causes and causes[0].ended and not all_ended:
        left = [rank for rank in ranks if not rank.ended]
        shown = "\n".join(frame.text for frame in left[0].stack)
        steps = {rank.stall.steps for rank in (*causes, *left)}
        return "a rank left the others", against_leaving(steps, in_backward(shown))
    verdict, what = "the training hung", "see why it does not go on at that line"
    if all_ended:
        verdict = "the processes did not end"
        what = "see what the main threads still wait for (in _shutdown: a thread of the script that is no daemon)"
    elif any(rank.waits and rank.stall.handles for rank in causes) and not all(rank.stall.handles for rank in ranks):
        verdict, what = "a rank that fails waits for the others", FAILS_ALONE
    elif _in_different_collectives(ranks):
        verdict, what = "the ranks are in different collectives", SAME_CALLS
    else:
        if not any(rank.stall.steps for rank in ranks):
            verdict = "no first step"
        if not causes and all(doing(rank.stack) == "in init_process_group()" for rank in ranks):
            what = f"each rank waits for ranks that never come: {AS_LAUNCHED}"
        elif not causes and not any(rank.waits for rank in ranks):
            what = (
                "no rank stands out, and none is in a collective call: see why they do not go on at their lines (a "
                "device may be in an earlier call), and look at what they share, such as the file system"
            )
        elif not causes:
            what = (
                "no rank stands out: see that all make this call alike (src, group, shape), and look at what they "
                "share, such as the file system, the GPUs' links, and the network between the nodes (network.interface "
                "in cluster.yaml)"
            )
    no_hang = (
        "if it was no hang, raise hang.at_least_s or hang.times_median_step in config.yaml (before the second step "
        "hang.first_step_s)"
    )
    return verdict, f"{what}\nthe stacks of all ranks are in {stacks}\n{no_hang}"


_HEADER = "(most recent call first):"
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$', re.MULTILINE)
_OWN = re.compile(r'^  File ".*(?:/ddp_ladder_instrument/.*|/instrument\.py)", line .*\n?', re.MULTILINE)
_COLLECTIVE = ("torch/distributed/", "torch/nn/parallel/distributed.py")
_WRAPPERS = {"wrapper", "decorate_context", "_fn"}
_BACKWARD = "_engine_run_backward"
_LOADER = "torch/utils/data/dataloader.py"
_BUSY_FILES = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/compile_fx.py",
    "torch/serialization.py",
    "torch/distributed/checkpoint/",
    "/safetensors/",
    "/subprocess.py",
)
_BUSY_FUNCTION = re.compile(r"^(?!.*(?:train|fit|main|loop)).*(?:save|checkpoint|valid|eval)", re.IGNORECASE)


@dataclass(frozen=True)
class Frame:
    """A place in a program."""

    file: str
    line: str  # ``???`` if it is not known
    function: str

    @property
    def text(self) -> str:
        """The line as Python's tracebacks show it."""
        return f'File "{self.file}", line {self.line}, in {self.function}'

    def is_in(self, *files: str) -> bool:
        return any(file in self.file for file in files)


def without_own(text: str) -> str:
    """Return the stack without the frames of the instrument."""
    return _OWN.sub("", text).rstrip("\n")


def main_stack(text: str) -> list[Frame]:
    """Return the frames of the last stack, the most recent call first: a rank may have answered twice."""
    return [Frame(**frame.groupdict()) for frame in _FRAME.finditer(text.rpartition(_HEADER)[2])]


def of_script(stack: list[Frame]) -> list[Frame]:
    """Return the frames of the user's own code: no installed package, no standard library; all if there are none."""
    return [frame for frame in stack if not LIBRARY.search(frame.file)] or stack


def in_collective(stack: list[Frame]) -> bool:
    """Return True if the rank waits for others: in a call of torch.distributed, or of DDP, or in a backward pass.

    During a backward pass the gradients are reduced; a stack cannot tell this from computing.
    """
    return bool(stack) and (stack[0].is_in(*_COLLECTIVE) or stack[0].function == _BACKWARD)


def in_rendezvous(stack: list[Frame]) -> bool:
    """Return True if the rank waits for the others to join its process group: it takes seconds once all have come."""
    return in_collective(stack) and any(frame.function == "init_process_group" for frame in stack)


def is_at_work(stack: list[Frame]) -> bool:
    """Return True if the rank saves, validates, compiles, or waits for a program that it started."""
    return any(
        frame.is_in(*_BUSY_FILES) or (not LIBRARY.search(frame.file) and _BUSY_FUNCTION.search(frame.function))
        for frame in stack
    )


def doing(stack: list[Frame]) -> str:
    """Return what the rank was doing besides the line of its script: ``in backward()``; empty if nothing is known."""
    if in_collective(stack):
        calls = [frame.function for frame in stack if frame.is_in(*_COLLECTIVE)]
        return f"in {next((name for name in reversed(calls) if name not in _WRAPPERS), 'backward')}()"
    if any(frame.is_in(_LOADER) for frame in stack):
        return "waiting for a batch of its DataLoader"
    return "waiting for its GPU" if any(frame.function == "synchronize" for frame in stack) else ""
