"""What the Snakefile needs while it is read: the checked study, its server starts, and their paths as text.

Everything that Snakemake compares between runs is one canonical JSON text: it compares parameters as a set of
their reprs, without names, and OmegaConf containers, paths and numpy numbers never count as changed.
"""

import fcntl
import hashlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, cast

from servelab import estimate, limits, machine, refined
from servelab.canonical import canonical_json
from servelab.config.engines import UNKNOWN, environment_folder, file_words
from servelab.config.load import COMMAND_KEYS, LoadedStudy, load
from servelab.config.models import made_from, resource_folder
from servelab.config.schema import EngineConfig
from servelab.grid import server_starts
from servelab.made_of import digest, doubt, forget, noted
from servelab.models import MARKER
from servelab.records import BadPointError, read_meta
from servelab.spec import EngineSpec, ServerStart
from servelab.store import Store

_ARROW_MAGIC = b"ARROW1"
# Snakemake's options with which it runs nothing.
_ONLY_LOOKS = {
    "--dry-run", "--dryrun", "--summary", "-S", "--detailed-summary", "-D", "--dag", "--rulegraph", "--filegraph",
    "--d3dag", "--list-rules", "--list", "-l", "--list-target-rules", "--lt", "--list-input-changes", "--lint",
    "--list-params-changes", "--list-code-changes", "--list-changes", "--report", "--unlock", "--version",
}  # fmt: skip
HELD_VARIABLE = "SERVELAB_FOLDER_HELD"
_SAFE_NAME = re.compile(r"\W+")
_DATA_SUFFIXES = (".yaml", ".j2", ".html", ".css", ".js", ".json")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n#]+))", re.MULTILINE
)
_COMMENT = re.compile(r"#[^\n]*")


