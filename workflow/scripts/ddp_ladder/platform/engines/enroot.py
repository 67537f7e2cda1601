"""enroot, also where pyxis calls it (srun --container-image)."""

from __future__ import annotations

from typing import ClassVar

from ddp_ladder.platform.engines.engine import ContainerUse, Engine


class Enroot(Engine):
    """It shows GPUs by its hooks, and has no option for the working directory."""

    name = "enroot"
    verb = "start"
    gpu_options: ClassVar = {"nvidia": ()}
    hides_environment = True

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        mounts = (f"--mount={_fstab(bind)}" for bind in use.binds)
        return (*self.with_environment(), *mounts, *use.args, use.image, "env", "--chdir", use.directory)

    def is_name(self, image: str) -> bool:
        return super().is_name(image) or "/" not in image


def _fstab(bind: str) -> str:
    """Return source[:target[:ro]] as enroot's mount, the fields of a line of fstab."""
    source, target, *mode = bind.split(":") if ":" in bind else (bind, bind)
    return f"{source}:{target}:none:{','.join(['x-create=auto', 'rbind', *mode])}"
