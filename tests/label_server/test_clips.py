"""Where the page's clips are kept: the run folder, other folders, an S3 server; and what happens when it fails."""

from __future__ import annotations

import io
import os
import shutil
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path

import fsspec
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from PIL import Image

from drlhp.data.segment import Segment
from drlhp.errors import UserError
from drlhp.label_server import clips as clips_module
from drlhp.label_server.clips import Clips, SheetStore
from drlhp.label_server.config import PageConfig
from drlhp.labelling.answers import Submission
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.commands import small_files
from tests.support.labelling import make_store, running, segment


def segment_ids(db_path: Path) -> list[str]:
    with closing(PrefDB.open(db_path, read_only=True)) as db:
        return db.segment_ids()


def frames(data: bytes) -> np.ndarray:
    """The frames of a sheet with one row of 25, (25, 84, 84, 3)."""
    picture = np.asarray(Image.open(io.BytesIO(data)))
    return np.stack(np.split(picture, 25, axis=1))


@pytest.mark.parametrize("url", ["s3://clips/run", "memory://clips/run", "file"])
def test_a_sheet_is_drawn_once_and_kept_at_the_url(
    url: str, tmp_path: Path, s3: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "elsewhere").as_uri() if url == "file" else url
    db_path = make_store(tmp_path / "run", 1)
    first = segment_ids(db_path)[0]
    with closing(Clips(db_path, url, keep=10)) as clips:
        sheet = clips.sheet(first)
    assert np.array_equal(frames(sheet.data), segment(0).frames())
    assert fsspec.open(f"{url}/{first}.webp").open().read() == sheet.data
    assert list(tmp_path.glob("run/**/*.webp")) == []
    monkeypatch.setattr(clips_module, "encode_sheet", None)
    with closing(Clips(db_path, url, keep=10)) as again:  # as after a restart: nothing is drawn
        assert again.sheet(first) == sheet and again.sheet(first) == sheet


def test_a_segment_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db_path = make_store(tmp_path, 1)
    first, _ = segment_ids(db_path)
    decoded: list[str] = []
    real = PrefDB.segment

    def counted(db: PrefDB, segment_id: str) -> Segment:
        decoded.append(segment_id)
        return real(db, segment_id)

    monkeypatch.setattr(PrefDB, "segment", counted)
    with closing(Clips(db_path, tmp_path / "clips", keep=10)) as clips:
        for _ in range(3):
            clips.sheet(first)
    assert decoded == [first]


def test_a_sheet_that_was_cut_short_is_drawn_again(tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 1)
    first = segment_ids(db_path)[0]
    with closing(Clips(db_path, tmp_path / "clips", keep=10)) as clips:
        whole = clips.sheet(first).data
        path = tmp_path / "clips" / f"{first}.webp"
        for rest in (b"", whole[:7], whole[:-1]):
            path.write_bytes(rest)
            assert clips.sheet(first).data == path.read_bytes() == whole


def test_what_a_server_that_was_killed_left_half_written_is_deleted(tmp_path: Path) -> None:
    db_path, folder = make_store(tmp_path, 1), tmp_path / "clips"
    folder.mkdir()
    old, new = (folder / f"{'0' * 64}.webp.{number}-1" for number in (1, 2))

    def write_half() -> None:
        for draft in (old, new):
            draft.write_bytes(b"RIFF")
        os.utime(old, (1, 1))

    write_half()
    with closing(Clips(db_path, folder, keep=10)) as clips:
        assert [*folder.iterdir()] == [new], "somebody may be writing this one"
        write_half()
        clips.tidy(10)
        assert [*folder.iterdir()] == [new]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_sheet_is_stored_whole_or_not_at_all(tmp_path: Path, scheme: str) -> None:
    store = SheetStore(f"{scheme}{tmp_path}/clips" if scheme else tmp_path / "clips")
    store.write("kept", bytes(900))
    for segment_id in ("kept", "new"):
        with small_files(1000), pytest.raises(OSError):
            store.write(segment_id, bytes(2000))
    assert [(path.name, path.stat().st_size) for path in (tmp_path / "clips").iterdir()] == [("kept.webp", 900)]


def test_the_page_gets_its_clips_from_s3_and_goes_on_without_it(tmp_path: Path, s3: ThreadedMotoServer) -> None:
    db_path = make_store(tmp_path, 2, {"clips_url": "s3://clips/run"})
    first, second, *_ = segment_ids(db_path)
    with running(tmp_path) as server:
        client = server.client()
        code, data, headers = client.request("GET", f"/api/clip/{first}")
        assert code == 200 and np.array_equal(frames(data), segment(0).frames())
        assert (headers["X-Frames"], headers["X-Fps"]) == ("25", "15")
        assert server.anonymous().request("GET", f"/api/clip/{first}")[0] == 401
        assert fsspec.filesystem("s3", use_listings_cache=False).ls("clips/run") == [f"clips/run/{first}.webp"]
        s3.stop()
        for _ in range(2):
            code, data, _ = client.request("GET", f"/api/clip/{second}")
            assert code == 200 and np.array_equal(frames(data), segment(1).frames())
        (lease,) = client.next(1)
        assert client.answer(lease, "left", "without-a-store")[0] == 200
        assert "clips cannot be kept in s3://clips/run" in client.get("/api/status")[1]["trouble"]
    log = (tmp_path / "web" / "server.log").read_text()
    assert log.count("clips cannot be kept in s3://clips/run") == 1 and "Traceback" not in log


