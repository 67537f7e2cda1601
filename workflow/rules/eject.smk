"""Eject: a batch script for each run, which needs no Snakemake, and one for the whole climb.

needs: the plan
makes: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>/job.sh, results/climb.sh, results/production/production.sh
"""


rule eject:
    """Write job.sh of each run, climb.sh (the climb as one job), and production.sh (a chain); runs nothing else."""
    input:
        # Empty if the plan is up to date: a climb may be using it.
        lambda wildcards: ladder.plan_to_write,
    log:
        f"{ladder.results}/logs/eject.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        # The scripts are not declared as output: Snakemake could delete results beside them.
        script=script("eject.py"),
        plan=f"{ladder.results}/plan.json",
        settings=lambda wildcards: sources.options,
    shell:
        r"""
        python {params.script:q} \
            --plan {params.plan:q} \
            {params.settings:q} \
            2>&1 | tee {log:q}
        """
