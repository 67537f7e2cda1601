"""Archive: one file of the results to hand on, without names and secrets.

needs: the plan and the records that exist
makes: results/archive-<site>-<date>.zip
"""


rule archive:
    """Write settings, records, report, job scripts and node facts into one zip; runs nothing else."""
    log:
        f"{ladder.results}/logs/archive.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("archive.py"),
        results=ladder.results,
        settings=lambda wildcards: sources.options,
        # The results may belong to earlier settings.
        changes=lambda wildcards: ladder.changes_since_plan,
    shell:
        r"""
        python {params.script:q} \
            --results {params.results:q} \
            {params.settings:q} \
            --warning={params.changes:q} \
            2>&1 | tee {log:q}
        """
