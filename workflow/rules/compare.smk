"""Compare: the variants of the ladder with its default, or several folders of results with the first.

needs: the plan and the records that exist, here or in the folders of --config 'compare=[old/results, results]'
makes: results/report/comparison.*; of folders comparison_of_results.* in the last one's report/
"""


rule compare:
    """Compare the variants, or folders of results, by the records so far; runs nothing else."""
    log:
        # Not in the results: the folders to compare may be elsewhere.
        ".snakemake/log/compare.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("compare.py"),
        results=ladder.results,
        folders=lambda wildcards: sources.compared_folders,
        # The results may belong to earlier settings.
        changes=lambda wildcards: "" if sources.compared_folders else ladder.changes_since_plan,
    shell:
        r"""
        python {params.script:q} \
            --results {params.results:q} \
            --warning={params.changes:q} \
            -- {params.folders:q} \
            2>&1 | tee {log:q}
        """
