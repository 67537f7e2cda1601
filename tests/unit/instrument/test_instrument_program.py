"""The user's script behaves under instrument.py as under plain python; its exception is told in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest
from ddp_ladder_instrument.files import one_line
from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT
from instrument_support import INSTRUMENT, environment, run, run_json, run_plainly, script
from torch.utils.data import DataLoader, Dataset

SURROUNDINGS = """
    import __main__, atexit, os, pickle, sys
    import sibling

    class Here:
        pass

    if __name__ == "__main__":
        atexit.register(lambda: print("at exit", sibling.NAME))
        print(sys.argv, __file__, sys.path, __name__, __spec__, __package__)
        print(sorted(vars(__main__)), __main__.Here is Here, __loader__.path)
        print(type(pickle.loads(pickle.dumps(Here()))) is Here)
        print("to stderr", file=sys.stderr)
"""
ENDS = {
    "three": "import sys; sys.exit(3)",
    "text": "import sys; sys.exit('out of coffee')",
    "exception": """
        def inner():
            raise ValueError("wrong")
        def outer():
            try:
                inner()
            except ValueError as error:
                raise RuntimeError("worse") from error
        outer()
    """,
    "in_a_context": """
        try:
            {}["key"]
        except KeyError:
            int("x")
    """,
    "syntax": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "own_hook": """
        import sys, traceback
        sys.excepthook = lambda kind, error, trace: print(
            "mine:", kind, error, [f.name for f in traceback.extract_tb(trace)], file=sys.stderr
        )
        1 / 0
    """,
    "forked": """
        import os, sys
        child = os.fork()
        if child == 0:
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
}
CAUGHT = "ValueError: invalid literal for int() with base 10: 'x'"


def test_surroundings_are_the_same(tmp_path: Path) -> None:
    script(tmp_path / "src", "NAME = 'sibling'", "sibling.py")
    train = script(tmp_path / "src", SURROUNDINGS)
    words = (train.relative_to(tmp_path), "--lr", "0.1", "a b", "--help")
    plain, measured = run_plainly(tmp_path, *words), run(tmp_path, *words)
    assert "sibling" in plain.out
    assert (measured.code, measured.out, measured.err) == (0, plain.out, plain.err)
    assert measured.rank()["fingerprint"]["args"] == ["--lr", "0.1", "a b", "--help"]
    assert measured.rank()["steps"]["count"] == 0


@pytest.mark.parametrize("end", ENDS)
def test_ends_are_the_same(tmp_path: Path, end: str) -> None:
    train = script(tmp_path, ENDS[end])
    plain, measured = run_plainly(tmp_path, train), run(tmp_path, train)
    assert (measured.code, measured.out, measured.err) == (plain.code, plain.out, plain.err)


def test_how_it_ended_is_recorded(tmp_path: Path) -> None:
    failed = run(tmp_path, script(tmp_path, "raise ValueError('one\\ntwo \\udcff ü')")).rank()
    assert failed["exit_code"] == 1
    assert failed["ended_by"] == "exception"
    assert failed["exception"] == "ValueError: one two ? ü"  # half of a surrogate pair (a file's name) is no text
    exited = run(tmp_path, script(tmp_path, "import sys; sys.exit(3)")).rank()
    assert (exited["exit_code"], exited["ended_by"], exited["exception"]) == (3, "script", None)
    ends = {"sys.exit(3)": CAUGHT, "os._exit(3)": CAUGHT, "sys.exit(0)": None, "os._exit(75)": None}
    for leave, exception in ends.items():
        handled = f"import os, sys\ntry:\n    int('x')\nexcept ValueError:\n    {leave}"
        left = run(tmp_path, script(tmp_path, handled)).rank()
        assert (left["exception"], left["handled"]) == (exception, CAUGHT)
    interrupted = run(tmp_path, script(tmp_path, ENDS["interrupt"]))
    assert interrupted.code == -signal.SIGINT
    assert interrupted.rank()["exit_code"] == 130


@pytest.mark.parametrize(
    ("words", "part"), [((), "no script"), (("absent.py",), "absent.py"), (("--quick", "x.py"), "--quick")]
)
def test_unusable_command_line(tmp_path: Path, words: tuple[str, ...], part: str) -> None:
    done = run(tmp_path, *words)
    assert done.code == 2
    assert part in done.err
    assert "Traceback" not in done.err


def test_unusable_run_json(tmp_path: Path) -> None:
    train = script(tmp_path, "print('ran')")
    for content in ("{", "[]", "{}", '{"spec_hash": "x", "job": {}, "spec": {"warmup_steps": "many"}}'):
        path = run_json(tmp_path / "run")
        path.write_text(content)
        done = run_plainly(tmp_path, INSTRUMENT, train, env={"DDP_LADDER_RUN": str(path)})
        assert (done.code, done.out) == (2, "")
        assert str(path) in done.err
    done = run_plainly(tmp_path, INSTRUMENT, train, env={"DDP_LADDER_RUN": "run/run.json"})
    assert "absolute" in done.err


