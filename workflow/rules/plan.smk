"""The plan: every run of every stage, fully resolved.

needs: config/config.yaml, config/cluster.yaml
makes: results/plan.json
"""


localrules:
    plan,


rule plan:
    """Write the plan, where what is in plan.json is not what the settings say now: time stamps tell nothing of that."""
    input:
        lambda wildcards: anew(ladder.plan_to_write, after=[]),
    output:
        f"{ladder.results}/plan.json",
    log:
        f"{ladder.results}/logs/plan.log",
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("plan.py"),
        config=lambda wildcards: str(sources.config),
        cluster=lambda wildcards: str(sources.cluster),
        overrides=lambda wildcards: sources.overrides_json,
    shell:
        r"""
        python {params.script:q} \
            --config {params.config:q} \
            --cluster {params.cluster:q} \
            --overrides {params.overrides:q} \
            --out {output:q} \
            >{log:q}
        """
