"""Report: tables and plots of everything that was measured.

needs: the plan and the records and gates that exist
makes: results/report/
"""


rule scaling_report:
    """Write the report after the last gate."""
    input:
        plan=f"{ladder.results}/plan.json",
        gate=ladder.last_gate,
    output:
        report(f"{ladder.results}/report/index.html", category="Scaling"),
    log:
        f"{ladder.results}/logs/report.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("report.py"),
    shell:
        r"""
        python {params.script:q} --plan {input.plan:q} >{log:q}
        """


rule report:
    """Write the report of the results so far; runs nothing else."""
    log:
        f"{ladder.results}/logs/report.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("report.py"),
        plan=f"{ladder.results}/plan.json",
        # The results may belong to earlier settings.
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
        print_summary()


onerror:
    snakemakes_log = shown_path(Path(log[0])) if log else ""
    if not is_for("doctor", "eject"):
        if ladder.has_room:
            judge_partial_results()
        print_summary(snakemakes_log)
    if not is_module:
        print_why_it_stopped(snakemakes_log)
