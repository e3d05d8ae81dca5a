"""The original project's files come in as they were labelled; a hostile one runs nothing and takes little memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import pickletools
import shutil
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.environments import lend_environments
from drlhp.cli.exchange import import_command
from drlhp.cli.legacy_store import segment_of
from drlhp.cli.program import Program, set_program
from drlhp.data.comparison import Comparison
from drlhp.errors import UserError
from envs import env_info
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import DOT, PONG, SYNC, here

DATA = ROOT / "tests" / "data"
EVERY_CHOICE = [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)]


@pytest.fixture(autouse=True)
def environments() -> None:
    """Lets `import` know the environments, as run.py does before its commands."""
    lend_environments()


class FakePrefDB:
    """Pickled under the name of the original's class, with its attributes."""

    def __init__(self, maxlen: int) -> None:
        self.segments: Any = {}
        self.seg_refs: dict[int, int] = {}
        self.prefs: list[tuple[int, int, Any]] = []
        self.maxlen = maxlen


class FakeCompressedDict:
    """Pickled under the name of the original's class, with its attribute."""

    def __init__(self, values: dict[int, Any], protocol: int = 3) -> None:
        self.store = {key: zlib.compress(pickle.dumps(value, protocol)) for key, value in values.items()}


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The original's module with its two classes, for the pickler to name."""
    module: Any = types.ModuleType("pref_db")
    module.PrefDB = type("PrefDB", (FakePrefDB,), {"__module__": "pref_db"})
    module.CompressedDict = type("CompressedDict", (FakeCompressedDict,), {"__module__": "pref_db"})
    monkeypatch.setitem(sys.modules, "pref_db", module)
    return module


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder as the original's run leaves it, with real labels of the moving dot."""
    folder = tmp_path / "real"
    folder.mkdir()
    for name in ("train.pkl.gz", "val.pkl.gz"):
        shutil.copy(DATA / f"original-movingdot-{name}", folder / name)
    return folder


def write(path: Path, stored: Any, protocol: int = 3) -> None:
    with gzip.open(path, "wb") as file:
        pickle.dump(stored, file, protocol=protocol)


def imported(folder: Path, env_id: str = PONG) -> PrefDB:
    """Imports a folder; returns its store, for the caller to close."""
    import_command([str(folder), "--output", str(folder / "new"), "--env_id", env_id])
    return PrefDB.open(folder / "new" / "prefs.db", read_only=True)


def refusal(folder: Path) -> str:
    """Returns the sentence that an import is refused with, after which nothing is left."""
    with pytest.raises(UserError) as caught:
        imported(folder)
    assert not (folder / "new").exists()
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def test_real_files_are_imported_with_every_label_frame_and_action(real: Path, original: Any) -> None:
    with contextlib.closing(imported(real, DOT)) as db:
        labels = db.labels()
        assert (db.env_id, db.segment_length, len(db.segment_ids())) == (DOT, 25, 15)
        stored = [(db.segment(label.a), db.segment(label.b)) for label in labels]
    assert [label.mu for label in labels] == EVERY_CHOICE
    pairs = []
    for name in ("train.pkl.gz", "val.pkl.gz"):
        kept = pickle.loads(gzip.decompress((real / name).read_bytes()))
        clips = {key: np.stack(pickle.loads(zlib.decompress(value))) for key, value in kept.segments.store.items()}
        pairs += [(clips[first], clips[second]) for first, second, _ in kept.prefs]
    for segments, kept_pair in zip(stored, pairs, strict=True):
        for segment, clip in zip(segments, kept_pair, strict=True):
            shown = segment.stacked().copy()
            assert np.array_equal(segment.actions, clip[:, 0, 0, 3])  # the original draws the action there
            shown[:, 3, 0, 0] = segment.actions
            assert np.array_equal(shown, clip.transpose(0, 3, 1, 2))
            assert not segment.rewards.any() and segment.fps == env_info(DOT).fps


def test_actions_of_real_files_move_the_dot_as_they_do_here(real: Path) -> None:
    moves: dict[str, list[tuple[float, float]]] = {name: [] for name in env_info(DOT).action_names}
    with contextlib.closing(imported(real, DOT)) as db:
        for segment in db.segments():
            frames = segment.stacked()[:, -1].astype(float)
            place = np.stack([frames.sum(1) @ np.arange(84), frames.sum(2) @ np.arange(84)]) / frames.sum((1, 2))
            for action, (x, y) in zip(segment.actions[:-1], np.diff(place).T, strict=True):
                moves[list(moves)[action]].append((x, y))
    signs = {name: tuple(np.sign(np.median(np.round(taken, 1), axis=0)).tolist()) for name, taken in moves.items()}
    assert signs == {"NOOP": (0, 0), "DOWN": (0, 1), "RIGHT": (1, 0), "UP": (0, -1), "LEFT": (-1, 0)}


