"""DDP's join(): the last rank has fewer batches than the others, which go on until they are done."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data = TensorDataset(torch.randn(8 * (30 - 6 * dist.get_rank()), 4), torch.randn(8 * (30 - 6 * dist.get_rank()), 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with model.join():
    for inputs, targets in DataLoader(data, 8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
