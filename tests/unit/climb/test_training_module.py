"""A module as training script is looked for as the run does: in its directory, PYTHONPATH and the Python's packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import warnings_before_runs
from ddp_ladder.common.messages import UserError
from ddp_ladder.live.doctor import OUTCOMES, workload
from ddp_ladder.settings.keys import Container
from ddp_ladder.settings.load import CLUSTER, CONFIG, load_settings
from make_files import write_files

SHIPPED = load_settings(CONFIG, CLUSTER)
FOUND, MISSING, UNKNOWN = "pass", "FAIL", "not checked"


def ladder(
    script: str, container: Container | None = None, setup: str = "", python: str | None = None, **values: Any
) -> Ladder:
    work = SHIPPED.experiment.workload.replace(script=script, data_dir=None, prepare=None, args=(), **values)
    site = SHIPPED.site.replace(software=SHIPPED.site.software.replace(container=container, setup=setup, python=python))
    return Ladder.of(replace(SHIPPED, experiment=SHIPPED.experiment.replace(workload=work), site=site))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package where Snakemake starts, one in a directory of it, and one that ends the Python that imports it."""
    write_files(
        tmp_path,
        {
            "here/train.py": "", "src/pkg/__init__.py": "", "src/pkg/train.py": "",
            "odd/__init__.py": "import no_such_library", "odd/train.py": "",
        },
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


SRC = {"PYTHONPATH": "src"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"script": "-m here.train"}, FOUND),
        ({"script": "-m here.train", "directory": "{run_dir}"}, FOUND),
        ({"script": "-m here.trian"}, MISSING),  # of a package that is there
        ({"script": "-m here"}, MISSING),  # a package without __main__
        ({"script": "-m pkg.train"}, MISSING),
        ({"script": "-m pkg.train", "directory": "src"}, FOUND),
        ({"script": "-m pkg.train", "directory": "{run_dir}"}, MISSING),
        ({"script": "-m pkg.train", "env": SRC}, FOUND),
        ({"script": "-m pkg.train", "env": SRC, "directory": "{run_dir}"}, FOUND),
        ({"script": "-m odd.train"}, FOUND),  # it is there, and the run shows what its package lacks
        ({"script": "-m pkg.train", "setup": "export PYTHONPATH=$PWD/src"}, FOUND),
        ({"script": "-m pkg.train", "setup": "false"}, UNKNOWN),
        ({"script": "-m pkg.train", "container": Container(image="torch.sif")}, UNKNOWN),
    ],
)
def test_doctor_and_start_look_as_the_run_does(values: dict[str, Any], wanted: str, project: Path) -> None:
    wants = ladder(**values)
    (finding,) = workload(wants, on_a_cluster=False)
    assert OUTCOMES[finding.severity] == wanted, finding
    if wanted == MISSING:
        assert "env: {PYTHONPATH: DIRECTORY}" in (finding.next or "")
        assert f"in {project}" in (finding.measured or "")
        with pytest.raises(UserError, match="finds no such module"):
            warnings_before_runs(wants, ["stage1"], on_nodes=False, dry_run=False)
        (warning,) = warnings_before_runs(wants, ["stage1"], on_nodes=True, dry_run=False)
        assert "on this machine" in str(warning)
    else:
        assert warnings_before_runs(wants, ["stage1"], on_nodes=False, dry_run=False) == []
