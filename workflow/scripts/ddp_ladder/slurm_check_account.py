"""Account and QOS of a job, against what the user has."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_ladder.messages import did_you_mean
from ddp_ladder.slurm_check_complaint import Complaint, listed
from ddp_ladder.slurm_check_request import ACCOUNTS_ENFORCED_BY, QOS_ENFORCED_BY, Request


def check_account(request: Request) -> Iterator[Complaint]:
    """Whether the user has the account, where Slurm asks for one."""
    accounting = request.accounting_with(ACCOUNTS_ENFORCED_BY)
    if accounting is None or request.account is None or request.associations():
        return
    yours = sorted({each.account for each in accounting.associations})
    guess = did_you_mean(request.account, yours)
    yield Complaint(
        request.key("account"),
        f"{request.offer.user or 'this user'} has no such account here",
        request.account,
        listed(yours) if yours else "none: this user has no account on this cluster",
        guess or ("use one of these" if yours else "ask the site's support for an account"),
    )


def check_qos(request: Request) -> Iterator[Complaint]:
    """Whether the QOS that the configuration names is there, and the account may use it."""
    wanted, accounting = request.job.slurm.qos, request.accounting_with(QOS_ENFORCED_BY)
    if wanted is None or accounting is None:
        return
    allowed = sorted({name for each in request.associations() for name in each.qos})
    known = wanted in accounting.qos
    if known and (wanted in allowed or not request.associations()):
        return
    choice = allowed or sorted(accounting.qos)
    yield Complaint(
        request.key("qos"),
        f"the account {request.account} may not use this QOS" if known else "there is no such QOS",
        wanted,
        listed(choice),
        did_you_mean(wanted, choice) or "use one of these, or null for the account's own",
    )
