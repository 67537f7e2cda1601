"""Environment variables of communication libraries: names and values that cannot be meant. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.messages import Problem
from ddp_ladder.common.redaction import NOT_SHOWN
from ddp_ladder.preflight.contradictions import Contradiction, contradictions, interface_problem
from ddp_ladder.preflight.known_variables import Variable, known_variables
from ddp_ladder.preflight.variable_values import objection
from ddp_ladder.settings.secrets import is_secret
from ddp_ladder.settings.strict_yaml import shown

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_STREAMS = ("/dev/stdout", "/dev/stderr")


@dataclass(frozen=True)
class Place:
    """Variables that are set in one place.

    where: of a variable, for messages. has_reason: whether it is said why one is set. how: how to say it. is_shell: the
    user's shell exports them, and no settings file names them.
    """

    values: Mapping[str, str]
    where: Callable[[str], str]
    has_reason: Callable[[str], bool]
    how: str = ""
    is_shell: bool = False


@dataclass(frozen=True)
class Misuse:
    """A problem of a variable. wrong: the run would fail, or silently ignore what the files ask for."""

    problem: Problem
    wrong: bool


def check_places(places: Sequence[Place], interfaces: Collection[str] | None) -> Iterator[Misuse]:
    """Yield what is wrong with the names and values in each place.

    interfaces: of the machine that the training runs on; None if they are not known here.
    """
    for place in places:
        for name, value in place.values.items():
            row = known_variables().find(name)
            if row is None or not row.exists:
                found: Iterable[Misuse] = _name_findings(place, name, value)
            else:
                found = (*_value_findings(place, row, value, interfaces), *_use_findings(place, row))
            yield from (Misuse(each.problem, each.wrong and not place.is_shell) for each in found)


def check_together(places: Sequence[Place]) -> Iterator[Misuse]:
    """Yield what contradicts itself in the variables of one run. places: later ones override earlier ones."""
    origin = {name: place for place in places for name in place.values}
    values = {name: place.values[name] for name, place in origin.items() if "{" not in place.values[name]}
    for each in contradictions(values):
        yield _contradiction(each, values, origin)


def _contradiction(each: Contradiction, values: Mapping[str, str], origin: Mapping[str, Place]) -> Misuse:
    first, *others = each.names
    found = [f"{first}: {shown_value(first, values[first])}"]
    found += [
        f"{name}: {NOT_SHOWN if is_hidden(name, values[name]) else values[name]} ({origin[name].where(name)})"
        for name in others
        if name in values
    ]
    wrong = each.certain and not any(origin[name].is_shell for name in each.names if name in origin)
    return Misuse(Problem(origin[first].where(first), each.what, "; ".join(found), next=each.next), wrong)


def _name_findings(place: Place, name: str, value: str) -> Iterator[Misuse]:
    known = known_variables()
    if row := known.find(name):
        yield Misuse(_no_longer(place, row, value), True)
    elif known.is_unknown(name):
        meant = known.meant(name)
        what = f"{Variable(name).program} has no such variable, and would ignore it"
        advice = f'did you mean "{meant}"?' if meant else "remove it, unless a plugin or a newer release reads it"
        if meant and not known.misspelt(name):
            advice += " If a newer release has it, export it in software.setup, which is not checked"
        # Without a name that it is like, it may be a newer release's, or a plugin's.
        yield Misuse(Problem(place.where(name), what, _assignment(name, value), next=advice), meant is not None)
    elif (row := known.find(name.upper())) and row.exists:
        what = f"{row.program} reads {row.name}, and would ignore a name in lower case"
        yield Misuse(Problem(place.where(name), what, _assignment(name, value), next=f"write {row.name}"), True)
    elif near := known.misspelt(name):
        what = f"one letter away from {near}, and probably without effect"
        problem = Problem(place.where(name), what, name, next=f'did you mean "{near}"?')
        yield Misuse(problem, False)


def _no_longer(place: Place, row: Variable, value: str) -> Problem:
    """Return the problem of a name that no program reads, or none any more."""
    since = f" in {row.version}" if row.version else ""
    what = {
        "renamed": f"{row.program} renamed it{since}, and ignores the old name",
        "removed": f"{row.program} removed it{since}, and ignores it",
        "never": f"{row.program} never had this variable, and ignores it",
    }[row.status]
    return Problem(place.where(row.name), what, _assignment(row.name, value), next=_instead(row, value))


def _instead(row: Variable, value: str) -> str:
    twin = row.replacement.removeprefix("!")
    if row.replacement.startswith("!"):
        # The twin says the opposite, and what this one asks for is the twin's default, or the other value.
        off = value.strip().lower() in ("0", "no", "false", "off")
        disables = twin.endswith("_DISABLE")
        if off == disables:
            return f"write {twin}: {int(disables)} in its place"
        return f"remove it: this is so by default, unless something sets {twin}: {int(disables)}"
    if not twin:
        is_timeout = row.name.endswith("_TIMEOUT")
        return f"remove it{'; the timeout is an argument of init_process_group in the script' if is_timeout else ''}"
    if row.status == "renamed":
        return f"write {twin} in its place"
    return f"remove it; {twin} is nearest to it" if row.status == "removed" else f"did you mean {twin}?"


def _value_findings(place: Place, row: Variable, value: str, interfaces: Collection[str] | None) -> Iterator[Misuse]:
    if "{" in value:  # a placeholder, whose value each run has
        return
    where = place.where(row.name)
    if found := objection(row.value, value):
        allowed, advice = found
        advice = advice or "write one of these values, or remove it"
        what = f"not a value that {row.program} takes for {row.name}"
        yield Misuse(Problem(where, what, shown_value(row.name, value), allowed, advice), True)
    elif row.name in INTERFACES and interfaces is not None:
        yield from _interface_findings(where, row.name, value, interfaces)


def _interface_findings(where: str, name: str, value: str, here: Collection[str]) -> Iterator[Misuse]:
    if what := interface_problem(name, value, here):
        advice = "write one of these, or remove it: network.interface sets it; each node may have another one"
        if "start of a name" in what:
            advice = f"write = in front for exactly this name: ={value}"
        there = f"{', '.join(sorted(here))} (on this machine)"
        yield Misuse(Problem(where, what, shown(value), there, advice), False)


def _use_findings(place: Place, row: Variable) -> Iterator[Misuse]:
    where, value = place.where, place.values[row.name]
    if row.name == "NCCL_DEBUG_FILE" and value not in _STREAMS and not ("%h" in value and "%p" in value):
        what = "all processes would write to the same file, and overwrite each other"
        missing = "".join(f".{part}" for part in ("%h", "%p") if part not in value)
        allowed, advice = "a name with %h (host) and %p (process)", f"write for example {value}{missing}"
        yield Misuse(Problem(where(row.name), what, shown(value), allowed, advice), False)
    if row.status == "deprecated":
        what = f"deprecated since {row.since}; a newer release may ignore it"
        yield Misuse(Problem(where(row.name), what, row.name, next=f"write {row.replacement} in its place"), False)
    if row.status == "debugging" and not place.is_shell and not place.has_reason(row.name):
        what = f"a variable for debugging: it can make every run slower, and {row.program} may ignore it later"
        advice = f"say why: {place.how}; or remove it"
        yield Misuse(Problem(where(row.name), what, _assignment(row.name, value), next=advice), False)


def _assignment(name: str, value: str) -> str:
    return f"{name}: {shown_value(name, value)}"


def shown_value(name: str, value: str) -> str:
    """Return a value for a message; that of a secret is not shown."""
    return NOT_SHOWN if is_hidden(name, value) else shown(value)


def is_hidden(name: str, value: str) -> bool:
    """Return True for a secret, by the list of variables or by name and value."""
    return known_variables().is_secret(name) or is_secret(name, value)
