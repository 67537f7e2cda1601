"""A model in two stages, one on each rank: both draw the same batches, and the first stage takes them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
data = TensorDataset(torch.randn(24 * 16, 4), torch.randn(24 * 16, 4))
mine = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
schedule = ScheduleGPipe(PipelineStage(mine, rank, stages, torch.device("cpu")), 4, nn.functional.mse_loss)
optimizer = torch.optim.SGD(mine.parameters(), lr=0.01)
for inputs, targets in DataLoader(data, 16):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    optimizer.step()
dist.destroy_process_group()
