"""The header of a node's samples."""

from ddp_ladder.monitor.columns import FABRIC, GPU, LOCAL, NODE, columns


def test_columns_of_devices_that_a_node_lacks_are_absent() -> None:
    assert columns(fabric=False, energy=False, gpus=0) == (*NODE, *LOCAL)


def test_each_gpu_has_the_same_columns() -> None:
    header = columns(fabric=True, energy=True, gpus=2)
    assert header[: len(NODE) + 2] == (*NODE, *FABRIC)
    assert header[-len(GPU) :] == tuple(f"gpu1_{name}" for name in GPU)
    assert len(set(header)) == len(header)
