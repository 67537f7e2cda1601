"""Go on in Lightning.

    torchrun --nproc-per-node=2 with_lightning.py DIRECTORY EPOCHS

TorchElasticEnvironment stands here because in a job of Slurm Lightning would handle SIGUSR1 itself: it would put the
job back into the queue. Lightning begins the data of an epoch anew after a save in the middle of it, and warns of that,
unless the loader has a state_dict (StatefulDataLoader).
"""

import os
import signal
import sys

import pytorch_lightning as pl  # or: import lightning.pytorch as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader, TensorDataset

directory, epochs = sys.argv[1], int(sys.argv[2])
file = f"{directory}/state.ckpt"


class SaveAtSignal(Callback):
    def __init__(self):
        self.warned = False
        signal.signal(signal.SIGUSR1, self.warn)

    def warn(self, *_):
        self.warned = True

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if number % 10 == 0 and trainer.strategy.reduce_boolean_decision(self.warned, all=False):
            trainer.save_checkpoint(file)  # on every rank
            sys.exit(75)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, number):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


pl.seed_everything(0)
data = TensorDataset(torch.randn(1024, 16), torch.randn(1024, 1))
trainer = pl.Trainer(
    max_epochs=epochs,
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    plugins=[TorchElasticEnvironment()],
    callbacks=[SaveAtSignal(), ModelCheckpoint(directory, "state", enable_version_counter=False)],
    logger=False,
)
trainer.fit(Model(), DataLoader(data, 8, shuffle=True), ckpt_path=file if os.path.exists(file) else None)
