"""The container engines by name, as ``software.container.engine`` of cluster.yaml has it.

A new one is a file here, and its place below.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddp_ladder.platform.engines.apptainer import Apptainer
from ddp_ladder.platform.engines.edf import Edf
from ddp_ladder.platform.engines.engine import Engine
from ddp_ladder.platform.engines.enroot import Enroot
from ddp_ladder.platform.engines.podman_hpc import PodmanHpc
from ddp_ladder.platform.engines.shifter import Shifter
from ddp_ladder.platform.engines.singularity import Singularity

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (Apptainer(), Singularity(), Enroot(), PodmanHpc(), Shifter(), Edf())
}
