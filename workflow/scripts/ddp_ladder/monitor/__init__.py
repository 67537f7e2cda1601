"""The samples of a node during a run: its GPUs, CPUs, memory, network, and the training's processes."""
