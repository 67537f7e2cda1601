"""Data: prepared once, by one process, before stage 1, on the machine that runs Snakemake.

needs: workload.prepare; nothing of the plan, so that a change of its own is seen whatever else has changed
makes: workload.data_dir, with a marker file in it
"""

if ladder.prepared_data:

    localrules:
        prepare_data,

    rule prepare_data:
        """Run workload.prepare. The marker is made only when it ended well; the data are never declared, so never deleted."""
        output:
            ladder.data_marker,
        log:
            f"{ladder.results}/logs/prepare_data.log",
        conda:
            "../envs/workflow.yaml"
        params:
            command=lambda wildcards: ladder.prepare_command,
        shell:
            r"""
            {params.command:q} >{log:q} 2>&1
            touch {output:q}
            """
