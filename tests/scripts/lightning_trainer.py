"""Lightning's Trainer: DDP, validation, gradient accumulation, a progress bar and loggers turned off."""

import os
import sys

import pytorch_lightning as lightning
import torch
from tally import Tally, think
from torch.utils.data import DataLoader

ACCUMULATE, LENGTH = int(sys.argv[1]), 163


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.tally = Tally()
        self.left = 0

    def training_step(self, batch, index):
        think(0.005)
        fresh = min(len(batch), self.left)  # Lightning's sampler pads at the end
        self.left -= fresh
        self.tally.seen(fresh)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        think(0.02)
        self.log("loss", self.layer(batch).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.tally.step()  # the first of an epoch is not timed: it begins inside of Lightning

    def on_validation_start(self):
        self.tally.leave_epoch()
        self.left = len(range(int(os.environ["RANK"]), LENGTH, int(os.environ["WORLD_SIZE"])))


def main():
    torch.manual_seed(int(os.environ["RANK"]))
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=ACCUMULATE,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.randn(LENGTH, 4)
    trainer.fit(model, DataLoader(data, batch_size=5, shuffle=True), DataLoader(data, batch_size=41))
    model.tally.write()


if __name__ == "__main__":
    main()
