"""Questions to a node that may hang (a driver, a file system, a name server): each in a thread, all with one limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
REST_S = 0.5  # between the limit of a command and that of all questions, so that its thread can still end it


class Answer(Generic[T]):
    """The answer to a question that has been asked."""

    def __init__(self, name: str, question: Callable[[], T]) -> None:
        self.name = name
        self._value: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(question,), name=name, daemon=True)
        self._thread.start()

    def _ask(self, question: Callable[[], T]) -> None:
        try:
            self._value = question()
        except Exception as error:  # one unreadable fact must not cost the others
            self._error = error

    def value(self, until_s: float) -> tuple[T | None, str | None]:
        """Return the answer, and why there is none. until_s: on the monotonic clock."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            return None, "no answer in time"
        if self._error is not None:
            return None, f"{type(self._error).__name__}: {self._error}"
        return self._value, None


class Questions:
    """Questions that are asked at once and answered until one time."""

    def __init__(self, timeout_s: float) -> None:
        self.until_s = time.monotonic() + timeout_s
        self.unanswered: list[str] = []

    @property
    def left_s(self) -> float:
        """The time for a command that a question runs."""
        return max(0.1, self.until_s - REST_S - time.monotonic())

    def ask(self, name: str, question: Callable[[], T]) -> Answer[T]:
        return Answer(name, question)

    def answer(self, asked: Answer[T]) -> T | None:
        """Return the answer; None, with an entry in ``unanswered``, if there is none in time."""
        value, why = asked.value(self.until_s)
        if why is not None:
            self.unanswered.append(f"{asked.name}: {why}")
        return value