def test_a_record_that_cannot_be_written_is_said_and_costs_the_training_nothing(tmp_path: Path) -> None:
    run_json(tmp_path / "run")
    (tmp_path / "run" / "ranks").mkdir()
    (tmp_path / "run" / "ranks" / "rank0.steps").mkdir()
    done = run(tmp_path, script(tmp_path, "print('trained')"))
    assert (done.code, done.out) == (0, "trained\n")
    assert done.err.count("cannot write the record of this rank") == 1
    assert "Traceback" not in done.err
    note = json.loads((tmp_path / "run" / "ranks" / "rank0.unwritten").read_text())
    assert note == {"host": socket.gethostname(), "error": ANY}
    assert "rank0.steps" in note["error"]
    assert run(tmp_path, script(tmp_path, "raise SystemExit(7)")).code == 7
    assert run(tmp_path, script(tmp_path, "import os; os._exit(0)")).code == 0


def test_a_handler_of_the_script_that_raises_at_the_end_costs_no_record(tmp_path: Path) -> None:
    """As torch's handler of SIGCHLD does when a loader's worker was killed; here whenever the end reads the time."""
    text = """
        import signal, time

        def worker_died(*_):
            raise RuntimeError("DataLoader worker is killed")

        def late():
            signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(signal.SIGUSR1)
            return real()

        signal.signal(signal.SIGCHLD, worker_died)
        signal.signal(signal.SIGUSR1, lambda *_: print("told"))
        real, time.time = time.time, late
    """
    done = run(tmp_path, script(tmp_path, text))
    assert (done.code, done.err, set(done.out.splitlines())) == (0, "", {"told"})
    assert done.rank()["exit_code"] == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_dies_with_its_launcher(tmp_path: Path) -> None:
    train = script(tmp_path, "import signal; print('up', flush=True); signal.pause()")
    command = [sys.executable, str(INSTRUMENT), str(train)]
    starter = f"import subprocess; subprocess.Popen({command!r}).wait()"
    env = environment(DDP_LADDER_RUN=str(run_json(tmp_path / "run")))
    launcher = subprocess.Popen([sys.executable, "-c", starter], env=env, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "up\n"
    os.kill(launcher.pid, signal.SIGKILL)
    # The rank holds the other end of this pipe: it closes only when the rank is gone as well.
    assert launcher.communicate(timeout=20)[0] == ""


def test_a_secret_that_the_settings_name_is_in_no_record(tmp_path: Path) -> None:
    train = script(tmp_path, "import os; raise ValueError('with ' + os.environ['TRACKER'] + os.environ['HF_TOKEN'])")
    run_file = run_json(tmp_path / "run", env={"TRACKER": FROM_ENVIRONMENT})
    env = {"TRACKER": "12345678-abcd", "HF_TOKEN": "0123456789", "DDP_LADDER_RUN": str(run_file)}
    done = run_plainly(tmp_path, INSTRUMENT, train, "--api-key", "hunter2", "--epochs", "8", env=env)
    assert (done.code, done.rank()["exception"]) == (1, "ValueError: with ******")
    assert done.rank()["fingerprint"]["args"] == ["--api-key", "***", "--epochs", "8"]


WRAPPER = """
import subprocess, sys, threading, time
from pathlib import Path
def start():
    started.append(subprocess.Popen(sys.argv[1:]))
    while not Path("trains").exists() and started[0].poll() is None:
        time.sleep(0.01)
started = []
thread = threading.Thread(target=start)
thread.start()
thread.join()
Path("thread_ended").touch()
sys.exit(started[0].wait())
"""
OUTLIVES = """
import time
from pathlib import Path
Path("trains").touch()
while not Path("thread_ended").exists():
    time.sleep(0.01)
print("goes on")
"""


def test_a_rank_outlives_the_thread_of_its_wrapper_that_started_it(tmp_path: Path) -> None:
    """The kernel takes that thread for the parent, by whose end a rank that nothing wraps is killed."""
    launcher = ("-c", WRAPPER, sys.executable)
    done = run(tmp_path, script(tmp_path, OUTLIVES), launcher=launcher, wrapper=["profiler"])
    assert (done.code, done.out) == (0, "goes on\n"), done.err


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError(f"sample {index} is broken\n  in two lines") from error


def test_of_a_loaders_worker_the_last_lines_are_reported() -> None:
    text, line = "", ""
    try:
        next(iter(DataLoader(Broken(), batch_size=1, num_workers=1, multiprocessing_context="fork")))
    except ValueError as error:  # not pytest.raises, which would keep the worker until some other test
        text, line = str(error), one_line(error)
    assert text.count("\n") > 10
    assert line == (
        "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: sample 0 is broken in two lines"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "RuntimeError"),
        ("a\n  b\tc", "RuntimeError: a b c"),
        ("Traceback (most recent call last):\n  File x\n", "RuntimeError: File x"),
        ("x" * 5000, "RuntimeError: " + "x" * 800 + "..."),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line