def test_a_predictor_is_trained_on_real_files(real: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    printed = here(None, "import", str(real), "--output", str(new), "--env_id", DOT).stdout
    assert printed == f"8 labels in {new / 'prefs.db'}. Train on them with --load_prefs_dir {new}\n"
    words = ("--load_prefs_dir", str(new), "--clip_steps", "25", "--n_initial_epochs", "2", "--run_name", "run", SYNC)
    assert "8 labels loaded" in here(tmp_path, "pretrain_reward_predictor", DOT, *words).stdout
    assert list((tmp_path / "run" / "reward_predictor").glob("step-*.pt"))


def test_the_program_that_knows_no_environment_imports_them_too(real: Path) -> None:
    set_program(Program())
    with contextlib.closing(imported(real, "anything-v0")) as db:
        assert db.n_labels() == 8 and next(db.segments()).fps == 15.0


def stacked(seed: int, steps: int = 25) -> np.ndarray:
    """(T, 84, 84, 4), each the newest four of T + 3 frames."""
    frames = np.random.default_rng(seed).integers(0, 256, (steps + 3, 84, 84), dtype=np.uint8)
    return np.stack([frames[t : t + 4].transpose(1, 2, 0) for t in range(steps)])


@pytest.mark.parametrize("compressed", [False, True])  # the older form, and what the original writes today
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])  # 3 is what the original writes
def test_the_originals_pickles_are_imported(tmp_path: Path, original: Any, protocol: int, compressed: bool) -> None:
    train, val = original.PrefDB(10), original.PrefDB(10)
    train.segments = {key: list(stacked(key, 5)) for key in range(4)}  # a list of frames, as the original keeps them
    train.prefs = [(0, 1, (1.0, 0.0)), (1, 2, (0.0, 1.0)), (3, 3, (1.0, 0.0))]
    val.segments = {7: stacked(7, 5), 8: stacked(8, 5)}
    val.prefs = [(8, 7, (0.5, 0.5))]
    for name, stored in (("train.pkl.gz", train), ("val.pkl.gz", val)):
        if compressed:
            stored.segments = original.CompressedDict(stored.segments, protocol)
        write(tmp_path / name, stored, protocol)
    with contextlib.closing(imported(tmp_path)) as db:
        labels = db.labels()
        assert [label.mu for label in labels] == [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
        assert (db.env_id, db.segment_length, len(db.segment_ids())) == (PONG, 5, 5)
        for label, key in zip(labels, (0, 1, 8), strict=True):
            np.testing.assert_array_equal(db.segment(label.a).stacked(), stacked(key, 5).transpose(0, 3, 1, 2))
        assert db.segment(labels[2].a).fps == 15.0 and not db.segment(labels[0].a).actions.any()


def test_the_environment_has_to_be_named_and_to_show_pictures(real: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add --env_id"):
        import_command([str(real), "--output", str(tmp_path / "new")])
    with pytest.raises(UserError, match="holds pictures, and CartPole-v1 shows none"):
        import_command([str(real), "--output", str(tmp_path / "new"), "--env_id", "CartPole-v1"])
    assert not (tmp_path / "new").exists()


def test_a_clip_that_the_original_filled_up_stays_as_it_was_labelled() -> None:
    """The last observation of an episode is repeated, so that each clip has as many."""
    clip = stacked(1)
    clip[20:] = clip[19]
    segment = segment_of(clip, PONG, 15.0)
    np.testing.assert_array_equal(segment.stacked(), clip.transpose(0, 3, 1, 2))
    whole = segment_of(stacked(1), PONG, 15.0)
    assert (whole.stack, whole.observations.shape) == (4, (28, 84, 84))
    dot, actions = stacked(1), np.arange(25) % 5
    dot[:, 0, 0, 3] = actions
    dot[20:] = dot[19]
    filled = segment_of(dot, DOT, 15.0)
    np.testing.assert_array_equal(filled.actions, [*actions[:20], *[actions[19]] * 5])
    np.testing.assert_array_equal(filled.stacked()[:19], stacked(1).transpose(0, 3, 1, 2)[:19])


class Hostile:
    """Runs a command when it is loaded by an ordinary unpickler."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


HOSTILE = [
    Hostile(os.system, "touch hacked"),
    Hostile(eval, "open('hacked', 'w')"),
    Hostile(getattr, "", "join"),
    Hostile(np.load, "x"),
    Hostile(np.ndarray, (10**12,)),
    Hostile(np.dtype, "O"),
    np.array([{}, None], dtype=object),
    {"not": "a store"},
    Comparison,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_pickles_are_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(pickletools.genops(pickle.dumps(hostile)))
    for name in ("train.pkl.gz", "val.pkl.gz"):
        write(tmp_path / name, hostile)
    message = refusal(tmp_path)
    assert "is no store of labels (" in message and "; nothing was imported" in message
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "clip",
    [
        *(HOSTILE[0], HOSTILE[4], [HOSTILE[0]], [], [1], "text", np.zeros((25, 84, 84), np.uint8)),
        *(np.zeros((25, 84, 84, 4), np.float32), np.zeros((25, 0, 0, 4), np.uint8), np.zeros((0, 84, 84, 4), np.uint8)),
        [np.zeros((84, 84, 4), np.uint8)] * 4000,  # one array, which is written once and unpacks to 113 MB
    ],
)
def test_hostile_clips_are_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: Any, clip: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = original.PrefDB(10)
    stored.segments = original.CompressedDict({1: clip, 2: stacked(2)})
    stored.prefs = [(1, 2, (1.0, 0.0))]
    write(tmp_path / "train.pkl.gz", stored)
    assert "train.pkl.gz is no store of labels (" in refusal(tmp_path)
    assert not (tmp_path / "hacked").exists()


def test_labels_that_do_not_fit_are_refused(tmp_path: Path, original: Any) -> None:
    stored = original.PrefDB(10)
    stored.segments = original.CompressedDict({1: stacked(1), 2: stacked(2)})
    for label in ((1, 3, (1.0, 0.0)), (1, 2, (0.9, 0.1)), (1, 2, (float("nan"), 0.0))):
        stored.prefs = [label]
        write(tmp_path / "train.pkl.gz", stored)
        assert "a label that names no answer, or a segment that is not there" in refusal(tmp_path)
    stored.prefs = []
    write(tmp_path / "train.pkl.gz", stored)
    assert "holds no labels" in refusal(tmp_path)


def test_an_action_that_the_environment_does_not_have_is_refused(tmp_path: Path, original: Any) -> None:
    stored, clip = original.PrefDB(10), stacked(1)
    clip[:, 0, 0, 3] = 6  # Pong has six actions
    stored.segments, stored.prefs = original.CompressedDict({1: clip, 2: stacked(2)}), [(1, 2, (1.0, 0.0))]
    write(tmp_path / "train.pkl.gz", stored)
    assert f"it holds the action 6, which {PONG} does not have" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no gzip"])
def test_what_is_no_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.pkl.gz").write_bytes(content)
    assert "is no store of labels" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80", 2**26])
def test_what_is_no_pickle_is_refused(tmp_path: Path, content: bytes | int) -> None:
    """A number is one of zeros, which are made here: else each process that collects tests would compress them."""
    (tmp_path / "train.pkl.gz").write_bytes(gzip.compress(bytes(content), 1))
    assert "is no store of labels" in refusal(tmp_path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.pkl.gz")
    assert "train.pkl.gz is no regular file" in refusal(tmp_path)


def test_a_pickle_gets_no_more_memory_than_a_store_of_labels_needs(tmp_path: Path) -> None:
    """The limit is the system's, on the process that reads it."""
    value = b"B" + (2**26).to_bytes(4, "little") + bytes(2**26)
    packer, packed = zlib.compressobj(1, wbits=31), io.BytesIO()
    for data in (b"\x80\x03", *[value] * 8, b"."):
        packed.write(packer.compress(data))
    (tmp_path / "train.pkl.gz").write_bytes(packed.getvalue() + packer.flush())
    program = (
        "import sys; from drlhp.cli import legacy_store; legacy_store.MAX_MEMORY = 2**29;"
        "sys.exit(legacy_store.main(*sys.argv[1:]))"
    )
    facts = '{"env_id": "x", "fps": 15, "n_actions": null}'
    words = [sys.executable, "-c", program, facts, str(tmp_path), str(tmp_path / "train.pkl.gz")]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.endswith(
        "needs more memory than a store of labels; nothing was imported.\n"
    )
