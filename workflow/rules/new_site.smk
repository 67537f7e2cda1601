"""New site: a draft of cluster.yaml.

needs: Slurm; no settings, which may not fit this cluster yet
makes: config/cluster.yaml, or the file of --config cluster=FILE; beside other files of sites if someone has written that one
"""


rule new_site:
    """Write a draft of config/cluster.yaml from what Slurm says of this cluster; replaces no file of yours."""
    log:
        ".snakemake/log/new_site.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("new_site.py"),
        file=lambda wildcards: config.get("cluster", CLUSTER),
    shell:
        r"""
        python {params.script:q} \
            --out {params.file:q} \
            2>&1 | tee {log:q}
        """
