"""The command of ``notify``: what a person waits for is told, at a gate, at the end, and when a link is slow.

It runs beside the climb, which waits for it only as its own last act, and for no longer than SENT_WITHIN_S each.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ddp_ladder.common.files import ChangedFiles, RunDirectory, read_as, readable
from ddp_ladder.common.formats import significant
from ddp_ladder.common.messages import notify
from ddp_ladder.gates.gate import Verdict, closed_box, gate_files, outcome_line
from ddp_ladder.records.raw_models import Slow, SlowFile
from ddp_ladder.settings.keys import Notice, Notify

SENT_WITHIN_S = 20.0
LOOK_EVERY_S = 30.0  # at whether a link is slow
MOST_OF_ERROR = 200  # characters


class Notices:
    """What one start tells. A command that fails is reported once."""

    def __init__(self, keys: Notify, name: str) -> None:
        """name: of the results, which begins each subject."""
        self._keys, self._name = keys, name
        self._has_failed = False
        self._sender = ThreadPoolExecutor(1)  # one after the other, in their order

    def wants(self, what: Notice) -> bool:
        """Return True if this is to be told."""
        return bool(self._keys.command) and what in self._keys.at

    def tell(self, what: Notice, subject: str, text: str) -> None:
        """Run the command with this text on its standard input, if it is wanted."""
        if self.wants(what):
            line = " ".join(f"ddp-ladder {self._name}: {subject}".split())
            argv = [part.replace("{subject}", line) for part in self._keys.command or ()]
            self._sender.submit(self._run, argv, text)

    def _run(self, argv: Sequence[str], text: str) -> None:
        try:
            subprocess.run(
                argv, input=f"{text}\n", text=True, capture_output=True, timeout=SENT_WITHIN_S, check=True,
                start_new_session=True,
            )  # fmt: skip
            return
        except subprocess.CalledProcessError as error:
            why = f"exit code {error.returncode}: {error.stderr.strip()[-MOST_OF_ERROR:] or 'it printed nothing'}"
        except subprocess.TimeoutExpired:
            why = f"it took more than {SENT_WITHIN_S:.0f} s"
        except OSError as error:
            why = str(error)
        if not self._has_failed:
            self._has_failed = True
            notify(f"warning: notify.command ({argv[0]}) failed, and nothing was told: {why}")


class GateNotices:
    """The gates that this start judges: each verdict is told when it is new."""

    def __init__(self, notices: Notices, gates: Path, stages: Sequence[str]) -> None:
        self._notices = notices
        told = stages if notices.wants("gate") else ()
        self._files, self._changed = [file for stage in told for file in gate_files(gates, stage)], ChangedFiles()
        self._seen = self._gates()

    def look(self) -> None:
        """Tell what was judged since the last look."""
        before, self._seen = self._seen, self._gates()
        for was, gate in zip(before, self._seen, strict=True):
            if gate is not None and gate is not was:
                line = outcome_line(gate)
                self._notices.tell("gate", line, line if gate.is_open else closed_box(gate))

    def _gates(self) -> list[Verdict | None]:
        """Return the gates; None for one that is judged again, or damaged, which the report says."""
        return [self._changed.read(file, partial(read_as, Verdict)) for file in self._files]


@contextmanager
def of_slow_links(notices: Notices, directory: RunDirectory, label: str) -> Iterator[None]:
    """Tell each time that a link is found slower than promised, to the end of the block. directory: of its run."""
    if not notices.wants("slower"):
        yield
        return
    over = threading.Event()

    def look(told: float = 0.0) -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(LOOK_EVERY_S)
            last = _last(directory)
            if last is not None and last.at_s > told:
                rate = f"slower than promised: {significant(last.samples_per_s)} samples/s"
                notices.tell("slower", f"{label}: {rate}", f"{label}: {rate}: {last.why}")
                told = last.at_s

    before = _last(directory)
    thread = threading.Thread(target=look, args=(before.at_s if before else 0.0,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _last(directory: RunDirectory) -> Slow | None:
    """Return when a link was last found to be slow."""
    file = readable(SlowFile, directory.slow)
    return file.slow[-1] if file is not None else None
