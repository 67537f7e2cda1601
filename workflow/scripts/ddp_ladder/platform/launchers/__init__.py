"""The launchers by name, as ``launcher`` of the settings has it. A new one is a file here, and its place below."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_ladder.platform.launchers.launcher import Launcher
from ddp_ladder.platform.launchers.mpirun import Mpirun
from ddp_ladder.platform.launchers.python import Python
from ddp_ladder.platform.launchers.srun import Srun
from ddp_ladder.platform.launchers.torchrun import Torchrun

LAUNCHERS: Mapping[str, Launcher] = {launcher.name: launcher for launcher in (Torchrun(), Srun(), Mpirun(), Python())}
WITH_RANKS: Mapping[str, Launcher] = {name: launcher for name, launcher in LAUNCHERS.items() if launcher.sets_ranks}
"""Those that a site may have; the others are for a variant."""
