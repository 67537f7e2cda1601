"""A node: its GPUs, network, training software, and the launch lines that start ranks on it."""
