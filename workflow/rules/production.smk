"""Production: the training itself, at a proven scale, in a chain of jobs each of which goes on where the last one saved.

needs: the records and open gates of the ladder
makes: results/production/, and in it final_report.html, .md and .csv
"""


rule production:
    """Train at the proven scale, in as many jobs as it takes, within production.up_to_hours."""
    input:
        lambda wildcards: asked(lambda: production_text(ladder)),
    log:
        f"{ladder.results}/logs/production.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("production.py"),
        settings=lambda wildcards: sources.options,
        where=lambda wildcards: executor_name(),
    shell:
        # exec: a signal to the job reaches the script itself.
        r"""
        exec python {params.script:q} \
            {params.settings:q} \
            --on {params.where} \
            >{log:q}
        """


rule rehearsal:
    """Test whether the script goes on where it has saved: start it twice, at a small scale, for two minutes each."""
    input:
        lambda wildcards: asked(lambda: rehearsal_text(ladder.settings)),
    log:
        f"{ladder.results}/logs/rehearsal.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("production.py"),
        settings=lambda wildcards: sources.options,
        where=lambda wildcards: executor_name(),
    shell:
        # exec: a signal to the job reaches the script itself.
        r"""
        exec python {params.script:q} \
            {params.settings:q} \
            --rehearse --on {params.where} \
            >{log:q}
        """


rule final_report:
    """Write what production used against what was planned, also while it runs; starts nothing else."""
    log:
        f"{ladder.results}/logs/final_report.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("final_report.py"),
        results=ladder.results,
    shell:
        r"""
        python {params.script:q} \
            --results {params.results:q} \
            2>&1 | tee {log:q}
        """
