"""Eject: each run as a batch script that needs nothing of Snakemake, and the whole climb as one batch job.

needs: the plan
makes: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>/job.sh, results/climb.sh
"""


localrules:
    eject,


rule eject:
    """Write job.sh of every run of the plan, and climb.sh, the whole climb as one batch job; runs nothing else."""
    input:
        # Nothing where it is what the settings say: a climb may be at work with it.
        lambda wildcards: ladder.plan_to_write,
    log:
        f"{ladder.results}/logs/eject.log",
    conda:
        "../envs/workflow.yaml"
    params:
        # The scripts are not declared as output: they are beside what must never be deleted.
        script=script("eject.py"),
        plan=f"{ladder.results}/plan.json",
        config=lambda wildcards: str(sources.config),
        cluster=lambda wildcards: str(sources.cluster),
        overrides=lambda wildcards: sources.overrides_json,
    shell:
        r"""
        python {params.script:q} \
            --plan {params.plan:q} \
            --config {params.config:q} \
            --cluster {params.cluster:q} \
            --overrides {params.overrides:q} \
            2>&1 | tee {log:q}
        """
