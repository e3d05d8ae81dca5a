"""A run is resumed with its own store and checkpoints alone, and with all answers that it has seen."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from commands.flags import parse
from commands.resumed import check_resumed
from commands.run_folder import read_run_id
from drlhp.runtime import checkpoint
from envs import env_info
from pref_db import PrefDB
from tests.support.commands import DOT, SYNC, TINY, UNEVALUATED, answers, here, refused

STEPS = env_info(DOT).segment_length
BRIEF = ("--million_timesteps", "0.0004", *UNEVALUATED)
LONGER = ("--million_timesteps", "0.0008", *UNEVALUATED)


pytestmark = pytest.mark.xdist_group("resumed")  # what they share is made once


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that differs from the finished one in its seed."""
    log_dir = tmp_path_factory.mktemp("runs")
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "b", "--seed", "2")
    here(log_dir, *words, *TINY, SYNC, *BRIEF)
    return log_dir / "b"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path / "a")


def of_another_environment(run: Path, other: Path) -> None:
    PrefDB.create(run / "prefs.db", "PongNoFrameskip-v4", STEPS, read_run_id(run)).close()


def of_other_clips(run: Path, other: Path) -> None:
    PrefDB.create(run / "prefs.db", DOT, STEPS + 1, read_run_id(run)).close()


def without_its_log_of_writes(run: Path, other: Path) -> None:
    """As a killed run left the file, if the log of writes held all answers."""
    PrefDB.create(run / "prefs.db", DOT, STEPS, read_run_id(run)).close()


@pytest.mark.parametrize(
    ("replace", "expected"),
    [
        (lambda run, other: None, "is missing, and with it the labels"),
        (lambda run, other: shutil.copy(other / "prefs.db", run), "is the store of another run"),
        (of_another_environment, "holds PongNoFrameskip-v4 clips"),
        (of_other_clips, f"clips of {STEPS + 1} steps, not {DOT} clips of {STEPS} steps"),
        (without_its_log_of_writes, "has lost answers"),
    ],
)
def test_another_store_than_the_runs_own_is_refused(
    other: Path, run: Path, replace: Callable[[Path, Path], object], expected: str
) -> None:
    (run / "prefs.db").unlink()
    replace(run, other)
    assert expected in refused(run.parent, "--resume", str(run), *LONGER)
    if "lost" in expected:  # the numbers in progress.csv tell it too
        shutil.rmtree(run / "reward_predictor")
        assert expected in refused(run.parent, "--resume", str(run))


@pytest.mark.parametrize("part", ["policy", "reward_predictor"])
def test_checkpoints_of_another_run_are_refused(other: Path, run: Path, part: str) -> None:
    shutil.rmtree(run / part)
    shutil.copytree(other / part, run / part)
    assert "was written by another run" in refused(run.parent, "--resume", str(run))


def test_a_run_goes_on_with_its_own_store_wherever_it_lies(run: Path) -> None:
    before = answers(run)
    here(None, "--resume", str(run), *LONGER, "--max_prefs", "22")
    assert answers(run)[: len(before)] == before and len(answers(run)) == 22


def change(part: str, name: str, value: object) -> Callable[[Path], None]:
    """Changes an entry of the newest checkpoint of a part, or removes it."""

    def changed(run: Path) -> None:
        path = checkpoint.find(run, part)
        state = torch.load(path, weights_only=True)
        if value is None:
            del state[name]
        else:
            state[name] = value
        torch.save(state, path)

    return changed


def not_finite(part: str) -> Callable[[Path], None]:
    """Makes a number of the newest weights NaN."""

    def changed(run: Path) -> None:
        path = checkpoint.find(run, part)
        state = torch.load(path, weights_only=True)
        next(values for values in state["weights"].values() if values.is_floating_point()).view(-1)[0] = math.nan
        torch.save(state, path)

    return changed


def of_another_network(part: str) -> Callable[[Path], None]:
    """Gives an average of the newest optimiser another shape than that of its weights."""

    def changed(run: Path) -> None:
        path = checkpoint.find(run, part)
        state = torch.load(path, weights_only=True)
        averages = next(iter(state["optimizer"]["state"].values()))
        name = next(name for name in averages if name != "step")
        averages[name] = torch.zeros(3, 3)
        torch.save(state, path)

    return changed


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (of_another_network("policy"), "does not fit the weights"),
        (of_another_network("reward_predictor"), "does not fit the weights"),
        (change("policy", "weights", None), "no weights in it"),
        (change("policy", "network", None), "no network in it"),
        (change("policy", "optimizer", {}), "is damaged"),
        (change("policy", "algo", "dqn"), "an algorithm dqn"),
        (change("policy", "step", "many"), "no step in it"),
        (not_finite("policy"), "weights that are not finite"),
        (change("reward_predictor", "config", None), "no config in it"),
        (change("reward_predictor", "config", {"batchnorm": "False"}), "batchnorm must be True or False"),
        (change("reward_predictor", "step", -1), "no step in it"),
        (not_finite("reward_predictor"), "weights that are not finite"),
        (lambda run: (run / "progress.csv").write_text("a,b\n"), "progress.csv is damaged; move it away"),
        (lambda run: (run / "evaluations.csv").write_text("a,b\n"), "evaluations.csv is damaged; move it away"),
    ],
)
def test_damage_is_found_before_a_run_goes_on(run: Path, damage: Callable[[Path], object], expected: str) -> None:
    damage(run)
    before = (run / "log.txt").read_bytes()
    assert expected in refused(run.parent, "--resume", str(run))
    assert (run / "log.txt").read_bytes() == before


def test_each_checkpoint_is_read_once_before_a_run_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, places = checkpoint.read, list[Path]()

    def noted(path: Path) -> dict[str, object]:
        places.append(path)
        return read(path)

    monkeypatch.setattr(checkpoint, "read", noted)
    check_resumed(parse(["--resume", str(run)]))
    assert [place.parent.name for place in places] == ["policy", "reward_predictor"]


def test_a_policy_that_cannot_be_watched_cannot_be_resumed(run: Path) -> None:
    not_finite("policy")(run)
    path = checkpoint.find(run, "policy")
    for words in (("watch", str(run), "--episodes", "1"), ("--resume", str(run))):
        assert f"{path} holds weights that are not finite" in refused(run.parent, *words)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("(run / 'prefs.db').unlink()", "was removed or replaced while answers were stored in it"),
        ("run.rename(run.with_name('elsewhere'))", "was removed or renamed"),
        ("shutil.rmtree(run)", "was removed or renamed"),
    ],
)
def test_a_run_whose_store_or_folder_goes_away_stops_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, expected: str
) -> None:
    run = tmp_path / "a"
    text = f"import shutil\nfrom pathlib import Path\nrun, asked = Path({str(run)!r}), []\n"
    text += (
        f"def judge(segment):\n    asked.append(1)\n    if len(asked) == 40: {loss}\n    return segment.rewards.sum()\n"
    )
    module = f"teacher_{abs(hash(loss))}"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("train_policy_with_preferences", DOT, "--teacher", f"{module}:judge", "--run_name", "a")
    assert expected in refused(tmp_path, *words, *TINY, SYNC, *BRIEF, status=1)
    if "unlink" in loss:
        (saved,) = run.glob("prefs-saved-*.db")
        with closing(PrefDB.open(saved, read_only=True)) as db:
            assert db.n_labels() >= 12
    else:
        assert not run.exists(), "nothing is made in its place"
