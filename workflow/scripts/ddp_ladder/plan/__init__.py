"""The fully resolved list of runs of every stage, from the settings. Pure: no torch, no Slurm."""
