"""The store: points by key, complete or absent, shown where a person looks without a second copy."""

import os
import shutil
from pathlib import Path

import pytest

from servelab.records import read_point
from servelab.store import Store
from test_records import KEY, record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_point_is_found_by_its_key(store: Store) -> None:
    """An absent point is (nothing, no complaint); a kept one gives its metadata; its place follows from the key."""
    assert store.find(KEY) == (None, None)
    path = store.put(record())
    assert path == store.root / "01" / f"{KEY}.arrow"
    meta, why = store.find(KEY)
    assert meta is not None and meta.key == KEY and why is None


def test_damaged_point_is_not_found_and_says_why(store: Store) -> None:
    """A cut file is told apart from an absent one, so that a person hears of it."""
    path = store.put(record())
    path.write_bytes(path.read_bytes()[:-20])
    meta, why = store.find(KEY)
    assert meta is None
    assert why is not None and str(path) in why


def test_another_points_file_is_not_found(store: Store) -> None:
    """A whole file under another point's name is not that point."""
    path = store.put(record())
    other = "f" * 32
    store.path(other).parent.mkdir(parents=True)
    shutil.copyfile(path, store.path(other))
    meta, why = store.find(other)
    assert meta is None
    assert why is not None and f"holds point {KEY}, not {other}" in why


def test_shown_point_is_the_kept_file_itself(store: Store, tmp_path: Path) -> None:
    """A hard link, newer than before (Snakemake compares times), and whatever lay there is replaced."""
    kept = store.put(record())
    os.utime(kept, (1, 1))
    target = tmp_path / "results/a/b.arrow"
    target.parent.mkdir(parents=True)
    target.write_text("something older", encoding="utf-8")
    store.show(KEY, target)
    assert target.stat().st_ino == kept.stat().st_ino
    assert target.stat().st_mtime > 1
    assert [path.name for path in target.parent.iterdir()] == ["b.arrow"]


def test_where_links_are_not_possible_the_point_is_copied(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file system or one without hard links: the same content, a file of its own."""

    def no_links(source: object, target: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    kept = store.put(record())
    monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "elsewhere/b.arrow"
    store.show(KEY, target)
    assert target.stat().st_ino != kept.stat().st_ino
    assert read_point(target, KEY).meta == read_point(kept).meta


def test_what_the_store_lost_is_taken_back_from_where_it_is_shown(store: Store, tmp_path: Path) -> None:
    """A whole point comes back under its own key, whatever is asked for there; half a file or nothing is no point."""
    target = tmp_path / "results/b.arrow"
    kept = store.put(record())
    store.show(KEY, target)
    inode = kept.stat().st_ino
    assert store.take_back(target) == KEY and kept.stat().st_ino == inode, "it is there"
    kept.unlink()
    assert store.find(KEY) == (None, None)
    assert store.glance(KEY) is None and store.glance(KEY, target) is not None
    assert store.take_back(target) == KEY
    assert store.find(KEY)[0] is not None and store.path(KEY).stat().st_ino == target.stat().st_ino
    half = tmp_path / "results/half.arrow"
    half.write_bytes(target.read_bytes()[:-20])
    store.path(KEY).unlink()
    assert store.take_back(half) is None and store.take_back(tmp_path / "nothing.arrow") is None
    assert not store.path(KEY).exists() and half.exists()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_kept_point_is_replaced_by_the_whole_one_that_is_shown(
    store: Store, tmp_path: Path
) -> None:
    """A copied project has two files of each point; one of them is enough."""
    target = tmp_path / "results/b.arrow"
    target.parent.mkdir()
    target.write_bytes(store.put(record()).read_bytes())
    store.path(KEY).write_bytes(target.read_bytes()[:-30])
    assert store.find(KEY)[0] is None
    assert store.take_back(target) == KEY
    assert store.find(KEY)[0] is not None


def test_disk_full_keeps_earlier_points(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point that cannot be written raises OSError; those kept before are whole, and no half file is left."""
    store.put(record())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    other = "f" * 32
    with pytest.raises(OSError, match="No space left"):
        store.put(record(other))
    assert store.find(other) == (None, None)
    assert store.find(KEY)[0] is not None
    assert not list(store.root.rglob("*.tmp"))
