"""Production: the chain of jobs that trains at the scale that the ladder has proven."""
