"""Reservation of a job: whether it is there, for this user, and now. Its nodes: ``slurm_check_choice``."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.messages import did_you_mean
from ddp_ladder.slurm_check_complaint import Complaint, listed
from ddp_ladder.slurm_check_request import Request
from ddp_ladder.slurm_facts import Reservation


def check_reservation(request: Request) -> Iterator[Complaint]:
    """Whether the job may use the reservation that it names; waits where it has not begun."""
    wanted, there = request.job.slurm.reservation, request.offer.reservations
    if wanted is None:
        return
    if wanted not in there:
        yield Complaint(
            request.key("reservation"),
            "there is no such reservation, or it is over",
            wanted,
            listed(sorted(there)) if there else "none: this Slurm has no reservations",
            did_you_mean(wanted, there) or "set it to null, or ask for a new reservation",
        )
    else:
        yield from _use(request, there[wanted])


def _use(request: Request, reservation: Reservation) -> Iterator[Complaint]:
    user, account = request.offer.user, request.account
    users, accounts = reservation.users, reservation.accounts
    if (users or accounts) and not (user in users or account in accounts):
        yield Complaint(
            request.key("reservation"),
            "the reservation is for others",
            f"{reservation.name}, as {user}" + (f" of {account}" if account else ""),
            listed([*(f"user {name}" for name in users), *(f"account {name}" for name in accounts)]),
            "set it to null, or use an account that it is for",
        )
    elif not reservation.active:
        yield Complaint(
            request.key("reservation"),
            "the reservation has not begun; the jobs wait for it",
            f"{reservation.name}, from {reservation.start}",
            "a reservation that is active",
            "nothing, if this is meant; else set it to null",
            waits=True,
        )
