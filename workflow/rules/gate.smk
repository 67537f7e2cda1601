"""Gate: the judgement of a stage on its records.

needs: the plan (thresholds), the open gate of the stage before, the records of the stage and of those before it (the baseline).
       Judged at each start, after the records that are still missing: an old verdict may no longer hold
makes: results/gates/<stage>.json when open; otherwise results/gates/<stage>.closed.json, and the rule fails
"""


rule gate:
    """Judge one stage."""
    input:
        plan=f"{ladder.results}/plan.json",
        before=lambda wildcards: ladder.gate_before(wildcards.stage),
        records=lambda wildcards: force([ladder.gate(wildcards.stage)], after=awaited_records(wildcards.stage)),
    output:
        f"{ladder.results}/gates/{{stage}}.json",
    log:
        f"{ladder.results}/logs/gate_{{stage}}.log",
    wildcard_constraints:
        stage="|".join(ladder.plan.stages),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("gate.py"),
    shell:
        r"""
        python {params.script:q} \
            --plan {input.plan:q} \
            --stage {wildcards.stage:q} \
            >{log:q}
        """


rule stage1:
    """Climb up to and including stage 1: a single GPU, or the smallest scale that the training fits."""
    input:
        lambda wildcards: climb("stage1"),


rule stage2:
    """Climb up to and including stage 2: one node, several GPUs."""
    input:
        lambda wildcards: climb("stage2"),


rule stage3:
    """Climb up to and including stage 3: several nodes."""
    input:
        lambda wildcards: climb("stage3"),
