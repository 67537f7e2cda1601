"""podman-hpc, of NERSC."""

from __future__ import annotations

from typing import ClassVar

from ddp_ladder.platform.engines.engine import ContainerUse, Engine


class PodmanHpc(Engine):
    """It has the host's namespaces, as other engines do: the ranks reach each other, and are seen from outside."""

    name = "podman-hpc"
    verb = "run"
    gpu_options: ClassVar = {"nvidia": ("--gpu",)}
    hides_environment = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        host = ("--rm", "--network=host", "--ipc=host", "--pid=host")
        gpus = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (f"--volume={bind}" if ":" in bind else f"--volume={bind}:{bind}" for bind in use.binds)
        inside = f"--workdir={use.directory}"
        return (*self.with_environment(), *host, *gpus, *bound, inside, *use.args, use.image)

    def is_name(self, image: str) -> bool:
        return True
