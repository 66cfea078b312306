# Needs: every point. Makes: a row per point with its verdict, then the tables, fits and findings of the study.


rule summarise:
    input:
        POINTS,
    output:
        f"results/{STUDY}/tables/points.arrow",
        report(
            f"results/{STUDY}/tables/points.csv",
            caption="../report/points.rst",
            category="Points",
        ),
    log:
        f"results/{STUDY}/logs/summarise.log",
    params:
        study=lambda wildcards: PLAN.analysis_json,
        code=code("summarise.py", "servelab"),
    message:
        f"A row and a verdict for each of {len(POINTS)} points"
    shell:
        "{PYTHON:q} workflow/scripts/summarise.py --config {params.study:q} --made-of {MADE_OF[summarise]}"
        " 2>&1 | tee -i {log:q}"


rule analyse:
    input:
        f"results/{STUDY}/tables/points.arrow",
    output:
        f"results/{STUDY}/tables/analyses.json",
        f"results/{STUDY}/tables/study.json",
        f"results/{STUDY}/tables/loads.arrow",
    log:
        f"results/{STUDY}/logs/analyse.log",
    params:
        study=lambda wildcards: PLAN.study_json,
        code=code("analyse.py", "servelab"),
    message:
        "Tables, fits and findings"
    shell:
        "{PYTHON:q} workflow/scripts/analyse.py --config {params.study:q} --made-of {MADE_OF[analyse]}"
        " 2>&1 | tee -i {log:q}"
