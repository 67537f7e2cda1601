"""ddp-ladder: climb a PyTorch DDP training from one GPU to many nodes, one proven stage at a time.

    snakemake --cores all          climb all stages on this machine, write the report
    snakemake stage2 --dry-run     what would stage 2 do?
    snakemake new_site             draft config/cluster.yaml from what Slurm says of this cluster
    snakemake production           train at the scale that the ladder has proven, in a chain of jobs
    snakemake final_report         what production used, against what was planned

Settings are read from config/config.yaml (the experiment; another one: --config experiment=FILE) and
config/cluster.yaml (the site; another one: --config cluster=FILE).
"""

from snakemake.utils import min_version

min_version("9.17")


include: "workflow/rules/common.smk"
include: "workflow/rules/check.smk"
include: "workflow/rules/new_site.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/gate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/eject.smk"
include: "workflow/rules/archive.smk"
include: "workflow/rules/production.smk"


rule all:
    """Climb all stages and write the report."""
    input:
        lambda wildcards: climb(),
        f"{ladder.results}/report/index.html",
