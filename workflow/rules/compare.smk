# Needs: the tables of two studies (--config studies=[a,b]). Makes: reports/compare-a-b.html.
import sys

from snakemake.exceptions import WorkflowError

PYTHON = sys.executable

STUDIES = [str(name) for name in config["studies"]]
if len(STUDIES) != 2 or len(set(STUDIES)) != 2:
    raise WorkflowError(
        f"studies: {STUDIES} is not possible here; allowed: two names of measured studies, studies=[a,b]"
    )


rule compare:
    input:
        [
            f"results/{name}/tables/{file}"
            for name in STUDIES
            for file in ("analyses.json", "study.json", "points.arrow", "loads.arrow")
        ],
    params:
        folders=[f"results/{name}/tables" for name in STUDIES],
        output=f"reports/compare-{STUDIES[0]}-{STUDIES[1]}.html",
    shell:
        "{PYTHON:q} workflow/scripts/compare.py {params.folders:q} --output {params.output:q}"
