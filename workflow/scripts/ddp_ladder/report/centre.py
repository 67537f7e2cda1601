"""A computing centre's rules for a scaling report, and how each was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ddp_ladder.common.model import Model, Several

Name = Annotated[str, Field(min_length=1)]
RuleVerdict = Literal["pass", "fail", "cannot be checked"]


class Rule(Model):
    """One rule. check: its name in centre_checks.CHECKS."""

    check: Name
    asks: Name = Field(description="What the centre asks for, in a few words.")
    confirmed: bool = Field(description="False: only an excerpt of the source was seen.")
    parameters: Mapping[str, float] = Field(default_factory=dict, description="What the check compares with.")


class Centre(Model):
    """The rules of a centre: a file workflow/centres/NAME.toml."""

    name: Name
    title: Name
    source: Name = Field(description="Address of the rules.")
    read_on: str = Field(pattern="^20[0-9]{2}-[0-9]{2}$", description="Month in which they were read.")
    rules: Several[Rule] = Field(min_length=1)


@dataclass(frozen=True)
class Found:
    """A verdict, the figure behind it or why there is none, and what to do."""

    verdict: RuleVerdict
    figure: str
    next: str = ""


@dataclass(frozen=True)
class JudgedRule:
    """A rule with its verdict."""

    rule: Rule
    found: Found

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Return check, what is asked, verdict, figure, next."""
        asks = self.rule.asks if self.rule.confirmed else f"{self.rule.asks} (unconfirmed)"
        return self.rule.check, asks, self.found.verdict, self.found.figure, self.found.next


@dataclass(frozen=True)
class CentreSection:
    """The rules of a centre, judged. archive: the file with what it asks for, in the report's directory."""

    centre: Centre
    judged_on: str
    rules: tuple[JudgedRule, ...]
    archive: str

    headings = ("rule", "asks for", "verdict", "figure", "next")

    @property
    def summary(self) -> str:
        """Return ``6 of 9 rules pass, 1 fails, 2 cannot be checked``, and how many are unconfirmed."""
        verdicts = [each.found.verdict for each in self.rules]
        passed, failed = verdicts.count("pass"), verdicts.count("fail")
        rest = len(verdicts) - passed - failed
        parts = [f"{passed} of {len(verdicts)} rules pass"]
        parts += [f"{failed} {'fails' if failed == 1 else 'fail'}"] if failed else []
        parts += [f"{rest} cannot be checked"] if rest else []
        doubtful = sum(not each.rule.confirmed for each in self.rules)
        return ", ".join(parts) + (f" (unconfirmed: {doubtful} of {len(verdicts)})" if doubtful else "")

    @property
    def note(self) -> str:
        """Return where the rules are from, and what was judged."""
        unconfirmed = any(not each.rule.confirmed for each in self.rules)
        doubt = "; unconfirmed: only an excerpt was seen, so read the rule there" if unconfirmed else ""
        return f"Rules from {self.centre.source}, read {self.centre.read_on}{doubt}. Judged on: {self.judged_on}."
