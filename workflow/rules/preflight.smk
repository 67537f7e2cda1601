"""Preflight: the nodes, their network and the collectives of one scale, tested without training.

needs: the plan
makes: results/preflight/<nodes>x<gpus>.json, and a table in the terminal
"""


rule preflight_scale:
    """Test a scale in one job of its own; a climb does the same in the scale's job, before its runs."""
    input:
        plan=f"{ladder.results}/plan.json",
        again=lambda wildcards: force([ladder.preflight_file(wildcards.scale)], after=[]),
    output:
        ladder.preflight_file("{scale}"),
    log:
        f"{ladder.results}/logs/preflight_{{scale}}.log",
    wildcard_constraints:
        scale=ladder.scale_pattern(*ladder.plan.stages),
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
            --scale {wildcards.scale:q} --preflight \
            >{log:q}
        """


rule preflight:
    """Test the plan's largest scale, or --config preflight_scale=1x4, and print the table; fails if the test did."""
    input:
        lambda wildcards: asked_preflight(),
    log:
        f"{ladder.results}/logs/preflight.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("result_table.py"),
    shell:
        r"""
        python {params.script:q} preflight {input:q} 2>&1 | tee {log:q}
        """
