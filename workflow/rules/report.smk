# Needs: the study's tables and, where it is there, the reference that the config names. Makes: the paper, and beside
# it every figure and table as files.
from servelab import reference_files


rule report:
    input:
        TABLES,
        lambda wildcards: reference_files.watched(
            PLAN.loaded.study.report.reference, STUDY, ROOT
        ),
    output:
        report(REPORT, caption="../report/paper.rst", category="The paper"),
        report(
            directory(FIGURES),
            patterns=["{name}.svg", "{name}.csv"],
            caption="../report/figures.rst",
            category="Figures and tables",
            labels={"of": "{name}"},
        ),
    log:
        f"results/{STUDY}/logs/report.log",
    params:
        tables=f"results/{STUDY}/tables",
        code=code("report.py", "servelab"),
    message:
        f"The paper: {REPORT}"
    shell:
        "{PYTHON:q} workflow/scripts/report.py --tables {params.tables:q} --output {output[0]:q} --figures {output[1]:q}"
        " --made-of {MADE_OF[report]} 2>&1 | tee -i {log:q}"
