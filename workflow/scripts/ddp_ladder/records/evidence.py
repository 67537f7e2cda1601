"""The sources of a throughput, from the strongest to the weakest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddp_ladder.records.raw_models import Source

STRONGEST: Source = "counted"
ORDER: tuple[Source, ...] = ("counted", "samples_per_step", "metrics", "log", "guessed")

IN_WORDS: Mapping[Source, str] = {
    "counted": "samples counted at the loader, steps timed",
    "samples_per_step": "steps timed, but their samples are what workload.samples_per_step says",
    "metrics": "samples and times are what the program wrote to DDP_LADDER_METRICS",
    "guessed": "steps timed, but how many samples a batch has is a guess (workload.samples_per_step sets the number)",
    "log": "the throughput is what the program printed (workload.throughput_regex)",
}


def weakest(sources: Iterable[str]) -> Source:
    """Return the weakest of the ranks' sources; one that is unknown counts as the strongest."""
    named = set(sources)
    return next((source for source in reversed(ORDER) if source in named), STRONGEST)


def own_account(source: Source) -> bool:
    """Return True if the program itself reported all figures: torch's devices and parameters may then be unseen."""
    return source in ("metrics", "log", "guessed")
