from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import ddp_ladder
import pytest
from ddp_ladder.common.command import command
from ddp_ladder.common.messages import Problem, UserError


def test_a_users_mistake_is_its_message_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    @command("main.py")
    def main(arguments: Namespace) -> int:
        raise UserError(Problem("config.yaml: repeats", "too small", found="0"))

    assert main([]) == 1
    assert capsys.readouterr() == ("", "config.yaml: repeats: too small\n  found    0\n")


def test_our_mistakes_keep_their_traceback() -> None:
    @command("main.py")
    def main(arguments: Namespace) -> int:
        raise KeyError("stage")

    with pytest.raises(KeyError):
        main([])


def test_a_full_disk_under_standard_output_costs_the_output_and_not_the_command() -> None:
    scripts = Path(ddp_ladder.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(scripts)!r}); from ddp_ladder.common.command import guarded\n"
    code += "sys.exit(guarded(lambda: [print('x' * 5000, flush=True) for _ in range(3)] and 7))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "standard output: it cannot be written: No space left on device; the rest is lost\n"
    assert (done.returncode, done.stderr) == (7, said)
