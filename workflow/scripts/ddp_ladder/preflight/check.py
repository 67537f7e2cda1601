"""Check that Slurm would accept and start the jobs of a plan. Pure: compares a plan with an offer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.common.messages import Problem
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.account import check_account, check_qos, check_reservation
from ddp_ladder.preflight.nodes import check_node_names
from ddp_ladder.preflight.partition import check_partitions
from ddp_ladder.preflight.request import (
    ACCOUNTS_ENFORCED_BY,
    LIMITS_ENFORCED_BY,
    QOS_ENFORCED_BY,
    JobProblem,
    Request,
    merged,
)
from ddp_ladder.settings.models import Settings
from ddp_ladder.slurm.facts import Offer

NOT_ENFORCED = "this Slurm does not enforce them"


@dataclass(frozen=True)
class PreflightResult:
    """Result of the check. wrong: Slurm would refuse or never start the job; waits: it starts only after a change."""

    wrong: tuple[Problem, ...]
    waits: tuple[Problem, ...]
    not_checked: tuple[str, ...]


def check_jobs(jobs: Sequence[ScaleJob], settings: Settings, offer: Offer) -> PreflightResult:
    """Return every distinct mistake of the jobs, once."""
    problems = merged(problem for job in jobs for problem in _problems(Request(job, settings, offer)))
    return PreflightResult(
        wrong=tuple(problem for problem in problems if not problem.waits),
        waits=tuple(problem for problem in problems if problem.waits),
        not_checked=tuple(_not_checked(offer)),
    )


def _problems(request: Request) -> Iterator[JobProblem]:
    yield from check_account(request)
    yield from check_qos(request)
    yield from check_reservation(request)
    yield from check_node_names(request)
    yield from check_partitions(request)


def _not_checked(offer: Offer) -> Iterator[str]:
    if isinstance(offer.accounting, str):
        yield f"account, QOS and their limits: {offer.accounting}"
        return
    for what, words in (
        ("accounts", ACCOUNTS_ENFORCED_BY),
        ("QOS", QOS_ENFORCED_BY),
        ("limits of QOS and accounts", LIMITS_ENFORCED_BY),
    ):
        if not words & offer.accounting.enforced:
            yield f"{what}: {NOT_ENFORCED}"
