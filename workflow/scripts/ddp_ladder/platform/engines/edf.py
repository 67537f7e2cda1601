"""The Container Engine of CSCS, an option of srun; an EDF (environment definition file) describes the image."""

from __future__ import annotations

from typing import ClassVar

from ddp_ladder.platform.engines.engine import ContainerUse, Engine

# A job step of this node alone, on the cores of the process that starts it. srun would take the outer step's variables
# for its own options, and its task would get others: the outer ones are put back inside.
# $1: the working directory; $2: how many options of srun follow; then the program.
STEP = r"""
cpus=$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status) outer=()
for name in ${!SLURM_@}; do
    outer+=("$name=${!name}")
    case $name in SLURM_JOB_ID | SLURM_CONF* | SLURM_JWT) ;; *) unset "$name" ;; esac
done
here=${SLURMD_NODENAME:?no job of Slurm: the engine edf starts job steps}
step=(--overlap --nodes=1 --ntasks=1 --nodelist="$here" --mpi=none --cpu-bind=none)
exec srun "${step[@]}" "${@:3:$2}" taskset --cpu-list "$cpus" env --chdir="$1" "${outer[@]}" "${@:$2+3}"
"""


class Edf(Engine):
    """It shows GPUs by its hooks, keeps the environment, and mounts what the EDF says."""

    name = "edf"
    program = "srun"
    gpu_options: ClassVar = {"nvidia": ()}
    binds_directories = False
    starts_step = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        options = (f"--environment={use.image}", *use.args)
        return ("bash", "-c", STEP, self.name, use.directory, str(len(options)), *options)

    def trial(self, image: str) -> str:
        return f"srun --environment={image}"

    def is_name(self, image: str) -> bool:
        return "/" not in image
