"""A failed run, as the rows of the table in ``failures`` look at it: its files, its speakers' words, and what to quote.

What is quoted is a line verbatim, after the statement that raised it if it ends a traceback.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from ddp_ladder_instrument.contract import AT_ITS_END
from ddp_ladder_instrument.redaction import redacted

from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.common.formats import grouped, hostlist
from ddp_ladder.common.messages import numbered
from ddp_ladder.diagnosis.correctness import Diagnosis
from ddp_ladder.diagnosis.signatures import (
    LEAST_OF_NCCL_BYTES,
    TRACEBACK,
    Match,
    Role,
    Words,
    cut,
    is_consequence,
    lines_of_agent,
    matches,
    of_agent,
    of_srun,
    read_lines,
)
from ddp_ladder.node.launch import training_python
from ddp_ladder.records.raw_files import RawRun
from ddp_ladder.records.raw_models import AgentEnd, FailedRank, RankEnd, RunFile
from ddp_ladder.records.record import Evidence, Failure
from ddp_ladder.settings.terms import runtime_key
from ddp_ladder.slurm.jobs import GO_ON

AGAIN = "start snakemake again: only failed runs are repeated"
MOST_LINES = 5  # that are quoted
by_end = attrgetter("ended_at_s")  # key of the ends of ranks and agents


class Ended(FailedRank):
    """A rank that an agent saw fail by itself, with the agent's node."""

    node_rank: int
    host: str

    @property
    def place(self) -> str:
        """Return ``rank 3 (node 1, node7)``."""
        return f"rank {self.rank} (node {self.node_rank}, {self.host})"


@dataclass(frozen=True)
class Case:
    """A run that failed: its raw files, its sanity checks, and the words of all its speakers."""

    raw: RawRun
    diagnoses: Sequence[Diagnosis]

    @property
    def failed_checks(self) -> list[Diagnosis]:
        return [diagnosis for diagnosis in self.diagnoses if not diagnosis.finding.ok]

    @property
    def again(self) -> str:
        """Return what to do once the cause is gone: a link of a chain is not repeated."""
        return GO_ON if self.raw.spec.is_link else AGAIN

    @property
    def look(self) -> str:
        """Return what to do if nothing is known but the log."""
        return f"read {self.raw.directory.log}, fix the cause, and {self.again}"

    @property
    def outcome(self) -> str:
        return self.raw.ended.outcome if self.raw.ended else "unknown"

    @cached_property
    def own(self) -> list[RankEnd]:
        """Return the ranks that failed for a reason of their own, and not because they lost another; first to end."""
        failed = (end for end in self.raw.ends if end.failed)
        own = (end for end in failed if not (end.exception and is_consequence(end.exception, self.several_nodes)))
        return sorted(own, key=by_end)

    @property
    def own_at_s(self) -> float:
        """Return when the first of these ended; infinite if there is none."""
        return self.own[0].ended_at_s if self.own else math.inf

    @cached_property
    def seen_to_fail(self) -> list[Ended]:
        """Return all ranks that an agent saw fail by themselves, in the order of time."""
        seen = [
            Ended(**dict(rank), node_rank=agent.node_rank, host=end.host)
            for agent, end in self.raw.agents.items()
            for rank in end.failed_ranks
        ]
        return sorted(seen, key=lambda rank: (rank.ended_at_s, rank.rank))

    @property
    def several_nodes(self) -> bool:
        return len({end.host for end in self.raw.agents.values()}) > 1

    @property
    def ended_badly(self) -> bool:
        """Return True if a process failed or was missing; False if only a check of what was measured failed."""
        agents = self.raw.agents.values()
        failed = any(end.failed for end in agents) or any(end.failed for end in self.raw.ends)
        return self.outcome != "finished" or not agents or failed

    @cached_property
    def said(self) -> tuple[Words, ...]:
        """Return what ended each rank, by its own record; first to end first."""
        ends = (end for end in self.raw.ends if end.exception)
        return _in_order(Words("rank", e.rank, e.host, (e.exception or "",), e.ended_at_s) for e in ends)

    @cached_property
    def printed(self) -> tuple[Words, ...]:
        """Return what all processes printed, as their logs have it; the agent that ended first first, then srun."""
        raw, run = self.raw, self.raw.run
        said = _in_order(
            words
            for agent in run.all_agents
            for words in words_of_agent(raw.directory, run, agent, raw.agents.get(agent))
        )
        return (*said, *of_srun(read_lines(self.raw.directory.launcher_log)), *self._of_nccl())

    @cached_property
    def printed_matches(self) -> tuple[Match, ...]:
        return tuple(matches(self.printed, "root", "sched", "symptom", several_nodes=self.several_nodes))

    @cached_property
    def raised(self) -> RaisedLines:
        ends = self.raw.ends
        return RaisedLines(self.printed, (text for end in ends for text in (end.exception, end.handled) if text))

    @cached_property
    def said_matches(self) -> tuple[Match, ...]:
        return tuple(matches(self.said, "root", "symptom", several_nodes=self.several_nodes))

    def _of_nccl(self) -> Iterator[Words]:
        """Yield NCCL's own logs, of one process each: nccl.<host>.<pid>.log."""
        ranks = {(end.host, str(end.pid)): end.rank for end in self.raw.ends}
        for file in self.raw.directory.nccl_logs():
            host, _, process = file.stem.removeprefix("nccl.").rpartition(".")
            lines = read_lines(file, self.raw.spec.world_size, LEAST_OF_NCCL_BYTES)
            # What NCCL does, with NCCL_DEBUG at INFO, is no failure, and may be very much.
            told = tuple(line for line in lines if " NCCL INFO " not in line)
            yield Words("NCCL", ranks.get((host, process)), host or None, told)

    def of_scripts(self, node: str | None, rank: int | None) -> list[Words]:
        """Return what was printed on a node and may be of a rank; None: any. The ranks of a node may share a log."""
        return [
            words
            for words in self.printed
            if words.speaker in ("rank", "agent")
            and (node is None or words.node == node)
            and (rank is None or words.rank in (rank, None))
        ]

    def last_line(self, node: str, rank: int | None = None) -> str:
        """Return the last line that was printed on a node by a rank, or by any; empty if there is none.

        Lines at the end that only report the loss of another rank are left out, unless there are no others.
        """
        # Without torch's mark of a rank first. A stack that its agent has written is none of its words.
        said = [_up_to_its_end(words.lines) for words in reversed(self.of_scripts(node, rank))]
        last = next((index for lines in said if (index := _last_of_no_victim(lines))), "")
        return cut(last or next((line for lines in said for line in reversed(lines) if line.strip()), ""))


