"""What each job asked for, held and used: by Slurm and by its own files."""
