"""Check: everything that can be checked before a run.

needs: the settings; for the jobs also Slurm
makes: nothing; if Slurm would refuse a job or never start it, the workflow ends before any is submitted
"""

from snakemake.utils import available_cpu_count

from ddp_ladder.climb.snakemake import end_on_signals

# So that `snakemake doctor`, `snakemake preflight` and `snakemake fit` work as typed, where Snakemake would ask for --cores:
# the last two use all of this machine, the others none.
is_quick = not set(quick_targets).isdisjoint(sys.argv[1:])
is_test = not {rule_name("preflight"), rule_name("fit")}.isdisjoint(sys.argv[1:])
if (is_quick or is_test) and workflow.resource_settings.nodes is None:
    cores = workflow.resource_settings.cores or (available_cpu_count() if is_test else 1)
    workflow.resource_settings.cores = cores


rule doctor:
    """Check this machine, the settings, the training software and Slurm; runs nothing else."""
    log:
        # Not in the results: it checks whether they can be written.
        ".snakemake/log/doctor.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("doctor.py"),
        settings=lambda wildcards: sources.options,
    shell:
        r"""
        python {params.script:q} \
            {params.settings:q} \
            2>&1 | tee {log:q}
        """


onstart:
    # In the main process only: Snakemake starts the jobs' processes without hooks.
    end_on_signals()  # again: Snakemake's scheduler has just replaced the handler of SIGTERM
