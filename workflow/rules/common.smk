# Needs: config/*.yaml (or --configfile, --config). Makes: STUDY (checked), STARTS (what to measure) and the paths
# that the rules name. Nothing is started or written here; a config that cannot be used ends the run at once.
import sys

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from servelab import parse_time, signals
from servelab.config.errors import ConfigError
from servelab.made_of import digest

# A config file of one's own without `study` is one that lacks it: no other study is laid under it.
if not workflow.overwrite_configfiles or parse_time.is_default_study(config):

    configfile: "config/config.yaml"


# A job whose Snakemake was killed ends itself; this is how it knows.
signals.announce()

ROOT = Path(workflow.basedir)
PYTHON = sys.executable

try:
    PLAN = parse_time.plan(config, ROOT)
except ConfigError as error:
    raise WorkflowError(str(error)) from None

STUDY = PLAN.study_name
STARTS = PLAN.starts
POINTS = PLAN.points
TABLE_FILES = (
    "points.arrow",
    "points.csv",
    "loads.arrow",
    "analyses.json",
    "study.json",
)
TABLES = [f"results/{STUDY}/tables/{name}" for name in TABLE_FILES]
REPORT = f"reports/{STUDY}.html"
FIGURES = f"reports/{STUDY}"


@cache
def code(script, *packages):
    """Digest of a script and of the modules it uses: the rule runs again when they change."""
    return parse_time.code_digest(ROOT / "workflow/scripts", script, packages)


# What tables and paper depend on beside the points: the jobs write it down, and the next run compares.
MADE_OF = {
    "summarise": digest(PLAN.analysis_json, code("summarise.py", "servelab")),
    "analyse": digest(PLAN.study_json, code("analyse.py", "servelab")),
    "report": digest(code("report.py", "servelab")),
}

# Only for a run that will measure: one at a time in this folder. Points that are damaged or others than asked for (or
# failed, with retry_failed=true) are taken out of the way, so that they are missing; what the store has lost is put back
# into it; tables and paper of something else are made again.
try:
    PLAN.take_folder(sys.argv, MADE_OF)
except BlockingIOError as error:
    raise WorkflowError(str(error)) from None
except OSError as error:
    raise WorkflowError(f"results cannot be written or read: {error}") from None
