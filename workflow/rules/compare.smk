"""Compare: the variants of the ladder with its default.

needs: the plan and the records that exist
makes: results/report/comparison.csv
"""


rule compare:
    """Compare the variants by the records so far; runs nothing else."""
    log:
        f"{ladder.results}/logs/compare.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("compare.py"),
        results=ladder.results,
        # The results may belong to earlier settings.
        changes=lambda wildcards: ladder.changes_since_plan,
    shell:
        r"""
        python {params.script:q} \
            --results {params.results:q} \
            --warning={params.changes:q} \
            2>&1 | tee {log:q}
        """
