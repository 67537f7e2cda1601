#!/bin/bash
# The run default/weak/2x1/r1 on this machine, with nothing of Snakemake or ddp-ladder:
#     bash job.sh
# ddp-ladder writes this file again when it repeats the run: to change something, edit a copy.

# The paths below are relative to it.
cd /home/me/ladder || exit

echo 'default/weak/2x1/r1 has 2 nodes, and a site without Slurm has one: put a file of config/sites in place of config/cluster.yaml and run: snakemake eject' >&2
exit 1
