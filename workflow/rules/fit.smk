"""Fit: the batch per GPU that fits the memory, where workload.batch_per_gpu is auto or a range.

needs: the plan, the data
makes: results/fit/<scale>.json, results/plan.json with the choice, and a table in the terminal
"""


rule search_batch:
    """Search the batch in a job of its own; a climb does the same in the first scale's job, before its runs."""
    input:
        plan=f"{ladder.results}/plan.json",
        data=ladder.prepared_data,
        again=lambda wildcards: force([ladder.fit_file(wildcards.scale)], after=[]),
    output:
        ladder.fit_file("{scale}"),
    log:
        f"{ladder.results}/logs/fit_{{scale}}.log",
    wildcard_constraints:
        scale=str(ladder.plan.first_scale),
    conda:
        "../envs/workflow.yaml"
    threads: lambda wildcards: workflow.resource_settings.cores or 1
    params:
        script=script("run_scale.py"),
    shell:
        # exec: a signal to the job reaches the script itself.
        r"""
        exec python {params.script:q} \
            --plan {input.plan:q} \
            --scale {wildcards.scale:q} --fit \
            >{log:q}
        """


rule fit:
    """Search the batch per GPU that fits, unless it is chosen already, and print the table."""
    input:
        lambda wildcards: asked_fit(),
    log:
        f"{ladder.results}/logs/fit.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("result_table.py"),
        file=ladder.fit_file(ladder.plan.first_scale),
    shell:
        r"""
        python {params.script:q} fit {params.file:q} 2>&1 | tee {log:q}
        """