def words_of_agent(directory: RunDirectory, run: RunFile, agent: Agent, end: AgentEnd | None) -> Iterator[Words]:
    """Yield the words in the log of an agent. end: None if it left no end record."""
    spec, lines = run.spec, read_lines(directory.agent_log(agent, run.agents), run.agents)
    several = agent.local_rank is None and spec.gpus_per_node > 1 and not spec.is_plain
    only_rank = None if several else agent.node_rank * spec.gpus_per_node + (agent.local_rank or 0)
    host = end.host if end else run.nodes[agent.node_rank]
    return of_agent(lines_of_agent(lines, str(agent)), only_rank, host, end.ended_at_s if end else None)


def _in_order(words: Iterable[Words]) -> tuple[Words, ...]:
    return tuple(sorted(words, key=lambda said: math.inf if said.at_s is None else said.at_s))


def _up_to_its_end(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines before the stack of a rank that a signal ended."""
    return lines[: next((index for index, line in enumerate(lines) if line.startswith(AT_ITS_END)), None)]


def _last_of_no_victim(lines: Sequence[str]) -> str:
    """Return the last line that is no report of a lost rank, nor in its traceback; empty if there is none."""
    end = len(lines)
    while end > 0:
        line = lines[end - 1]
        if line.strip() and not is_consequence(line):
            return line
        end = traceback_to(lines, end - 1).start if line.strip() else end - 1
    return ""


# The lines that show the cause

_MODULES = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*\b)")  # before the name of an exception
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+')
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/ddp_ladder_instrument/|/instrument\.py$")
_MARKS = re.compile(r"^[\s^~]*$")  # below a statement of a traceback
_OF_WORKER = re.compile(r"^\w+: Caught \w+ in DataLoader worker process \d+\. ")
_JOINTS = {  # between an exception and another one that was raised because of it
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
}


def quote(words: Words, lines: Iterable[str]) -> tuple[Evidence, ...]:
    """Return lines of one speaker."""
    return tuple(Evidence(speaker=words.place, line=cut(line)) for line in lines if line.strip())[:MOST_LINES]


def with_place(words: Words, index: int) -> tuple[Evidence, ...]:
    """Return a line, after the statement of the script that raised it if it ends a traceback."""
    return quote(words, (*_statement(words.lines, index), words.lines[index]))


def where_raised(case: Case, rank: int | None, exception: str) -> tuple[Evidence, ...]:
    """Return an exception's last line as the log has it, with its statement; empty if no log has it.

    Of an exception in a worker of the loader: where the worker raised it.
    """
    line = case.raised.find(rank, _in_worker(exception)) or case.raised.find(rank, exception)
    return with_place(replace(line[0], rank=rank), line[1]) if line else ()


def traceback_of(case: Case, end: RankEnd) -> str:
    """Return the traceback of the exception that ended a rank, as the log has it; empty if no log has it."""
    at = case.raised.find(end.rank, str(end.exception))
    return "\n".join(at[0].lines[index] for index in traceback_to(at[0].lines, at[1])) if at else ""


def _in_worker(exception: str) -> str:
    """Return the exception that a worker of the loader raised, if this is one of these; else the same."""
    return _OF_WORKER.sub("", exception)


class RaisedLines:
    """The lines of logs that may be an exception's, by the rank that printed them (None: not known) and their text."""

    def __init__(self, printed: Sequence[Words], exceptions: Iterable[str]) -> None:
        """exceptions: all that may be looked for."""
        self._printed = printed
        self._places: dict[tuple[int | None, str], tuple[int, int]] = {}  # index of the words, and of the line in them
        self._lengths: dict[int | None, set[int]] = {}
        names = {_name_of(text) for exception in exceptions for text in (exception, _in_worker(exception))}
        for place, words in enumerate(printed):
            for index, line in enumerate(words.lines):
                if any(name in line for name in names):
                    self._add((words.rank, _text_of(line)), place, index)

    def _add(self, key: tuple[int | None, str], place: int, index: int) -> None:
        if self._places.get(key, (place, index))[0] == place:  # of the first words, the last line
            self._places[key] = place, index
            self._lengths.setdefault(key[0], set()).add(len(key[1]))

    def find(self, rank: int | None, exception: str) -> tuple[Words, int] | None:
        """Return where the log has an exception: the words, and the index of its line; None if no log has it."""
        for who in (rank, None):
            texts = {exception[:length] for length in self._lengths.get(who, ())}
            begins = [text for text in texts if _is_beginning_of(text, exception)]
            if places := [self._places[who, text] for text in begins if (who, text) in self._places]:
                place, index = min(places, key=lambda place: (place[0], -place[1]))
                return self._printed[place], index
        return None


def traceback_to(lines: Sequence[str], end: int) -> range:
    """Return the indices of the traceback that ends there, with those of the exceptions that led to it.

    Of that line alone, if there is no traceback directly above it.
    """
    first = _above(lines, end)
    if first < 0 or TRACEBACK not in lines[first]:
        return range(end, end + 1)
    while (joint := _above(lines, first)) >= 0 and lines[joint].strip() in _JOINTS:
        first = next((index for index in range(joint, -1, -1) if TRACEBACK in lines[index]), joint)
    return range(first, end + 1)


def _above(lines: Sequence[str], before: int) -> int:
    """Return the index of the last line before this one that is neither blank nor indented; -1 if there is none."""
    return next((index for index in range(before - 1, -1, -1) if lines[index][:1].strip()), -1)


def _statement(lines: Sequence[str], end: int) -> tuple[str, ...]:
    """Return place and statement of the last frame that is not of a library, of the traceback that ends there."""
    files = {index: frame[1] for index in range(_above(lines, end) + 1, end) if (frame := _FRAME.match(lines[index]))}
    own = [index for index, file in files.items() if not LIBRARY.search(file)] or [*files]
    if not own:
        return ()
    following = lines[own[-1] + 1 : own[-1] + 2]
    return (lines[own[-1]], *(line for line in following if not _FRAME.match(line) and not _MARKS.match(line)))


def caught(case: Case, node: str | None = None, rank: int | None = None) -> tuple[Evidence, ...]:
    """Return the last exception, with its statement, whose traceback a script printed itself; empty if it did not."""
    for words in case.of_scripts(node, rank):
        for index in reversed(range(len(words.lines))):
            line = words.lines[index]
            if line[:1].isalpha() and _statement(words.lines, index) and not is_consequence(line):
                return with_place(words, index)
    return ()


_OF_THREAD = re.compile(r"^Exception in thread .+:$")


def of_threads(case: Case) -> tuple[Evidence, ...]:
    """Return the first exception that ended a thread of a script, as Python printed it; empty if none did."""
    for words in case.of_scripts(None, None):
        in_thread = False
        for index, line in enumerate(words.lines):
            in_thread = in_thread or bool(_OF_THREAD.match(line))
            if in_thread and line[:1].isalpha() and _statement(words.lines, index) and not is_consequence(line):
                return with_place(words, index)
    return ()


_OF_RUNTIME = re.compile(r"^\s*what\(\): |^Fatal Python error: |: Assertion `.+' failed")


def of_runtime(case: Case, node: str, rank: int) -> tuple[Evidence, ...]:
    """Return what C, C++ or Python printed last before it aborted a rank; empty if it printed nothing."""
    for words in case.of_scripts(node, rank):
        if said := [line for line in words.lines if _OF_RUNTIME.search(line) and not is_consequence(line)]:
            return quote(words, said[-1:])
    return ()


def is_line_of(line: str, exception: str) -> bool:
    """Return True if a line of a traceback is the beginning of this exception: ``ValueError: no such file``.

    The message may be missing, or begin on the next line.
    """
    return _name_of(exception) in line and _is_beginning_of(_text_of(line), exception)


def _is_beginning_of(text: str, exception: str) -> bool:
    return text == exception or (text.startswith(f"{_name_of(exception)}:") and exception.startswith(text))


def _name_of(exception: str) -> str:
    return exception.partition(":")[0]


def _text_of(line: str) -> str:
    """Return the line as a rank reports its exception: without secrets, and without the modules of its name."""
    return " ".join(_MODULES.sub("", redacted(line).strip()).split())


# The failures that a line names

_OF_LIBRARIES = re.compile(r"\bNCCL WARN\b|^\s*what\(\): ")  # the latter: the C++ runtime, of an exception that aborts


def root(case: Case) -> Failure | None:
    """Return the failure whose cause a line names."""
    match = root_match(case)
    return failure_of(case, match) if match else None


def root_match(case: Case) -> Match | None:
    """Return the line that names the cause: of the exception that ended a rank, else of a log."""
    return _first(case.said_matches, "root") or _root_printed(case)


def root_raised(case: Case) -> Failure | None:
    """Return the failure whose cause the exception that ended a rank names."""
    return _of_first(case, case.said_matches, "root")


def _root_printed(case: Case) -> Match | None:
    """Return the line of a log that names the cause, in words that no script prints and goes on after.

    These are words of NCCL, torchrun, srun, Slurm and the like, and exceptions that led to the one that ended a rank.
    """
    if not case.ended_badly or case.raw.unwritten or case.outcome == "not written":
        return None
    raised = (case.raised.find(end.rank, end.exception) for end in case.raw.ends if end.exception)
    led = grouped((id(words), traceback_to(words.lines, index)) for words, index in filter(None, raised))
    named = (
        match
        for match in case.printed_matches
        if _is_of_no_script(match) or any(match.index in lines for lines in led.get(id(match.words), ()))
    )
    return _first(named, "root")


def _is_of_no_script(match: Match) -> bool:
    of_script = match.words.speaker in ("rank", "agent")
    return not of_script or match.signature.fatal or bool(_OF_LIBRARIES.search(match.line))


def root_at_end(case: Case, node: str, rank: int | None = None) -> Failure | None:
    """Return the failure whose cause is named by the last line of a process that ended with an exit code.

    rank: the line must end a traceback, which it caught and printed; None for a launcher.
    """
    last = case.last_line(node, rank)
    for match in case.printed_matches:
        words = match.words
        if match.signature.role != "root" or words.node != node or cut(match.line) != last:
            continue
        if rank is None:
            return failure_of(case, match)
        if words.rank in (rank, None) and _statement(words.lines, match.index):
            return failure_of(case, replace(match, words=replace(words, rank=rank)))
    return None


def ended_by_scheduler(case: Case) -> Failure | None:
    """Return the failure of a run that Slurm ended. A line that names the node comes first.

    Where the ladder ended the run in its own time, what Slurm says of a limit is of what was left of the job.
    """
    is_own = case.outcome == "time limit"
    words = (match for match in case.printed_matches if not (is_own and match.signature.kind == "time limit"))
    in_order = sorted(words, key=lambda match: "node" not in match.values)
    return _of_first(case, in_order, "sched") if case.ended_badly else None


def symptom(case: Case) -> Failure | None:
    """Return the failure that an ambiguous line shows, where nothing names the cause."""
    return _of_first(case, (*case.said_matches, *case.printed_matches), "symptom") if case.ended_badly else None


def watchdog(case: Case, node: str, rank: int) -> Failure | None:
    """Return the failure that NCCL's watchdog printed before it aborted this rank; it names no rank as the cause."""
    told = (match for match in matches(case.printed, "victim") if match.signature.id == "nccl_watchdog")
    own = (match for match in told if match.words.node == node and match.words.rank in (rank, None))
    return _of_first(case, own, "victim")


def symptom_of(case: Case, end: RankEnd) -> Failure | None:
    """Return the failure that an ambiguous exception of a rank shows."""
    return _of_first(case, (match for match in case.said_matches if match.words.rank == end.rank), "symptom")


def _of_first(case: Case, candidates: Iterable[Match], role: Role) -> Failure | None:
    match = _first(candidates, role)
    return None if match is None else failure_of(case, match)


def _first(candidates: Iterable[Match], role: Role) -> Match | None:
    return next((match for match in candidates if match.signature.role == role), None)


def failure_of(case: Case, match: Match) -> Failure:
    """Return the failure that a matched line names, with that line as evidence."""
    match, spec = _with_aborted_rank(case, match), case.raw.spec
    words, signature = match.words, match.signature
    pythons = {training_python(agent.argv) for agent in case.raw.agents.values() if agent.argv}
    known = {
        "nodes": hostlist(case.raw.run.nodes),
        "log": case.raw.directory.log,
        "port": case.raw.run.rendezvous.port,  # torch 2.4 does not name it
        "python": ", ".join(sorted(pythons)) or None,
        "runtime": runtime_key(spec.stage),
        "again": case.again if spec.is_link else None,
    }
    steps = list(match.next(**known))
    if not any("start snakemake" in step for step in steps):
        steps[-1] += "; then start snakemake again"
    ended = next((end for end in case.raw.ends if end.rank == words.rank and end.failed), None)
    failure = Failure(
        kind=signature.kind,
        verdict=signature.verdict,
        why=match.why(**known),
        next=numbered(steps),
        rank=match.rank,
        node=match.node,
        at_s=ended.ended_at_s if ended else words.at_s,
        evidence=_evidence(case, match)[:MOST_LINES],
    )
    own = ended.own_rendezvous.rpartition(":")[2] if ended and ended.own_rendezvous else None
    port = match.values.get("port", own)
    if signature.kind == "rendezvous port taken" and port not in (None, str(known["port"])):
        return _of_own_port(failure, port, case)
    return failure


OWN_PORT = "the script's own port is taken"


def own_port_advice(node: str | None) -> str:
    """Return what to do if another process listens at the port that a script names itself."""
    steps = (
        "let the script call init_process_group() without init_method, and leave MASTER_ADDR and MASTER_PORT as the "
        "launcher sets them",
        f"else `ss --listening --processes` on {node or 'that node'} shows which process listens: end it if it is "
        f"yours, or give the script another port; then start snakemake again",
    )
    return numbered(steps)


def _of_own_port(failure: Failure, port: str | None, case: Case) -> Failure:
    """Return the failure of a script that names its port itself: another start of the ladder takes no other."""
    given = case.raw.run.rendezvous.port
    shown = next((each.line for each in failure.evidence[1:-1]), None)
    why = f"another process listens on port {port}, which the script names itself; the launcher gave it port {given}"
    if shown:
        why = f"{why}; its line: {shown}"
    return failure.replace(kind=None, verdict=OWN_PORT, why=why, next=own_port_advice(failure.node))


def _with_aborted_rank(case: Case, match: Match) -> Match:
    """Return a match whose line is of the only rank that aborted on its node, if C++ printed it as it aborted one."""
    words = match.words
    aborted = [rank.rank for rank in case.seen_to_fail if rank.signal == "SIGABRT" and rank.host == words.node]
    is_its = words.rank is None and len(aborted) == 1 and bool(_OF_RUNTIME.search(match.line))
    return replace(match, words=replace(words, speaker="rank", rank=aborted[0])) if is_its else match


def _evidence(case: Case, match: Match) -> tuple[Evidence, ...]:
    """Return the matched line with its statement, and the exception of a rank's own if that is another one."""
    shown = with_place(match.words, match.index)
    if match.words in case.said:
        return where_raised(case, match.words.rank, match.line) or shown
    first = next(iter(case.own), None)
    if first is None or not first.exception or is_line_of(match.line, first.exception):
        return shown
    return shown + where_raised(case, first.rank, first.exception)[-1:]