@dataclass
class Plan:
    """A study as the rules see it."""

    loaded: LoadedStudy
    root: Path
    retry_failed: bool = False
    starts: list[ServerStart] = field(default_factory=list)
    held: io.IOBase | None = None

    @property
    def study_name(self) -> str:
        """The study's name: a folder in results/, a file in reports/."""
        return self.loaded.study.study

    @property
    def engine(self) -> EngineSpec:
        """The study's engine."""
        return self.loaded.engine

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's keys as written."""
        return self.loaded.engine_config

    @cached_property
    def points(self) -> list[str]:
        """Paths of all points, in the order of measuring."""
        return [path for start in self.starts for path in self.paths(start)]

    def paths(self, start: ServerStart) -> list[str]:
        """Paths of one start's points."""
        return [start.path(point) for point in start.points]

    @property
    def environment(self) -> str:
        """Folder of the environment that servelab makes for the server; empty if the user has one."""
        return environment_folder(self.engine.name, self.engine.version, self.engine.requirements)

    @property
    def environment_marker(self) -> list[str]:
        """The file that says the environment is ready."""
        return [marker(self.environment)] if self.environment else []

    @cached_property
    def model_folders(self) -> dict[str, str]:
        """Model → folder, for those that servelab makes or fetches."""
        configs = self.loaded.model_configs
        folders = {name: resource_folder(config) for name, config in configs.items()}
        return {name: folder for name, folder in folders.items() if folder}

    @cached_property
    def limits_file(self) -> str:
        """Where this machine's measured limits lie; empty if they are given in the config or cannot be measured."""
        given = self.loaded.study.limits or self.engine.limits
        if given or not self.engine.python or self.engine.device not in limits.DEVICES:
            return ""
        words = [machine.facts()["id"], self.engine.name, self.engine.version]
        if self.engine.version == UNKNOWN:  # then only its place tells one interpreter from another
            words.append(digest(self.engine.python)[:8])
        return f"resources/limits/{file_words(*words)}.json"

    def there(self, path: str) -> bool:
        """Whether something that is made once has been made. Its name says what it is, so it is never made again.

        Snakemake 9.27 would: a rule that runs again for another reason than a missing file, and whose file is an
        ancient() input, hides all that is still missing behind it, and the run ends there as if it were complete.
        """
        return (self.root / path).is_file()

    def needs(self, start: ServerStart) -> list[str]:
        """What must be there before this start can be measured."""
        model = self.model_folders.get(start.model.name)
        measured = [self.limits_file] if self.limits_file else []
        return [*self.environment_marker, *([marker(model)] if model else []), *measured]

    @property
    def models_to_make(self) -> dict[str, str]:
        """Folder → what servelab makes or fetches the model in it from, as canonical JSON."""
        return {
            folder: canonical_json(made_from(self.loaded.model_configs[name]))
            for name, folder in self.model_folders.items()
        }

    def start_json(self, start: ServerStart) -> str:
        """All that a start's measurement depends on."""
        return self._start_texts[self.rule_name(start)]

    @cached_property
    def _start_texts(self) -> dict[str, str]:
        return {self.rule_name(start): canonical_json(start) for start in self.starts}

    @cached_property
    def study_json(self) -> str:
        """The whole config."""
        return self.loaded.canonical()

    @cached_property
    def analysis_json(self) -> str:
        """The config without what only the report reads: a new title makes no new rows."""
        return canonical_json({key: value for key, value in self.loaded.raw.items() if key != "report"})

    @staticmethod
    def identifier(name: str) -> str:
        """A name as part of a rule's name."""
        return _SAFE_NAME.sub("_", name)

    def rule_name(self, start: ServerStart) -> str:
        """A rule's name for one server start."""
        return "measure_" + self.identifier(f"{start.experiment or 'shared'}_{start.slug}_{start.start}")

    @property
    def measure_options(self) -> str:
        """Options of measure.py that decide nothing about what is measured."""
        words = [f"--limits {shlex.quote(self.limits_file)}"] if self.limits_file else []
        if self.retry_failed:
            words.append("--retry-failed")
        return " ".join(words)

    @cached_property
    def _later(self) -> dict[str, int]:
        timings = estimate.read(self.root / "results/timings.jsonl")
        found: dict[str, int] = {}
        later = 0.0
        for start in reversed(self.starts):
            found[self.rule_name(start)] = round(later)
            missing = [p for p in start.points if not os.path.exists(f"{self.root}/{start.path(p)}")]  # noqa: PTH110
            later += estimate.seconds(timings, start, missing)
        return found

    def later_seconds(self, start: ServerStart) -> int:
        """Estimate for the starts that come after this one and were not measured when the run began."""
        return self._later[self.rule_name(start)]

    def to_make_again(self) -> list[str]:
        """Paths of points that are there but cut short, and with retry_failed those that failed."""
        return [path for path in self.points if self._is_damaged(f"{self.root}/{path}")]

    def _is_damaged(self, path: str) -> bool:
        # Only what is cheap at every run: an Arrow file ends with its magic. summarise.py reads to the last byte.
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            size = os.fstat(handle).st_size
            if os.pread(handle, len(_ARROW_MAGIC), max(size - len(_ARROW_MAGIC), 0)) != _ARROW_MAGIC:
                return True
        finally:
            os.close(handle)
        if not self.retry_failed:
            return False
        try:
            return read_meta(Path(path)).status == "failed"
        except BadPointError:
            return True

    def take_folder(self, argv: Sequence[str], made_of: Mapping[str, str]) -> None:
        """Keep a second run out of this folder for as long as this process lives, and see to it that all is made.

        What is damaged, or a point of another key, is cleared away; the store keeps it if it is whole. What the store
        has lost it gets back: Snakemake removes all results of a job that has a point more to measure. Tables and
        paper that were made of something else than `made_of` says (job → digest) are made again, whether Snakemake
        remembers them or not. A dry run, `plan` and what else only looks do none of this.
        Raises BlockingIOError with what to do, OSError if the store cannot be written.
        """
        self.held = hold_folder(self.root, argv)
        if self.held is None:
            return
        forget(self.root / path for path in self.to_make_again())
        store = Store(self.root / "results/store")
        kept = store.inodes()
        for start in self.starts:
            self._take_back(start, store, kept)
        tables = self.root / f"results/{self.study_name}/tables"
        if not _tables_are_there(tables):
            forget([tables / "analyses.json"])
        first = {
            "summarise": tables / "points.arrow",
            "analyse": tables / "analyses.json",
            "report": self.root / f"reports/{self.study_name}.html",
        }
        doubt(path for job, path in first.items() if noted(tables, job) != made_of[job])

    def _take_back(self, start: ServerStart, store: Store, kept: set[int]) -> None:
        """Give the store what it has lost of a start; clear away points that are not the ones this start asks for."""
        certain = noted(self.root / start.log_directory(), "measure") == digest(self.start_json(start))
        for point in start.points:
            path = f"{self.root}/{start.path(point)}"
            shown = _stat(path)
            if shown is None or (certain and shown.st_ino in kept):
                continue
            key = start.key(point)
            there = _stat(str(store.path(key)))
            # The same file, or where the file system has no links one of the same size in a start that is certain.
            if there and (there.st_ino == shown.st_ino or (certain and there.st_size == shown.st_size)):
                continue
            found = store.take_back(Path(path))
            if found not in (None, key):
                forget([Path(path)])


def marker(folder: str) -> str:
    """The file that says that an environment or a model is whole."""
    return f"{folder}/{MARKER}"


def _tables_are_there(folder: Path) -> bool:
    """Whether every table that the analyses name is there, and that of the loads, as Arrow and as CSV."""
    try:
        listed = json.loads((folder / "analyses.json").read_text(encoding="utf-8"))
        names = ["loads", *(name for analysis in listed["analyses"] for name in analysis["tables"])]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((folder / f"{name}{end}").is_file() for name in names for end in (".arrow", ".csv"))


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - for each point at every run
    except OSError:
        return None


