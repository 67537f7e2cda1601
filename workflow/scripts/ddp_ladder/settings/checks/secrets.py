"""Checks of secrets among the environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddp_ladder.common.messages import Problem
from ddp_ladder.common.redaction import NOT_SHOWN, is_secret_value
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT, has_placeholder, secrets_of_runs
from ddp_ladder.settings.strict_yaml import Document, KeyPath


def secrets_that_differ_between_variants(given: Given) -> Iterator[Problem]:
    """Refuse a secret with two values: the environment that takes it to the jobs has one for each name."""
    first: dict[str, str] = {}
    for variant, name, value in secrets_of_runs(given.experiment, given.site.network.env):
        if value != FROM_ENVIRONMENT and first.setdefault(name, value) != value:
            yield Problem(
                where=given.config.where("variants", variant, "env", name),
                what="a secret with another value than in another variant",
                found=NOT_SHOWN,
                allowed="one value for each name: secrets reach the jobs by the environment, and are written nowhere",
                next=f"give {name} the same value, or climb twice, each with `results` of its own",
            )


def secrets_with_placeholders(given: Given) -> Iterator[Problem]:
    """Refuse a URL with a password, or a token, around a placeholder: the value would have to be written."""
    experiment, site = given.experiment, given.site
    places: list[tuple[Document, KeyPath, Mapping[str, str]]]
    places = [(given.config, ("workload", "env"), experiment.workload.env)]
    places += [(given.config, ("variants", each.name, "env"), each.env) for each in experiment.variants]
    places += [(given.cluster, ("network", "env"), site.network.env)]
    for document, path, env in places:
        for name, value in env.items():
            if is_secret_value(value) and has_placeholder(value):
                yield Problem(
                    where=document.where(*path, name),
                    what="a secret with a placeholder, which is not filled in here",
                    found=NOT_SHOWN,
                    allowed="the whole value, or a value without a password or token in it",
                    next="remove the placeholder, or put the password in a variable of its own",
                )
