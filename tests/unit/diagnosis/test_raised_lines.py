"""Where the logs have an exception: found by an index, and by a look at each line."""

from __future__ import annotations

from ddp_ladder.diagnosis.case import RaisedLines, is_line_of
from ddp_ladder.diagnosis.signatures import Words
from hypothesis import given, settings
from hypothesis import strategies as st

LINES = ("ValueError", "ValueError: bad", "pkg.ValueError: bad  file", "KeyError: 'a'", "lost: KeyError: 'a'", "x 1")
EXCEPTIONS = ("ValueError", "ValueError: bad", "ValueError: bad file 1", "KeyError: 'a'", "OSError: 2")
WORKER = "ValueError: Caught KeyError in DataLoader worker process 0. KeyError: 'a'"
RANKS = st.sampled_from((0, 1, None))
SPEAKERS = st.tuples(RANKS, st.lists(st.sampled_from(LINES), max_size=5))


@settings(max_examples=300, deadline=None)
@given(st.lists(SPEAKERS, max_size=5), RANKS, st.sampled_from(EXCEPTIONS))
def test_an_exception_is_found_on_the_last_line_of_its_rank_or_else_of_the_first_that_may_be_of_it(
    said: list[tuple[int | None, list[str]]], rank: int | None, exception: str
) -> None:
    printed = [Words("agent", own, "node0", tuple(lines)) for own, lines in said]
    wanted = [
        (words, index)
        for who in (rank, None)
        for words in printed
        for index in reversed(range(len(words.lines)))
        if words.rank == who and is_line_of(words.lines[index], exception)
    ]
    found = RaisedLines(printed, (exception,)).find(rank, exception)
    assert (found and (id(found[0]), found[1])) == (next(((id(words), index) for words, index in wanted), None))


def test_what_a_worker_of_the_loader_raised_is_looked_for_too() -> None:
    printed = [Words("rank", 0, "node0", ("KeyError: 'a'",))]
    assert RaisedLines(printed, (WORKER,)).find(0, "KeyError: 'a'") == (printed[0], 0)