def hold_folder(root: Path, argv: Sequence[str]) -> io.IOBase | None:
    """The folder's lock, held as long as the file is open; None for a run that only looks, or within one that has it.

    The lock is the kernel's, on the Snakefile itself: nothing is written, and none is left after a kill.
    Raises BlockingIOError with what to do.
    """
    looks = any(
        word.partition("=")[0] in _ONLY_LOOKS or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", word) for word in argv
    )
    if looks or ("plan" in argv and "all" not in argv):
        return None
    if os.environ.get(HELD_VARIABLE) == str(root.resolve()):
        return None  # `refine` runs `all` within its own run
    file = (root / "Snakefile").open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        message = f"another run is at work in {root}; wait for it, or look with `snakemake --cores 1 plan`"
        raise BlockingIOError(message) from error
    return file


def is_default_study(config: Mapping[str, Any]) -> bool:
    """Whether a run's config names no study of its own: it is empty but for what is no part of a study."""
    return not config.keys() - set(COMMAND_KEYS)


def rebuilt_study(archive: Path, root: Path) -> str:
    """The name of an archived study that may be rebuilt in this folder.

    Raises FileExistsError, with what to do, where a study of that name was measured: its tables and report would be
    written over, and as they would be newer than its points nothing would make them again.
    """
    name = str(json.loads((archive / "config.json").read_text(encoding="utf-8"))["study"])
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise FileExistsError(f"{archive / 'config.json'}: study {name!r} is no name for a folder")
    measured = next((root / "results" / name).glob("*/*/start-*/*.arrow"), None)
    if measured is not None:
        raise FileExistsError(
            f"a study «{name}» was measured here ({measured.relative_to(root)}); rebuilding {archive} would write over "
            f"its tables and report. Rebuild in another clone of servelab, or give yours another name (`study`) and "
            f"move results/{name} away first"
        )
    return name


def plan(config: Mapping[str, Any], root: Path) -> Plan:
    """Read the config into a plan. Raises ConfigError."""
    loaded = load(config, root)
    added = refined.read(root, loaded.study.study)
    if added:
        loaded = load(refined.apply(loaded.raw, added), root)
    retry = str(config.get("retry_failed", False)).lower() in ("true", "1", "yes")
    return Plan(loaded, root, retry, server_starts(loaded))


def code_digest(folder: Path, script: str, packages: Iterable[str]) -> str:
    """Digest of a script and of the modules it imports from these packages, all the way down; comments do not count.

    Text files of a package (texts, templates, data) count by content.
    """
    seen: dict[str, str] = {}
    todo = [f"{folder}/{script}"]
    names = tuple(packages)
    while todo:
        path = todo.pop()
        if path in seen or not os.path.isfile(path):  # noqa: PTH113 - thousands of times a run
            continue
        seen[path], modules = _compiled(path, names, imported=bool(seen))
        todo += [
            f"{folder}/{module.replace('.', '/')}{end}"
            for module in modules
            for end in (".py", "/__init__.py")
        ]
    everything = {path.removeprefix(f"{folder}/"): found for path, found in seen.items()} | _data(folder)
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _data(folder: Path) -> dict[str, str]:
    """Text files of the library that scripts read: path → digest."""
    places = [folder / "servelab" / name for name in ("texts", "report/templates", "data")]
    files = [file for place in places for file in place.rglob("*") if file.suffix in _DATA_SUFFIXES]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)
    }


@cache
def _compiled(path: str, packages: tuple[str, ...], imported: bool) -> tuple[str, tuple[str, ...]]:
    """(digest of what a module does, modules of these packages that it may import)."""
    source = Path(path).read_text(encoding="utf-8")
    sha = hashlib.sha256()
    _add_code(sha, _code_of(path, source, imported))
    modules: list[str] = []
    for module, listed, plain_import in _IMPORT.findall(source):
        modules += [name.split()[0] for name in plain_import.split(",") if name.split()]
        if module:
            names = [
                part.split()[0] for part in _COMMENT.sub("", listed).strip("() \n").split(",") if part.split()
            ]
            modules += [module, *(f"{module}.{name}" for name in names)]
    return sha.hexdigest(), tuple(module for module in modules if module.split(".")[0] in packages)


def _code_of(path: str, source: str, imported: bool) -> CodeType:
    """A module's code, as Python imports it: from byte code that is up to date, a tenth of compiling."""
    if imported and not sys.flags.optimize:  # `python -O` keeps byte code without asserts
        return cast(CodeType, SourceFileLoader("module", path).get_code("module"))
    return compile(source, "", "exec", dont_inherit=True, optimize=0)


def _add_code(sha: "hashlib._Hash", code: CodeType) -> None:
    """Add what compiled code does, without line numbers: its instructions, names and constants."""
    sha.update(code.co_code + code.co_exceptiontable)
    sha.update(
        repr(
            (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)
        ).encode()
    )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(sha, constant)
        else:
            # A set's order is another one in every process.
            sha.update(
                repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()
            )
