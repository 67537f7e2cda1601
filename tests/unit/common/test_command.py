from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from ddp_ladder.common.command import command, put_this_python_first
from ddp_ladder.common.files import SCRIPTS
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


def test_ctrl_c_in_an_import_prints_nothing() -> None:
    """As in a program's own imports, before its command line begins."""
    program = "import signal, ddp_ladder; signal.raise_signal(signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("path", ["/usr/bin:/bin", None])
def test_python_means_this_python_in_children(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH") if path is None else monkeypatch.setenv("PATH", path)
    put_this_python_first()
    code = "import sys; print(sys.prefix)"
    shell = subprocess.run(["/bin/sh", "-c", f"python -c '{code}'"], check=True, capture_output=True, text=True)
    assert shell.stdout.strip() == sys.prefix
    assert os.environ["PATH"].endswith(path or os.defpath)
    assert Path(os.environ["PATH"].split(os.pathsep)[0]) == Path(sys.executable).parent
