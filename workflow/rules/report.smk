"""Report: tables and plots of everything that was measured.

needs: the plan and the records and gates that exist
makes: results/report/
"""


rule scaling_report:
    """Write the report after the last gate."""
    input:
        plan=f"{ladder.results}/plan.json",
        gate=ladder.gate(ladder.plan.stages[-1]),
    output:
        # What `snakemake --report` shows: files that are written whatever was measured.
        report(
            f"{ladder.results}/report/index.html",
            category="Report",
            caption="../report/page.rst",
            labels={"what": "whole report"},
        ),
        report(
            f"{ladder.results}/report/throughput.svg",
            category="Plots",
            caption="../report/throughput.rst",
            labels={"what": "throughput"},
        ),
        report(
            f"{ladder.results}/report/efficiency.svg",
            category="Plots",
            caption="../report/efficiency.rst",
            labels={"what": "efficiency"},
        ),
        report(
            f"{ladder.results}/report/attribution.svg",
            category="Plots",
            caption="../report/attribution.rst",
            labels={"what": "where the time goes"},
        ),
        report(
            f"{ladder.results}/report/scaling.csv",
            category="Tables",
            caption="../report/table.rst",
            labels={"what": "all figures (CSV)"},
        ),
        report(
            f"{ladder.results}/report/scaling.md",
            category="Tables",
            caption="../report/text.rst",
            labels={"what": "tables as text (Markdown)"},
        ),
        # Of each scale one run of the default variant; empty if nothing was sampled.
        report(
            directory(f"{ladder.results}/report/usage"),
            patterns=["usage_{run}.svg"],
            category="What the runs used",
            caption="../report/usage.rst",
            labels={"run": "{run}"},
        ),
    log:
        f"{ladder.results}/logs/report.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("report.py"),
        options=report_options,
    shell:
        r"""
        python {params.script:q} --plan {input.plan:q} {params.options:q} >{log:q}
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
        what=lambda wildcards: reported(),
        options=report_options,
    shell:
        r"""
        python {params.script:q} \
            {params.what:q} {params.options:q} \
            2>&1 | tee {log:q}
        """


WITHOUT_SUMMARY = (
    "archive",
    "compare",
    "doctor",
    "eject",
    "final_report",
    "fit",
    "new_site",
    "preflight",
    "production",
    "rehearsal",
    "report",
)


onsuccess:
    if not is_for(*WITHOUT_SUMMARY):
        print_summary()
        tell_end("the climb has ended")


onerror:
    snakemakes_log = shown_path(Path(log[0])) if log else ""
    # After a signal nothing is judged: what was cut short is measured by the next start.
    if not ended_by() and not is_for(*WITHOUT_SUMMARY):
        if ladder.has_room:
            judge_partial_results()
        print_summary(snakemakes_log)
    why = print_why_it_stopped(snakemakes_log)
    if not is_for(*WITHOUT_SUMMARY):
        tell_end("the climb has stopped", *why)
