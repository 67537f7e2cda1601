"""Check: what can be known before a run.

needs: the settings; for the jobs also Slurm
makes: nothing; jobs that Slurm would refuse or never start end the workflow before any is submitted
"""

from ddp_ladder.quiet import leave_the_word_to
from ddp_ladder.snakemake_settings import runs_no_training
from ddp_ladder.submission import check_before_submission

if runs_no_training(sys.argv[1:]):
    # `snakemake doctor` as typed: Snakemake would ask for --cores, which these targets have no use for.
    if workflow.resource_settings.nodes is None:
        workflow.resource_settings.cores = workflow.resource_settings.cores or 1
    quieten(lambda: False)
    leave_the_word_to(script("doctor.py"))


localrules:
    doctor,


rule doctor:
    """Check this machine, the settings, the training software and Slurm; runs nothing else."""
    log:
        # Not in the results: whether they can be written is one of its questions.
        ".snakemake/log/doctor.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("doctor.py"),
        config=lambda wildcards: str(sources.config),
        cluster=lambda wildcards: str(sources.cluster),
        overrides=lambda wildcards: sources.overrides_json,
    shell:
        r"""
        python {params.script:q} \
            --config {params.config:q} \
            --cluster {params.cluster:q} \
            --overrides {params.overrides:q} \
            2>&1 | tee {log:q}
        """


onstart:
    # Not in the jobs themselves: Snakemake starts those without hooks.
    end_on_signals()  # again: its scheduler has just taken SIGTERM for itself
    if workflow.executor_plugin.name == "slurm":
        needed = (job for job in workflow.dag.needrun_jobs() if job.rule.name.startswith("measure_"))
        try:
            check_before_submission(ladder, {job.wildcards.scale for job in needed})
        except UserError as error:
            # Its thread would have the last word: a complaint about the interpreter that goes away under it.
            workflow.scheduler._executor.shutdown()
            stop(error)
