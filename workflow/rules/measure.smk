# Needs: the server's environment and the model. Makes: every point of the study, one job for each server start.
# `params.start` is all that a measurement depends on; what stands in the shell text alone (how long is left, whether
# failed points are tried again) or in the resources makes nothing run again.

for number, start in enumerate(STARTS):

    rule:
        name:
            PLAN.rule_name(start)
        input:
            [ancient(path) for path in PLAN.needs(start)],
        output:
            PLAN.paths(start),
        log:
            f"{start.log_directory()}/measure.log",
        priority: len(STARTS) - number
        resources:
            gpu=1,
            later_s=PLAN.later_seconds(start),
        params:
            start=lambda wildcards, json=PLAN.start_json(start): json,
        message:
            f"Server start {number + 1} of {len(STARTS)}: {start.slug}, {len(start.points)} points"
        shell:
            "{PYTHON:q} workflow/scripts/measure.py --start {params.start:q} {PLAN.measure_options}"
            " --later-seconds {resources.later_s}"
            " 2>&1 | tee -i {log:q}"