def test_what_is_wrong_with_the_url_is_one_sentence_before_anything_starts(
    s3: ThreadedMotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint(url: str) -> str:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        with pytest.raises(UserError) as caught:
            PageConfig(clips_url=url).check()
        assert "\n" not in str(caught.value) and str(caught.value).startswith(f"--clips_url {url} ")
        return str(caught.value)

    PageConfig(clips_url="s3://clips/run").check()
    assert not fsspec.filesystem("s3", use_listings_cache=False).exists("clips/run")  # the test is cleared away
    assert "the bucket" in complaint("s3://no-such-bucket/run")
    assert not fsspec.filesystem("s3", use_listings_cache=False).exists("no-such-bucket")
    assert "no whole URL" in complaint("clips")
    assert "no whole URL" in complaint("file://clips")
    assert "nothing" in complaint("nothing://clips")
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in complaint((tmp_path / "file" / "below").as_uri())
    with monkeypatch.context() as changed, socket.create_server(("127.0.0.1", 0)) as closed:
        changed.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        closed.close()
        assert "check the address" in complaint("s3://clips/run")
    with monkeypatch.context() as changed:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            changed.delenv(name)
        changed.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        changed.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        changed.setenv("AWS_EC2_METADATA_DISABLED", "true")
        assert "Unable to locate credentials" in complaint("s3://clips/run")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for protocol in ("s3", "s3a"):  # which another test may have imported
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(OSError, match=r"s3://clips/run needs another package .* -m pip install .* s3fs`\.$"):
        SheetStore("s3://clips/run")


@pytest.mark.parametrize("url", ["s3://clips/run", ""])
def test_old_sheets_of_answered_pairs_are_deleted_and_drawn_again(
    url: str, tmp_path: Path, s3: ThreadedMotoServer
) -> None:
    db_path, place = make_store(tmp_path, 5), url or tmp_path / "clips"
    with closing(PrefDB.open(db_path)) as db, closing(Clips(db_path, place, keep=4)) as clips:
        for segment_id in db.segment_ids():
            clips.sheet(segment_id)
        queue, answered = LabelQueue(db), []
        for number in range(4):
            (lease,) = queue.claim("me")
            now = queue.clock()
            queue.answers.add(Submission(f"answer-{number}", lease.token, lease.comparison_id, "me", "left", now, now))
            answered.append((lease.left, lease.right))
        SheetStore(place).write("0" * 64, b"another run's")
        clips.tidy(4)
        kept = SheetStore(place).ids()
        assert {segment_id for pair in answered[:2] for segment_id in pair}.isdisjoint(kept)
        assert len(kept) == 4 + 2 + 1 and {*answered[2], *answered[3], "0" * 64} <= kept
        assert clips.sheet(answered[0][0]).frames == 25 and answered[0][0] in SheetStore(place).ids()


def test_the_last_of_a_disk_is_left_to_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db_path = make_store(tmp_path, 1)
    first, second = segment_ids(db_path)
    real = shutil.disk_usage(tmp_path)
    with closing(Clips(db_path, tmp_path / "clips", keep=10)) as clips:
        clips.sheet(first)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=100 * 2**20))
        assert clips.sheet(second).frames == 25 and "nearly full" in clips.trouble
        assert SheetStore(tmp_path / "clips").ids() == {first}
        monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=300 * 2**20))
        clips.sheet(second)
        assert SheetStore(tmp_path / "clips").ids() == {first, second} and not clips.trouble


def test_on_a_disk_that_is_nearly_full_the_clips_of_answered_pairs_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db_path = make_store(tmp_path, 3)
    with closing(PrefDB.open(db_path)) as db, closing(Clips(db_path, tmp_path / "clips", keep=10)) as clips:
        queue = LabelQueue(db)
        answered, shown, next_one = queue.claim("me", 3)
        queue.answers.add(Submission("a", answered.token, answered.comparison_id, "me", "left", 1.0, 2.0))
        for segment_id in (answered.left, answered.right, shown.left, shown.right):
            clips.sheet(segment_id)
        real = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=100 * 2**20))
        clips.sheet(next_one.left)
        assert SheetStore(tmp_path / "clips").ids() == {shown.left, shown.right} and "nearly full" in clips.trouble
        assert clips.sheet(answered.left).frames == 25, "drawn again"


def test_several_threads_may_ask_for_the_same_clip(tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 1)
    first, sheets = segment_ids(db_path)[0], []
    with closing(Clips(db_path, tmp_path / "clips", keep=10)) as clips:
        threads = [threading.Thread(target=lambda: sheets.append(clips.sheet(first))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(sheets) == 8 and all(sheet == sheets[0] for sheet in sheets)
