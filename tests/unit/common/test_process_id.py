"""Whether a process that was written down earlier, maybe on another host, is still alive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from ddp_ladder.common.process import ProcessId

TELL = (
    "import dataclasses, json; from ddp_ladder.common.process import ProcessId\n"
    "print(json.dumps(dataclasses.asdict(ProcessId.own())), flush=True)\n"
    "input()\n"
)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], ProcessId]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", TELL], env=env, text=True, **pipes)
    assert process.stdout is not None
    yield process, ProcessId(**json.loads(process.stdout.readline()))
    process.kill()
    process.communicate()


def test_a_process_is_alive_until_it_has_ended(other: tuple[subprocess.Popen[str], ProcessId]) -> None:
    process, its_id = other
    assert its_id.is_alive()
    process.send_signal(signal.SIGSTOP)
    assert its_id.is_alive(), "a stopped one will go on"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert its_id.is_alive() is False, "nobody has waited for it yet"
    process.wait()
    assert its_id.is_alive() is False


def test_the_same_number_may_be_another_process() -> None:
    own = ProcessId.own()
    assert own.is_alive()
    assert replace(own, started=own.started - 1).is_alive() is False
    assert replace(own, pid=2**22 + 1).is_alive() is False
    assert replace(own, pid=2**80).is_alive() is False


def test_machines_are_distinguished_by_their_boot_and_name_space() -> None:
    own = ProcessId.own()
    assert replace(own, kernel="another").is_alive() is False, "the host was started anew"
    assert replace(own, kernel="another", host="elsewhere").is_alive() is None
    assert replace(own, name_space="pid:[1]").is_alive() is None, "a container of this host"
    assert replace(own, host="renamed").is_alive(), "a laptop on another network"
