"""Singularity."""

from ddp_ladder.platform.engines.apptainer import Apptainer


class Singularity(Apptainer):
    """Apptainer's former name; SingularityCE has kept its options."""

    name = "singularity"
