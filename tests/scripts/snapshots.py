"""As in tutorials of fault tolerance: a Trainer whose first rank saves a snapshot after every second epoch."""

import os

import torch
import torch.nn.functional as F
from tally import Tally, think
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, loader, optimizer):
        self.model, self.loader, self.optimizer = DistributedDataParallel(model), loader, optimizer
        self.tally = Tally()

    def _run_batch(self, source, target):
        self.optimizer.zero_grad()
        F.mse_loss(self.model(source), target).backward()
        think()
        self.tally.seen(len(source))
        self.optimizer.step()
        self.tally.step()

    def _save_snapshot(self, epoch):
        torch.save({"model": self.model.module.state_dict(), "epochs_run": epoch + 1}, "snapshot.pt")
        think(0.05)

    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            self.tally.start()
            for source, target in self.loader:
                self._run_batch(source, target)
            self.tally.leave_epoch()
            if int(os.environ["LOCAL_RANK"]) == 0 and epoch % 2 == 0:
                self._save_snapshot(epoch)


def main():
    init_process_group("gloo")
    model, data = torch.nn.Linear(20, 1), TensorDataset(torch.rand(128, 20), torch.rand(128, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3))
    trainer.train(epochs=3)
    trainer.tally.write()
    destroy_process_group()


if __name__ == "__main__":
    main()
