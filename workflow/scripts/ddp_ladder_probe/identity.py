"""Whether all ranks of the process group belong to this job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_NAMED = 4


def card(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank shows to the others."""
    return {
        "token": content["job"]["run_id"],
        "job": content["job"]["id"],
        "spec_hash": content["spec_hash"],
        "rank": content["rank"],
        "host": content["host"],
        "pid": content["pid"],
    }


def compare(own: Mapping[str, Any], cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what this rank saw of all ranks: how many, and the first of another job or in another place."""
    foreign = [each for each in cards if (each["token"], each["spec_hash"]) != (own["token"], own["spec_hash"])]
    misplaced = [each for place, each in enumerate(cards) if each["rank"] != place]
    return {
        "count": len(cards),
        "foreign": [_named(each) for each in foreign[:MOST_NAMED]],
        "misplaced": [_named(each) for each in misplaced[:MOST_NAMED]],
    }


def _named(each: Mapping[str, Any]) -> str:
    return f"rank {each['rank']} on {each['host']} (pid {each['pid']}) of job {each['job']}"
