"""Before a climb: the checks of `snakemake doctor`, and the draft of `snakemake new_site`."""
