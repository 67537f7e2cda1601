"""measure.max_steps and measure.max_seconds, without processes."""

from __future__ import annotations

from ddp_ladder_instrument.stop import EndOfMeasurement, RunLimits


class FakeStore:
    """A store that fails where the real one would make a rank wait for rank 0."""

    def __init__(self, rank: int, notes: dict[str, str]) -> None:
        self.rank = rank
        self._notes = notes

    def get(self, key: str) -> str:
        return self._notes[key]

    def leave_together(self, key: str) -> None:
        """With real ranks: test_instrument_ddp.py."""

    def set(self, key: str, value: str) -> None:
        assert key not in self._notes
        self._notes[key] = value


class FakeRank:
    """Takes a step each step_s until its limits end it."""

    def __init__(self, limits: RunLimits, step_s: float) -> None:
        self.limits = limits
        self.step_s = step_s
        self.step = 0
        self.now_s = 100.0
        self.check_at = limits.first_check
        self.checks = 0
        self.ended = False

    def take_step(self) -> None:
        self.step += 1
        self.now_s += self.step_s
        if self.step < self.check_at:
            return
        self.checks += 1
        try:
            self.check_at = self.limits.check(self.step, self.now_s)
        except EndOfMeasurement:
            self.ended = True


def limits_of(rank: int, notes: dict[str, str], seconds: float, steps: int | None = None) -> RunLimits:
    return RunLimits(steps, seconds, lambda: FakeStore(rank, notes))


def climb(ranks: list[FakeRank]) -> None:
    """Let the rank that is furthest behind in time step next, rank 0 first of equals."""
    while not all(rank.ended for rank in ranks):
        min((rank for rank in ranks if not rank.ended), key=lambda rank: rank.now_s).take_step()


def test_max_steps_needs_nobody() -> None:
    rank = FakeRank(RunLimits(7, None, lambda: None), 0.1)
    climb([rank])
    assert (rank.step, rank.checks) == (7, 1)


def test_max_seconds_alone() -> None:
    rank = FakeRank(RunLimits(None, 5.0, lambda: None), 0.01)
    climb([rank])
    assert 5.0 <= rank.now_s - 100.01 <= 5.1
    assert rank.checks < 15


def test_ranks_of_different_speed_end_together_without_waiting() -> None:
    notes: dict[str, str] = {}
    ranks = [FakeRank(limits_of(k, notes, 6.0), step_s) for k, step_s in enumerate((0.01, 0.013))]
    climb(ranks)
    assert ranks[0].step == ranks[1].step
    assert 6.0 <= ranks[0].now_s - 100.01 <= 6.2
    assert {rank.limits.ended_by for rank in ranks} == {"max_seconds"}


def test_a_slow_moment_does_not_end_the_run_early() -> None:
    notes: dict[str, str] = {}
    ranks = [FakeRank(limits_of(k, notes, 6.0), 0.01) for k in range(2)]
    for step in range(2000):
        for rank in ranks:
            if not rank.ended:
                rank.step_s = 0.8 if step == 80 else 0.01
                rank.take_step()
    assert all(rank.ended for rank in ranks)
    assert ranks[0].step == ranks[1].step
    assert 5.9 <= ranks[0].now_s - 100.01 <= 8.0


def test_rank_zero_that_leaves_early_is_not_waited_for() -> None:
    notes: dict[str, str] = {}
    first, second = (FakeRank(limits_of(k, notes, 6.0), 0.01) for k in range(2))
    for _ in range(150):
        first.take_step()
    first.limits.release()
    for _ in range(2000):
        second.take_step()
    assert not second.ended


def test_swallowed_end_is_raised_again() -> None:
    rank = FakeRank(RunLimits(3, None, lambda: None), 0.1)
    climb([rank])
    rank.ended = False
    rank.take_step()
    assert rank.ended


def test_what_is_enough_for_rank_0_ends_all_ranks_together() -> None:
    """Rank 0 alone decides: another rank may have seen less of it."""
    notes: dict[str, str] = {}
    ranks: list[FakeRank] = []

    def limits(rank: int) -> RunLimits:
        is_enough = lambda: ranks[0].step >= 250 and not rank  # noqa: E731
        return RunLimits(10_000, None, lambda: FakeStore(rank, notes), is_enough=is_enough)

    ranks += [FakeRank(limits(k), step_s) for k, step_s in enumerate((0.01, 0.013))]
    climb(ranks)
    assert ranks[0].step == ranks[1].step
    assert 250 <= ranks[0].step < 500
    alone = FakeRank(RunLimits(None, None, lambda: None, is_enough=lambda: alone.step >= 250), 0.01)
    climb([alone])
    assert 250 <= alone.step < 400
