"""The site's software with a real bash. ``module`` is a stand-in; the real ones are in workflow/test_software.py."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.node.launch import INSTRUMENT, Places
from ddp_ladder.node.software import SetUpError, container_binds, environment
from make_records import make_spec

BASE = {"PATH": os.environ["PATH"], "HOME": "/home/u", "HOSTILE": "$(touch spoilt); `touch spoilt`\n'\" \\"}


def module(body: str) -> dict[str, str]:
    """An environment with the module command as an exported function, as a login shell leaves it."""
    return {**BASE, "BASH_FUNC_module%%": f"() {{ {body}\n}}"}


LOADS = 'case $1 in load) export LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}$2" ;; esac'


def failure(base: dict[str, str], **software: Any) -> SetUpError:
    with pytest.raises(SetUpError) as caught:
        environment(make_spec(**software), base)
    return caught.value


def test_without_software_no_shell_is_started() -> None:
    assert environment(make_spec(setup=" \n"), BASE, run=lambda *_: pytest.fail("started")) == BASE


def test_setup_adds_what_it_exports_and_changes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = {**BASE, "PWD": "/somewhere", "result": "1", "setup": "2", "BASH_FUNC_module%%": "() { :\n}"}
    made = environment(make_spec(setup="cd /\nexport A='1\n2'\nB=3\necho chatter"), base)
    assert made == {**base, "BASH_FUNC_module%%": made["BASH_FUNC_module%%"], "A": "1\n2"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("echo one >&2\nls /not/there\nexport A=1", ["exit code 2", "one", "/not/there"]),
        ("exit 7", ["exit code 7"]),
        ("exit 0", ["ended its shell"]),
        ("if", ["syntax error"]),
        ("export A=1 \\", None),
        ("[ -d /not/there ] && export A=1", None),
        ("export A=1 # and no more", None),
    ],
)
def test_a_setup_that_fails_is_reported(setup: str, message: list[str] | None) -> None:
    if message is None:
        environment(make_spec(setup=setup), BASE)
        return
    error = failure(BASE, setup=setup)
    assert failure(BASE, setup="kill -9 $$").exit_code == -9
    assert error.what.startswith("software.setup: ")
    assert [part for part in message if part not in str(error)] == []


def test_modules_are_loaded_in_order_and_before_setup() -> None:
    log = io.BytesIO()
    setup = "echo out; echo error >&2; export SEEN=$LOADEDMODULES"
    made = environment(make_spec(modules=("b/2", "a"), setup=setup), module(LOADS), log=log.write)
    assert (made["SEEN"], log.getvalue()) == ("b/2:a", b"out\nerror\n")
    full = module("export LOADEDMODULES=PyTorch/2.8.0-GCC-13")  # its full name
    assert environment(make_spec(modules=("PyTorch/2.8.0",)), full)["LOADEDMODULES"] == "PyTorch/2.8.0-GCC-13"


def test_a_module_that_does_not_load_ends_it() -> None:
    body = LOADS + '; if [ "$2" = bad/1 ]; then echo "no such module: $2" >&2; return 3; fi; true'
    error = failure(module(body), modules=("good", "bad/1", "after"), setup="echo not reached")
    assert str(error) == "software.modules: module bad/1 does not load\nno such module: bad/1"


def test_a_module_command_that_reports_success_is_not_believed() -> None:
    """As those before version 4 do."""
    error = failure({**module("echo 'Unable to locate'"), "LOADEDMODULES": "badge:bad"}, modules=("bad/1",))
    assert str(error) == "software.modules: module bad/1 does not load\nUnable to locate"


IMAGE = {"image": "a", "engine": "apptainer", "binds": [], "args": []}


@pytest.mark.parametrize("spec", [{"python": "/opt/python"}, {"python": "python3", "container": IMAGE}])
def test_another_python_gets_nothing_that_the_workflows_goes_by(spec: dict[str, Any]) -> None:
    own = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/venv", "PYTHONHOME": "/home"}
    assert environment(make_spec(**spec), {**BASE, **own}) == BASE
    made = environment(make_spec(**spec, setup='export PYTHONPATH="/theirs:$PYTHONPATH"'), {**BASE, **own})
    assert {key: made.get(key) for key in own} == {"PYTHONPATH": "/theirs:", "VIRTUAL_ENV": None, "PYTHONHOME": None}
    assert environment(make_spec(), {**BASE, **own}) == {**BASE, **own}


def test_a_container_sees_what_the_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "code", "results/r1", "big/data", "extra"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    Path("data").symlink_to(tmp_path / "big/data")
    container = {"image": "a.sif", "binds": ["/a:/b:ro", "../extra", "data", "data/sub"]}
    spec = make_spec(script=str(tmp_path / "code/train.py"), container=container)
    of_agent = "/dev/shm/of-agent"
    before, after = ("project", "results/r1"), ("code", "extra", "big/data")
    own = [INSTRUMENT.parent, of_agent]
    wanted = [*(tmp_path / name for name in before), *own, *(tmp_path / name for name in after), "/a:/b:ro"]
    assert container_binds(spec, Places.here(tmp_path / "results/r1"), Path(of_agent)) == tuple(map(str, wanted))
    assert container_binds(make_spec(), Places.here(tmp_path)) == ()
