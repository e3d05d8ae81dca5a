"""Only regular files are read: whatever else is in their place is refused at once, and never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.regular_files import open_regular, read_regular
from drlhp.runtime.run_files import PROGRESS, read_rows

READERS: list[Callable[[Path], object]] = [
    open_regular,
    lambda path: read_regular(path, 10),
    read_rows,
    lambda path: PROGRESS.read_to_go_on(path.parent),
    checkpoint.read,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_could_be_read_for_ever_is_refused(
    tmp_path: Path, read: Callable[[Path], object], make: Callable[[Path], None]
) -> None:
    path = tmp_path / PROGRESS.name
    make(path)
    with pytest.raises(
        UserError, match=rf"^{path} is no regular file; put the file itself, or a copy, in its place\.$"
    ):
        read(path)


def test_sockets_and_folders_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        open_regular(tmp_path)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="socket"):
            open_regular(tmp_path / "socket")


def test_a_regular_file_is_read_and_so_is_one_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 7) == read_regular(tmp_path / "link", 7) == b"content"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_a_file_of_gigabytes_that_needs_no_disk_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"is larger than 1,000 bytes"):
        read_regular(tmp_path / "sparse", 1000)
