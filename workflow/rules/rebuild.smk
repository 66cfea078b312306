# Needs: the folder of an archived study (--config archive=FOLDER). Makes: its tables and its paper again, without a
# server, an engine's environment or a model.
import json
import os
import sys

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

ARCHIVE = config["archive"]
PYTHON = sys.executable

with open(os.path.join(ARCHIVE, "config.json"), encoding="utf-8") as file:
    STUDY = json.load(file)["study"]


rule rebuild:
    default_target: True
    params:
        archive=ARCHIVE,
        tables=f"results/{STUDY}/tables",
        report=f"reports/{STUDY}.html",
    shell:
        "{PYTHON} workflow/scripts/summarise.py --archive {params.archive:q} --tables {params.tables:q}"
        " && {PYTHON} workflow/scripts/analyse.py --archive {params.archive:q} --tables {params.tables:q}"
        " && {PYTHON} workflow/scripts/report.py --tables {params.tables:q} --output {params.report:q}"
