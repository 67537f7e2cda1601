"""What is told of a slow link. Gates, ends and a command that fails: tests/workflow/test_climb.py."""

from __future__ import annotations

from pathlib import Path

from ddp_ladder.climb.start import Notices, of_slow_links
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.records.raw_models import Slow, SlowFile, read_run_file
from ddp_ladder.settings.keys import Notice, Notify
from make_records import make_spec
from make_runs import write_run


def test_a_link_that_is_slow_again_is_told_and_what_an_earlier_start_has_told_is_not(tmp_path: Path) -> None:
    directory: RunDirectory = write_run(tmp_path, make_spec("1x2", stage="production"))
    identity, told = read_run_file(directory).identity, list[tuple[str, str, str]]()

    class Kept(Notices):
        def tell(self, what: Notice, subject: str, text: str) -> None:
            told.append((what, subject, text))

    slow, wanted = tuple[Slow, ...](), Notify(command=("true",))
    for at_s, rate in ((1e9, 800.0), (1.1e9, 700.0)):
        slow = (*slow, Slow(at_s=at_s, samples_per_s=rate, why="a step takes 19.2 ms"))
        with of_slow_links(Kept(wanted, "results"), directory, "production"):
            write_json(directory.slow, SlowFile(**identity, slow=slow, action="warn").model_dump())
        with of_slow_links(Kept(wanted, "results"), directory, "production"):
            pass
    line = "production: slower than promised: {} samples/s"
    assert told == [("slower", text, f"{text}: a step takes 19.2 ms") for text in map(line.format, (800, 700))]
