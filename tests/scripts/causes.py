"""Steps of sleeps, so that few cores are enough for many ranks, with one cause of lost time on several ranks."""

import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

cause, workers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BATCH, WIDTH = 4, 64
PASS_S, LINK_S, SLOW_S, LOAD_S, SLOW_LOAD_S, JITTER_S = 0.015, 0.002, 0.03, 0.004, 0.08, 0.02
SENT = 10_000_000  # elements: 40 MB

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, world = dist.get_rank(), dist.get_world_size()
slow_rank, step = world - 1, 0
at_random = random.Random(rank)


def is_(*names):
    """Return True if one of these causes is injected here: several are joined with +."""
    return world > 1 and bool({*names} & {*cause.split("+")})


def slow_at(place):
    return SLOW_S if is_(f"rank_{place}") and rank == slow_rank else 0.0


class Samples(Dataset):
    def __len__(self):
        return BATCH * steps * world

    def __getitem__(self, index):
        load_s = SLOW_LOAD_S if is_("loaders") or (is_("loader") and rank == slow_rank) else LOAD_S
        slow_s = SLOW_S if is_("dataset") else slow_at("dataset")
        time.sleep((load_s + slow_s) / BATCH)
        return torch.full((WIDTH,), index / (BATCH * steps * world))


class Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, backward_s):
        ctx.backward_s = backward_s
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradients):
        time.sleep(ctx.backward_s)
        return gradients, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        if is_("buffers"):
            self.register_buffer("table", torch.zeros(SENT))

    def forward(self, inputs):
        forward_s = PASS_S + slow_at("forward") + (SLOW_S if is_("forward") else 0.0)
        if is_("half") and rank == slow_rank and step >= steps // 2:
            forward_s += SLOW_S
        if is_("alternating") and rank == step % world:
            forward_s += SLOW_S
        if cause == "jitter" or is_("new_jitter"):
            forward_s += at_random.expovariate(1 / JITTER_S)
        for every, phase in ((10, 0), (10, 5), (16, 3)):
            if is_(f"stall_{every}_{phase}") and step % every == phase:
                forward_s += every * SLOW_S
        if is_("growth"):
            forward_s += 2 * SLOW_S * step / steps
        time.sleep(forward_s)
        backward_s = PASS_S + slow_at("backward") + (SLOW_S if is_("backward") else 0.0)
        return Slept.apply(self.layer(inputs), backward_s)


def send(_, bucket):
    """Exchange the gradients as DDP does, over a network that takes its time."""
    sent_s = LINK_S + (SLOW_S if is_("link") else 0.0)
    exchanged = dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()

    def take_time(future):
        time.sleep(sent_s)
        return future.value()[0]

    return exchanged.then(take_time)


data = Samples()
sampler = DistributedSampler(data)
model = DistributedDataParallel(Model())
model.register_comm_hook(None, send)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=workers)
for inputs in loader:
    if is_("validation") and step % 20 == 10:
        model.eval()
        time.sleep(0.5)
        model.train()
    optimizer.zero_grad()
    model(inputs).mean().backward()
    time.sleep(slow_at("before_optimizer"))
    optimizer.step()
    if is_("all_reduce"):
        dist.all_reduce(torch.zeros(SENT))
    time.sleep(slow_at("after_optimizer"))
    if step % 10 == 5 and (is_("checkpoints") or (is_("checkpoint") and rank == 0)):
        time.sleep(10 * SLOW_S)
    step += 1
dist.destroy_process_group()
