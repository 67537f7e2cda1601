"""An elastic job in the style of the fault-tolerance tutorials: a Trainer that resumes from its snapshot."""

import argparse
import os

import torch
import torch.nn.functional as F
from tally import Tally, think
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class RandomDataset(Dataset):
    def __init__(self, size):
        self.items = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.loader, self.optimizer = loader, optimizer
        self.save_every, self.path = save_every, path
        self.epochs_run = 0
        self.tally = Tally()
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["model"])
            self.epochs_run = snapshot["epochs_run"]
            print(f"resuming at epoch {self.epochs_run}")
        self.model = DistributedDataParallel(model)

    def _run_batch(self, source, target):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), target)
        loss.backward()
        think()
        self.tally.seen(len(source))
        self.optimizer.step()
        self.tally.step()

    def _run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        self.tally.start()
        for source, target in self.loader:
            self._run_batch(source, target)
        self.tally.leave_epoch()

    def _save_snapshot(self, epoch):
        torch.save({"model": self.model.module.state_dict(), "epochs_run": epoch + 1}, self.path)
        think(0.05)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.local_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def main(total_epochs, save_every, batch_size):
    init_process_group("gloo")
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = RandomDataset(128)
    loader = DataLoader(data, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(data))
    trainer = Trainer(model, loader, optimizer, save_every, "snapshot.pt")
    trainer.train(total_epochs)
    trainer.tally.write()
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=8, type=int)
    args = parser.parse_args()
    main(args.total_epochs, args.save_every, args.batch_size)
