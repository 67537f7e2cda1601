"""Slurm's own commands: queries, answers, resources of a site, job states and job steps."""
