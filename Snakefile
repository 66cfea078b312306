from snakemake.utils import min_version

min_version("9.20")


# Text of `snakemake --report`.
report: "workflow/report/workflow.rst"


if "archive" in config:

    include: "workflow/rules/rebuild.smk"

elif "studies" in config:

    include: "workflow/rules/compare.smk"

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
        message:
            f"Study {STUDY} is complete: {REPORT}"
