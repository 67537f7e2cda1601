"""Eject: each run as a batch script that needs nothing of Snakemake.

needs: the plan
makes: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>/job.sh
"""


localrules:
    eject,


rule eject:
    """Write job.sh of every run of the plan; runs nothing else. Not declared: they are beside what must never be deleted."""
    input:
        f"{ladder.results}/plan.json",
    log:
        f"{ladder.results}/logs/eject.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("eject.py"),
    shell:
        r"""
        python {params.script:q} --plan {input:q} 2>&1 | tee {log:q}
        """
