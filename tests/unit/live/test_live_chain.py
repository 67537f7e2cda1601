"""What the live view shows of a production: its link, its hours, and its last links with their causes."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path

from ddp_ladder.common.files import write_json
from ddp_ladder.live.screen import reader
from ddp_ladder.production.chain import write_chain
from ddp_ladder.production.slower import TABLE, Window, append_row, row_of
from ddp_ladder.slurm.lock import Holder
from make_jobs import LINK, make_chain, write_job
from make_live import edit_job, on_one_line, progress_of, write_samples
from make_records import make_plan_of, make_spec
from make_runs import edit, write_run


def start_chain(results: Path) -> Path:
    """Write a ladder, and its production: a link that has saved its state, and one that goes on."""
    spec = make_spec("1x2", stage="production")
    plan, directory = make_plan_of([spec]), results / "production"
    write_json(results / "plan.json", make_plan_of([make_spec("1x2")]).to_json())
    write_json(directory / "plan.json", plan.to_json())
    write_chain(directory, make_chain(training_hours=10.0, training_samples=3.6e7))
    now_s = time.time()
    write_job(directory, "41", job_id="41", begun_at_s=now_s - 7200, ended_at_s=now_s - 3600, **LINK)
    write_job(directory, "here", job_id="here", begun_at_s=now_s - 1800, ended_at_s=None, **LINK)
    run = write_run(directory, spec)
    run.record.unlink()
    for path in (run.run, run.ended, *run.ranks.glob("*.json"), *run.nodes.glob("*.json")):
        edit(path, lambda file: file["job"].update(id="41"))
    edit(run.ended, lambda end: end.update(started_at_s=now_s - 7100, ended_at_s=now_s - 3700))
    for path in run.ranks.glob("rank*.json"):
        edit(path, lambda end: end.update(exit_code=75))
    earlier = run.attempts / "1"
    earlier.mkdir(parents=True)
    for name in ("run.json", "ended.json", "ranks", "nodes"):
        (run.path / name).rename(earlier / name)
    again = write_run(directory, spec)
    edit_job(again, "here")
    for path in (again.ended, again.record):
        path.unlink()
    shutil.rmtree(again.ranks)
    write_samples(again, 0, 2, [now_s - 1])
    write_json(again.progress, progress_of(656))
    write_json(directory / "jobs/1x2.lock1", asdict(Holder.here("here")))
    append_row(directory / TABLE, row_of(2, "here", Window(now_s - 60, now_s, 400, 930.0, 0.1, 0.0, None), None))
    return directory


def test_a_production_is_shown_above_its_ladder(tmp_path: Path) -> None:
    start_chain(tmp_path)
    text = on_one_line(reader(tmp_path)().picture, 80)
    for part in (
        "production at 1x2: workflow/workloads/mnist.py",
        "link 2 step 656, 930 samples/s (93 % of the ladder's)",  # the mean of the last minute
        "used 3.00 of 40.0 process h",
        "expected end 20",
        "process h end job 1 20",
        "2.00 saved its state 41 2 20",
        "656 1.00 runs here",
        "node0 25 % 50 % 92 % 31.0 GB 800 W",
        "ddp-ladder: workflow/workloads/mnist.py on local",
    ):
        assert part in text, f"{part}\n{text}"


def test_a_link_whose_lock_is_gone_has_failed(tmp_path: Path) -> None:
    directory = start_chain(tmp_path)
    read = reader(tmp_path)
    assert not read().is_over
    (directory / "jobs/1x2.lock1").unlink()
    seen = read()
    assert seen.is_over
    assert seen.chain
    assert [link.end for link in seen.chain.links] == ["saved", "failed"]
