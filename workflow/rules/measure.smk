"""Measure: one job per scale, which runs all variants and repeats of that scale; no job if all its runs are kept.

If the batch per GPU is to be searched, the job of the first scale does that first, and writes the plan with the choice.

needs: the plan, the data, the open gate of the stage before
makes: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>/record.json
"""


rule measure_stage1:
    """Measure a scale of this stage: one job, which runs all variants and repeats."""
    input:
        plan=f"{ladder.results}/plan.json",
        data=ladder.prepared_data,
        before=lambda wildcards: force(
            ladder.records(ladder.job(wildcards.scale)), after=ladder.gate_before(ladder.job(wildcards.scale).stage)
        ),
    output:
        ladder.record_patterns("stage1"),
    log:
        f"{ladder.results}/logs/measure_{{scale}}.log",
    wildcard_constraints:
        scale=ladder.scale_pattern("stage1"),
    # If Snakemake starts the jobs itself, on this machine or in an allocation, two scales at the same time would disturb
    # each other's figures, so each takes all of --cores, in the plan's order. Slurm's jobs have nodes of their own.
    priority: lambda wildcards: ladder.priority(wildcards.scale)
    conda:
        "../envs/workflow.yaml"
    threads: lambda wildcards: workflow.resource_settings.cores or 1
    params:
        script=script("run_scale.py"),
    shell:
        # exec: a signal to the job reaches the script itself. Progress goes to the terminal, events to the log.
        r"""
        exec python {params.script:q} \
            --plan {input.plan:q} \
            --scale {wildcards.scale:q} \
            >{log:q}
        """


use rule measure_stage1 as measure_stage2 with:
    output:
        ladder.record_patterns("stage2"),
    wildcard_constraints:
        scale=ladder.scale_pattern("stage2"),


use rule measure_stage1 as measure_stage3 with:
    output:
        ladder.record_patterns("stage3"),
    wildcard_constraints:
        scale=ladder.scale_pattern("stage3"),
