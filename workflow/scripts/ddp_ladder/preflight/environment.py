"""The environment that the training of a plan would get, checked: from the settings files and the user's shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddp_ladder.common.messages import Problem
from ddp_ladder.node.launch import INTERFACE_VARIABLES, Places, training_environment
from ddp_ladder.plan.plan import Plan, RunSpec
from ddp_ladder.preflight.contradictions import interface_problem
from ddp_ladder.preflight.exported import anything_to_check, exported
from ddp_ladder.preflight.known_variables import known_variables
from ddp_ladder.preflight.transport import kind_of
from ddp_ladder.preflight.variables import Misuse, Place, check_places, check_together, is_hidden
from ddp_ladder.settings.models import Settings
from ddp_ladder.settings.sources import Sources
from ddp_ladder.settings.strict_yaml import Document, KeyPath
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Interface, Transport

SHELL = "the shell's environment"


@dataclass(frozen=True)
class EnvironmentResult:
    """Result of the check. wrong: the run would fail or ignore what the files ask for. checked: number of variables."""

    wrong: tuple[Problem, ...] = ()
    doubts: tuple[Problem, ...] = ()
    checked: int = 0


def check_environment(
    settings: Settings,
    plan: Plan,
    sources: Sources,
    shell: Mapping[str, str] = os.environ,
    interfaces: Collection[str] | None = None,
) -> EnvironmentResult:
    """Return every mistake in the variables of network, workload and variants, and in what the shell exports, once.

    interfaces: of the machine that the training runs on; None if they are not known here.
    """
    if not anything_to_check(settings, shell):
        return EnvironmentResult()
    inherited = _inherited(plan, shell)
    variants = {each.name: each for each in settings.experiment.variants}
    documents = cache(sources.documents)
    config, cluster = (lambda: documents()[0]), (lambda: documents()[1])
    from_shell = Place(inherited, lambda name: f"{SHELL}: {name}", lambda name: False, is_shell=True)
    common = (
        _in_file(settings.site.network.env, cluster, ("network", "env")),
        _in_file(settings.experiment.workload.env, config, ("workload", "env")),
    )
    of_variant = {
        name: _in_file(each.env, config, ("variants", name, "env"), bool((each.reason or "").strip()))
        for name, each in variants.items()
    }
    own = [*of_variant.values()]
    tested = of_variant.get(REFERENCE_VARIANT, own[0])  # by the preflight; others may compare another network
    findings = [
        *check_places((from_shell, *common, *own), interfaces),
        *(finding for place in own for finding in check_together((from_shell, *common, place))),
        *_other_interfaces((from_shell, *common, *own), settings.site.network.interface),
        *_other_transport((from_shell, *common, tested), settings.site.network.transport, plan),
    ]
    doubts = [*_problems(findings, wrong=False), *([_named(inherited)] if inherited else [])]
    return EnvironmentResult(
        wrong=tuple(_problems(findings, wrong=True)),
        doubts=tuple(doubts),
        checked=sum(len(place.values) for place in (from_shell, *common, *own)),
    )


def _other_interfaces(places: Iterable[Place], interface: Interface) -> Iterator[Misuse]:
    """Yield variables that choose other interfaces than the site's, if that is one for all nodes."""
    if isinstance(interface, str) and interface != "auto":
        for place, name in ((place, name) for place in places for name in INTERFACE_VARIABLES if name in place.values):
            value = place.values[name]
            if "{" not in value and interface_problem(name, value, [interface]):
                what = f"network.interface is {interface}: the ranks meet there, and would exchange data elsewhere"
                advice = "remove it, or name in network.interface the one that is meant"
                yield Misuse(Problem(place.where(name), what, f"{name}: {value}", next=advice), False)


def _other_transport(places: Iterable[Place], wanted: Transport, plan: Plan) -> Iterator[Misuse]:
    """Yield variables by which the preflight would find another network than network.transport asks for."""
    if wanted == "any" or not any(run.backend == "nccl" and run.nodes > 1 for run in plan.runs):
        return
    set_last = {name: place for place in places for name in place.values}
    for name, place in set_last.items():
        value = place.values[name]
        chosen = kind_of(value) if name == "NCCL_NET" else None
        forbids = name == "NCCL_IB_DISABLE" and value.strip() == "1" and wanted == "ib"
        if forbids or chosen not in (None, wanted):
            what = f"network.transport is {wanted}: the preflight, and with it the gate, would fail"
            advice = "remove it, or name in network.transport of cluster.yaml what is meant"
            yield Misuse(Problem(place.where(name), what, f"{name}: {value}", next=advice), not place.is_shell)


def _in_file(
    env: Mapping[str, str], document: Callable[[], Document], path: KeyPath, has_reason: bool = False
) -> Place:
    return Place(
        env,
        where=lambda name: document().where(*path, name),
        has_reason=lambda name: has_reason or document().has_comment(*path, name),
        how="a comment on its line" if path[0] != "variants" else f"reason: in variants.{path[1]}",
    )


def _problems(findings: Iterable[Misuse], wrong: bool) -> list[Problem]:
    return list(dict.fromkeys(finding.problem for finding in findings if finding.wrong == wrong))


def _inherited(plan: Plan, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of communication libraries that at least one run would get from the shell."""
    if not (names := exported(shell)):
        return {}
    places, one_of_each = Places(Path(), Path()), {run.variant: run for run in plan.runs}.values()
    always_set = set.intersection(*(_set_by_us(run, places) for run in one_of_each))
    of_machine = {name for name in names if (row := known_variables().find(name)) and row.status == "machine"}
    return {name: shell[name] for name in names if name not in always_set | of_machine and _matters(name)}


def _set_by_us(run: RunSpec, places: Places) -> set[str]:
    return set(training_environment(run, places))


def _matters(name: str) -> bool:
    """Return True for a name that a library reads, or that is to be one; not for any CUDA_X of a module."""
    known = known_variables()
    return known.find(name) is not None or known.is_unknown(name) or known.misspelt(name) is not None


def _named(inherited: Mapping[str, str]) -> Problem:
    return Problem(
        SHELL,
        "the training inherits variables that no settings file names, so the next start may run without them",
        found=", ".join(name if is_hidden(name, value) else f"{name}={value}" for name, value in inherited.items()),
        next=f"write them under workload.env, or remove them first: unset {' '.join(inherited)}",
    )
