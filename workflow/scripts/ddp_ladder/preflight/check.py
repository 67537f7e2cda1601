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
    Complaint,
    Request,
    merged,
)
from ddp_ladder.settings.models import Settings
from ddp_ladder.slurm.facts import Offer

NOT_ENFORCED = "this Slurm does not enforce them"


@dataclass(frozen=True)
class Verdict:
    """Result of the check. wrong: Slurm would refuse or never start the job; waits: it starts only after a change."""

    wrong: tuple[Problem, ...]
    waits: tuple[Problem, ...]
    not_checked: tuple[str, ...]


def check_jobs(jobs: Sequence[ScaleJob], settings: Settings, offer: Offer) -> Verdict:
    """Return every distinct mistake of the jobs, once."""
    complaints = merged(complaint for job in jobs for complaint in _complaints(Request(job, settings, offer)))
    return Verdict(
        wrong=tuple(complaint.problem() for complaint in complaints if not complaint.waits),
        waits=tuple(complaint.problem() for complaint in complaints if complaint.waits),
        not_checked=tuple(_not_checked(offer)),
    )


def _complaints(request: Request) -> Iterator[Complaint]:
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
