"""The plan: every run of every stage, fully resolved.

needs: config/config.yaml, config/cluster.yaml
makes: results/plan.json
"""


localrules:
    plan,


rule plan:
    """Write the plan; scales are measured again only where their own part of it has changed."""
    input:
        config=str(sources.config),
        cluster=str(sources.cluster),
    output:
        f"{ladder.results}/plan.json",
    log:
        f"{ladder.results}/logs/plan.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("plan.py"),
        overrides=lambda wildcards: sources.overrides_json,
    shell:
        r"""
        python {params.script:q} \
            --config {input.config:q} \
            --cluster {input.cluster:q} \
            --overrides {params.overrides:q} \
            --out {output:q} \
            >{log:q}
        """
