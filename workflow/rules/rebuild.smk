# Needs: the folder of an archived study (--config archive=FOLDER). Makes: its tables and its paper again, without a
# server, an engine's environment or a model, in a folder that has no measured study of that name.
import sys

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from pathlib import Path

from snakemake.exceptions import WorkflowError

from servelab import parse_time

ARCHIVE = str(config["archive"])
PYTHON = sys.executable

try:
    HELD = parse_time.hold_folder(Path(workflow.basedir), sys.argv)
    STUDY = parse_time.rebuilt_study(Path(ARCHIVE), Path())
except (BlockingIOError, FileExistsError) as error:
    raise WorkflowError(str(error)) from None


rule rebuild:
    params:
        archive=ARCHIVE,
        tables=f"results/{STUDY}/tables",
        report=f"reports/{STUDY}.html",
    shell:
        "{PYTHON:q} workflow/scripts/summarise.py --archive {params.archive:q} --tables {params.tables:q}"
        " && {PYTHON:q} workflow/scripts/analyse.py --archive {params.archive:q} --tables {params.tables:q}"
        " && {PYTHON:q} workflow/scripts/report.py --tables {params.tables:q} --output {params.report:q}"
