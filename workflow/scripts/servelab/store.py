"""The cache of record: `results/store/<2 hex>/<32 hex>.arrow`, named by the content of what was measured.

Snakemake deletes and rewrites the paths a person sees; the store survives that, an interrupted run and a lost
`.snakemake/`. Files appear complete or not at all.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from servelab.records import (
    BadPointError,
    PointMeta,
    PointRecord,
    encode_point,
    read_meta,
    read_point,
    write_atomically,
)


@dataclass(frozen=True)
class Store:
    """A folder of points by key."""

    root: Path

    def path(self, key: str) -> Path:
        """Where the point with this key lies, or would."""
        return self.root / key[:2] / f"{key}.arrow"

    def find(self, key: str) -> tuple[PointMeta | None, str | None]:
        """(the point's metadata, None) if it is there and whole; (None, why not) otherwise; why is None if absent."""
        path = self.path(key)
        if not path.exists():
            return None, None
        try:
            return read_point(path, key).meta, None
        except BadPointError as error:
            return None, str(error)

    def glance(self, key: str, shown: Path | None = None) -> PointMeta | None:
        """The point's metadata without looking at its rows, None if it is absent or no complete file: for estimates.

        shown: where a person sees the point, which counts too if the store has lost it.
        """
        path = self.path(key)
        try:
            return read_meta(shown if shown is not None and not path.exists() else path, key)
        except BadPointError:
            return None

    def inodes(self) -> set[int]:
        """Inodes of everything kept: a shown point that is the same file needs no second look."""
        try:
            folders = [entry.path for entry in os.scandir(self.root) if entry.is_dir()]
        except FileNotFoundError:
            return set()
        return {entry.inode() for folder in folders for entry in os.scandir(folder)}

    def put(self, record: PointRecord) -> Path:
        """Keep a point; an earlier one with this key is replaced. Raises OSError (disk full), earlier points intact."""
        path = self.path(record.meta.key)
        write_atomically(path, encode_point(record))
        return path

    def show(self, key: str, target: Path) -> None:
        """Put a kept point where a person looks: a hard link where the file system has them, else a copy."""
        _link(self.path(key), target)
        target.touch()

    def take_back(self, shown: Path) -> str | None:
        """Keep a point that lies where a person looks and not whole here: the store was lost, or left behind by a copy.

        The shown point's own key, None if it is no point. Raises OSError (disk full).
        """
        try:
            key = read_meta(shown).key
        except BadPointError:
            return None
        path = self.path(key)
        # Of one size they are taken for the same: to read all points at every run would cost minutes.
        if not path.exists() or (path.stat().st_size != shown.stat().st_size and self.find(key)[0] is None):
            _link(shown, path)
        return key


def _link(source: Path, target: Path) -> None:
    """The same file in a second place, there at once or not at all; a copy where there are no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
