"""job.sh: a run as one script for plain sbatch; climb.sh: a whole climb as one."""
