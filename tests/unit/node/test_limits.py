"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ddp_ladder.common.paths import SCRIPTS

RAISED = """
import resource, sys
from ddp_ladder.node import limits
limits.MOST_OPEN_FILES = int(sys.argv[1])
limits.raise_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "most", "raised"), [(1000, 65536, "5000 5000"), (1000, 4500, "4500 5000"), (4800, 4500, "4800 5000")]
)
def test_open_files_are_raised_to_the_hard_limit_within_reason(soft: int, most: int, raised: str) -> None:
    limited = f'ulimit -n 5000; ulimit -Sn {soft}; exec "$@"'
    argv = ["bash", "-c", limited, "bash", sys.executable, "-c", RAISED, str(most)]
    done = subprocess.run(argv, cwd=SCRIPTS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == raised
