from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.20")

if Path.cwd() != Path(workflow.basedir).resolve():
    raise WorkflowError(
        f"results belong into servelab's own folder: add --directory {workflow.basedir}"
    )


# Text of `snakemake --report`.
report: "workflow/report/workflow.rst"


if "archive" in config:

    include: "workflow/rules/rebuild.smk"

    workflow.default_target = "rebuild"

elif "studies" in config:

    include: "workflow/rules/compare.smk"

    workflow.default_target = "compare"

else:

    include: "workflow/rules/common.smk"
    include: "workflow/rules/environment.smk"
    include: "workflow/rules/measure.smk"
    include: "workflow/rules/analyse.smk"
    include: "workflow/rules/report.smk"
    include: "workflow/rules/commands.smk"

    rule all:
        default_target: True
        input:
            POINTS,
            TABLES,
            REPORT,
            FIGURES,
        message:
            f"Study {STUDY} is complete: {REPORT}"
