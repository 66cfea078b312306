# Commands for a person, each a target: plan, archive, refine (rebuild and compare have files of their own). They have
# no output that Snakemake waits for, so they always run.


localrules:
    plan,


rule plan:
    params:
        study=lambda wildcards: PLAN.study_json,
        retry="--retry-failed" if PLAN.retry_failed else "",
    shell:
        "{PYTHON} workflow/scripts/plan.py --config {params.study:q} {params.retry}"


rule archive:
    input:
        POINTS,
        TABLES,
        REPORT,
    params:
        study=lambda wildcards: PLAN.study_json,
        target=f"archive/{STUDY}",
    shell:
        "{PYTHON} workflow/scripts/archive.py --config {params.study:q} --output {params.target:q}"


rule refine:
    input:
        TABLES,
    params:
        study=lambda wildcards: PLAN.study_json,
        tables=f"results/{STUDY}/tables",
    shell:
        "{PYTHON} workflow/scripts/refine.py --config {params.study:q} --tables {params.tables:q}"
