# Commands for a person, each a target: plan, setup, archive, refine (rebuild and compare have files of their own).
# They have no output that Snakemake waits for: `setup` asks for files, the others always run.


localrules:
    plan,


rule plan:
    params:
        study=lambda wildcards: PLAN.study_json,
        retry="--retry-failed" if PLAN.retry_failed else "",
    shell:
        "{PYTHON:q} workflow/scripts/plan.py --config {params.study:q} {params.retry}"


rule setup:
    input:
        PLAN.environment_marker,
        [parse_time.marker(folder) for folder in PLAN.models_to_make],
    message:
        "Environment and models are there"


rule archive:
    input:
        POINTS,
        TABLES,
        REPORT,
    params:
        study=lambda wildcards: PLAN.study_json,
        target=f"archive/{STUDY}",
    shell:
        "{PYTHON:q} workflow/scripts/archive.py --config {params.study:q} --output {params.target:q}"


rule refine:
    input:
        TABLES,
    params:
        study=lambda wildcards: PLAN.study_json,
        tables=f"results/{STUDY}/tables",
    shell:
        "{PYTHON:q} workflow/scripts/refine.py --config {params.study:q} --tables {params.tables:q}"
