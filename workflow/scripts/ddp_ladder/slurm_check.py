"""Whether Slurm would take and start the jobs of a plan, before any is submitted. Pure: a plan against an offer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.messages import Problem
from ddp_ladder.plan import ScaleJob
from ddp_ladder.settings import Settings
from ddp_ladder.slurm_check_account import check_account, check_qos
from ddp_ladder.slurm_check_choice import check_node_names
from ddp_ladder.slurm_check_complaint import Complaint, merged
from ddp_ladder.slurm_check_partition import check_partitions
from ddp_ladder.slurm_check_request import ACCOUNTS_ENFORCED_BY, LIMITS_ENFORCED_BY, QOS_ENFORCED_BY, Request
from ddp_ladder.slurm_check_reservation import check_reservation
from ddp_ladder.slurm_facts import Offer

NOT_ENFORCED = "this Slurm does not enforce them"


@dataclass(frozen=True)
class Verdict:
    """wrong: jobs that Slurm would refuse or never start. waits: jobs that start only after something has changed."""

    wrong: tuple[Problem, ...]
    waits: tuple[Problem, ...]
    not_checked: tuple[str, ...]


def check_jobs(jobs: Sequence[ScaleJob], settings: Settings, offer: Offer) -> Verdict:
    """Every distinct mistake of the jobs, once."""
    told = merged(complaint for job in jobs for complaint in _complaints(Request(job, settings, offer)))
    return Verdict(
        wrong=tuple(complaint.problem() for complaint in told if not complaint.waits),
        waits=tuple(complaint.problem() for complaint in told if complaint.waits),
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
