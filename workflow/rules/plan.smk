"""The plan: every run of every stage, fully resolved.

needs: config/config.yaml, config/cluster.yaml
makes: results/plan.json
"""


rule plan:
    """Write the plan if plan.json is not what the settings give now; time stamps do not matter."""
    input:
        lambda wildcards: force(ladder.plan_to_write, after=[]),
    output:
        f"{ladder.results}/plan.json",
    log:
        f"{ladder.results}/logs/plan.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        script=script("plan.py"),
        settings=lambda wildcards: sources.options,
    shell:
        r"""
        python {params.script:q} \
            {params.settings:q} \
            --out {output:q} \
            >{log:q}
        """
