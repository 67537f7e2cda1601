"""Checks of a job's account, QOS and reservation."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.common.messages import did_you_mean
from ddp_ladder.preflight.request import ACCOUNTS_ENFORCED_BY, QOS_ENFORCED_BY, JobProblem, Request, listed
from ddp_ladder.slurm.facts import Reservation


def check_account(request: Request) -> Iterator[JobProblem]:
    """Refuse an account that the user does not have, if Slurm enforces accounts."""
    accounting = request.accounting_with(ACCOUNTS_ENFORCED_BY)
    if accounting is None or request.account is None or request.associations():
        return
    yours = sorted({each.account for each in accounting.associations})
    guess = did_you_mean(request.account, yours)
    yield JobProblem(
        request.key("account"),
        f"{request.offer.user or 'this user'} has no such account here",
        request.account,
        listed(yours) if yours else "none: this user has no account on this cluster",
        guess or ("use one of these" if yours else "ask the site's support for an account"),
    )


def check_qos(request: Request) -> Iterator[JobProblem]:
    """Refuse a QOS that does not exist, or that the account may not use."""
    wanted, accounting = request.job.slurm.qos, request.accounting_with(QOS_ENFORCED_BY)
    if wanted is None or accounting is None:
        return
    allowed = sorted({name for each in request.associations() for name in each.qos})
    known = wanted in accounting.qos
    if known and (wanted in allowed or not request.associations()):
        return
    choice = allowed or sorted(accounting.qos)
    yield JobProblem(
        request.key("qos"),
        f"the account {request.account} may not use this QOS" if known else "there is no such QOS",
        wanted,
        listed(choice),
        did_you_mean(wanted, choice) or "use one of these, or null for the account's own",
    )


def check_reservation(request: Request) -> Iterator[JobProblem]:
    """Refuse a reservation that is missing or for others; report one that has not begun."""
    wanted, there = request.job.slurm.reservation, request.offer.reservations
    if wanted is None:
        return
    if wanted not in there:
        yield JobProblem(
            request.key("reservation"),
            "there is no such reservation, or it is over",
            wanted,
            listed(sorted(there)) if there else "none: this Slurm has no reservations",
            did_you_mean(wanted, there) or "set it to null, or ask for a new reservation",
        )
    else:
        yield from _check_access(request, there[wanted])


def _check_access(request: Request, reservation: Reservation) -> Iterator[JobProblem]:
    user, account = request.offer.user, request.account
    users, accounts = reservation.users, reservation.accounts
    if (users or accounts) and not (user in users or account in accounts):
        yield JobProblem(
            request.key("reservation"),
            "the reservation is for others",
            f"{reservation.name}, as {user}" + (f" of {account}" if account else ""),
            listed([*(f"user {name}" for name in users), *(f"account {name}" for name in accounts)]),
            "set it to null, or use an account that it is for",
        )
    elif not reservation.active:
        yield JobProblem(
            request.key("reservation"),
            "the reservation has not begun; the jobs wait for it",
            f"{reservation.name}, from {reservation.start}",
            "a reservation that is active",
            "nothing, if this is meant; else set it to null",
            waits=True,
        )
