"""One start of Snakemake: targets, submission, watch of jobs, locks and signals."""
