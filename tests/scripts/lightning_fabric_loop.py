"""Lightning Fabric: a custom loop, with accumulation and a validation in the middle."""

import os

import torch
from lightning_fabric import Fabric
from tally import Tally, think
from torch.utils.data import DataLoader


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    data = torch.randn(160, 4)
    train, val = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=40))
    tally = Tally()
    for _ in range(2):
        model.train()
        tally.start()
        for index, x in enumerate(train):
            is_accumulating = index % 2 == 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                fabric.backward(model(x).square().mean())
            think(0.006)
            tally.seen(len(x))
            if is_accumulating:
                continue
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
            if index == 7:
                tally.stop()
                model.eval()
                with torch.no_grad():
                    for held_out in val:
                        model(held_out)
                        think(0.02)
                model.train()
                tally.start()
        tally.leave_epoch()
    tally.write()


if __name__ == "__main__":
    main()
