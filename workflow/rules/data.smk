"""Data: prepared once, by one process, before stage 1, on the machine that runs Snakemake.

needs: workload.prepare; not the plan, so that only a change of the command prepares the data again
makes: workload.data_dir, with a marker file in it
"""

if ladder.prepared_data:

    rule prepare_data:
        """Run workload.prepare and write the marker after a good end. The data are not declared as output, so never deleted."""
        output:
            ladder.data_marker,
        log:
            f"{ladder.results}/logs/prepare_data.log",
        localrule: True
        conda:
            "../envs/workflow.yaml"
        params:
            # Another command prepares the data again. Snakemake does not compare parameters that depend on threads: if
            # another key or the checkout's directory changes, the data stay.
            command=lambda wildcards: ladder.prepare_command,
            script=lambda wildcards, threads: script("prepare.py"),
            settings=lambda wildcards, threads: sources.options,
        shell:
            # exec: a signal to the job reaches the script itself. Notices of waiting go to the terminal, all else to the log.
            r"""
            exec python {params.script:q} \
                {params.settings:q} \
                -- {params.command:q} \
                >{log:q}
            """
