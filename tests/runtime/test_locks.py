"""A run folder has one process, also if its `lock` is deleted, and the process notices if the folder goes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from drlhp.errors import UserError
from drlhp.runtime.locks import FolderLock, in_use


def test_a_deleted_lock_lets_nobody_in(tmp_path: Path) -> None:
    with closing(FolderLock(tmp_path)) as lock:
        assert in_use(tmp_path)
        (tmp_path / "lock").unlink()
        assert in_use(tmp_path)
        with pytest.raises(BlockingIOError):
            FolderLock(tmp_path)
        lock.check()
    assert not in_use(tmp_path)
    FolderLock(tmp_path).close()


def test_a_folder_that_is_renamed_or_made_anew_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with closing(FolderLock(folder)) as lock:
        folder.rename(tmp_path / "b")
        with pytest.raises(UserError, match=r"a was removed or renamed .*\.$"):
            lock.check()
        folder.mkdir()
        with pytest.raises(UserError, match="was removed or renamed"):
            lock.check()
        assert in_use(tmp_path / "b") and not in_use(folder)
