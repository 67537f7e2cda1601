"""A GAN: two networks, two optimizers; the discriminator steps more often, or twice on each batch."""

import sys

import torch
import torch.distributed as dist
from tally import Tally, think
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(batches):
    dist.init_process_group("gloo")
    data = torch.randn(160, 6)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    generator = DistributedDataParallel(torch.nn.Linear(2, 6))
    critic = DistributedDataParallel(torch.nn.Linear(6, 1))
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    tally = Tally()
    tally.start()
    for index, real in enumerate(loader):
        for _ in range(2 if batches == "twice" else 1):
            fake = generator(torch.randn(len(real), 2)).detach()
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean()).backward()
            think(0.004)
            of_critic.step()
        tally.seen(len(real))
        if batches != "own" or index % 5 == 4:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(len(real), 2))).mean()).backward()
            think(0.004)
            of_generator.step()
        tally.step()
        if index == 10:
            generator.eval()
            with torch.no_grad():
                tally.stop()
                generator(torch.randn(4, 2))
                think(0.05)
            generator.train()
            tally.start()
    tally.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
