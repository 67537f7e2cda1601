"""Measure: one job per scale, which runs all variants and repeats of that scale; only where something is to do.

needs: the plan, the data, the open gate of the stage before
makes: results/runs/<variant>/<mode>/<nodes>x<gpus>/r<k>/record.json
"""


rule measure_stage1:
    """Measure a scale of this stage: one job, which runs all variants and repeats."""
    input:
        plan=f"{ladder.results}/plan.json",
        data=ladder.prepared_data,
        before=lambda wildcards: anew(
            ladder.scale_records(wildcards.scale), after=ladder.gate_before(ladder.stage_of(wildcards.scale))
        ),
    output:
        ladder.record_patterns("stage1"),
    log:
        f"{ladder.results}/logs/measure_{{scale}}.log",
    wildcard_constraints:
        scale=ladder.scale_pattern("stage1"),
    # Where Snakemake starts the jobs itself, on this machine or in an allocation, two scales side by side would disturb
    # each other's figures: each takes all of --cores, in the plan's order. Slurm's jobs have nodes of their own.
    priority: lambda wildcards: ladder.priority(wildcards.scale)
    conda:
        "../envs/workflow.yaml"
    threads: lambda wildcards: workflow.resource_settings.cores or 1
    resources:
        # For the Slurm executor; ddp_ladder/slurm_resources.py has the reasons.
        mpi=lambda wildcards: ladder.resource(wildcards.scale, "mpi"),
        nodes=lambda wildcards: ladder.resource(wildcards.scale, "nodes"),
        tasks=lambda wildcards: ladder.resource(wildcards.scale, "tasks"),
        tasks_per_gpu=lambda wildcards: ladder.resource(wildcards.scale, "tasks_per_gpu"),
        gres=lambda wildcards: ladder.resource(wildcards.scale, "gres"),
        cpus_per_task=lambda wildcards: ladder.resource(wildcards.scale, "cpus_per_task"),
        mem_mb=lambda wildcards: ladder.resource(wildcards.scale, "mem_mb"),
        runtime=lambda wildcards: ladder.resource(wildcards.scale, "runtime"),
        slurm_account=lambda wildcards: ladder.resource(wildcards.scale, "slurm_account"),
        slurm_partition=lambda wildcards: ladder.resource(wildcards.scale, "slurm_partition"),
        qos=lambda wildcards: ladder.resource(wildcards.scale, "qos"),
        constraint=lambda wildcards: ladder.resource(wildcards.scale, "constraint"),
        slurm_extra=lambda wildcards: ladder.resource(wildcards.scale, "slurm_extra"),
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
