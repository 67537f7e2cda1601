"""Checks of a plan's jobs against what Slurm offers, before any is submitted."""
