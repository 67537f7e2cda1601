"""Report: tables and plots of everything that was measured.

needs: the plan and whatever records and gates exist
makes: results/report/
"""


localrules:
    all,
    scaling_report,
    report,


rule scaling_report:
    """The report of a ladder that was climbed to its top."""
    input:
        plan=f"{ladder.results}/plan.json",
        gate=ladder.last_gate,
    output:
        f"{ladder.results}/report/index.html",
    log:
        f"{ladder.results}/logs/report.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("report.py"),
    shell:
        r"""
        python {params.script:q} --plan {input.plan:q} >{log:q}
        """


rule report:
    """The report of whatever there is so far; runs nothing else."""
    log:
        f"{ladder.results}/logs/report.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("report.py"),
        plan=f"{ladder.results}/plan.json",
        # The results may be of other settings than those of now.
        changes=lambda wildcards: ladder.changes_since_plan,
    shell:
        r"""
        python {params.script:q} \
            --plan {params.plan:q} \
            --warning={params.changes:q} \
            2>&1 | tee {log:q}
        """


onsuccess:
    if not is_for("doctor", "eject"):
        say_what_was_found()


onerror:
    if not is_for("doctor", "eject"):
        if ladder.has_room:
            judge_what_there_is()
        say_what_was_found()
