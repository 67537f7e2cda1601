"""What a person looks at: a ladder while it climbs, from its results and squeue; and what can be checked before one."""
