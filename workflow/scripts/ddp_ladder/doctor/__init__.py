"""Checks of `snakemake doctor`: this machine, the settings, the software, Slurm."""
