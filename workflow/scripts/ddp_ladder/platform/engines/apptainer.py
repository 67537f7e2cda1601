"""Apptainer."""

from __future__ import annotations

from typing import ClassVar

from ddp_ladder.platform.engines.engine import ContainerUse, Engine


class Apptainer(Engine):
    """It keeps environment and directory."""

    name = "apptainer"
    gpu_options: ClassVar = {"nvidia": ("--nv",), "rocm": ("--rocm",)}
    clearing_options = ("--cleanenv", "-e", "--containall", "-C")

    def command(self, use: ContainerUse) -> tuple[str, ...]:
        shown = () if use.gpus is None else self.gpu_options[use.gpus]
        bound = (option for bind in use.binds for option in ("--bind", bind))
        entered = ("--pwd", use.directory) if use.is_elsewhere else ()
        return (self.name, self.verb, *shown, *bound, *entered, *use.args, use.image)
