"""shifter, of NERSC."""

from __future__ import annotations

from typing import ClassVar

from ddp_ladder.platform.engines.engine import ContainerUse, Engine


class Shifter(Engine):
    """It keeps the environment, and shows the site's file systems under their own paths.

    It refuses to mount on those, so only a bind with another target becomes an option.
    """

    name = "shifter"
    gpu_options: ClassVar = {"nvidia": ("--module=gpu",)}
    clearing_options = ("--clearenv", "-E")

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        shown = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (f"--volume={bind}" for bind in use.binds if ":" in bind)
        return (self.name, f"--image={use.image}", *shown, *bound, f"--workdir={use.directory}", *use.args)

    def trial(self, image: str) -> str:
        return f"{self.name} --image={image}"

    def is_name(self, image: str) -> bool:
        return True
