from __future__ import annotations

from argparse import Namespace

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
