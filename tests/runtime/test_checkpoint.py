"""Checkpoints are whole or absent, say what is wrong with them, and run no code."""

import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from drlhp.errors import told
from drlhp.runtime import checkpoint
from drlhp.runtime.checkpoint import CheckpointError
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.preloaded import run_captured

POLICY = {"kind": "policy", "env_id": "CartPole-v1"}


def save(folder: Path, step: int) -> Path:
    return checkpoint.save(folder, step, {**POLICY, "weights": {"w": torch.full((200, 50), float(step))}})


def refusal(path: Path, kind: str = "policy", env_id: str = "CartPole-v1") -> str:
    """What a user is told about a checkpoint: one sentence that names the file."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, kind=kind, env_id=env_id)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.endswith(".") and "\n" not in message
    return message


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    state = checkpoint.load(save(tmp_path / "new" / "policy", 7), kind="policy", env_id="CartPole-v1")
    assert state["step"] == 7
    assert torch.equal(state["weights"]["w"], torch.full((200, 50), 7.0))


def test_the_newest_three_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    for name in ("notes.txt", "step-best.pt"):
        (tmp_path / name).touch()
    for step in (5, 90, 1000, 20_000_000):
        save(tmp_path, step)
    steps = [torch.load(path, weights_only=True)["step"] for path in checkpoint.list_checkpoints(tmp_path)]
    assert steps == [90, 1000, 20_000_000]
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("step-0")} == {
        "notes.txt",
        "step-best.pt",
    }


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 3)
    checkpoint.save(tmp_path, 3, {**POLICY, "weights": "second"})
    (path,) = checkpoint.list_checkpoints(tmp_path)
    assert checkpoint.read(path)["weights"] == "second"


def test_a_write_that_fails_leaves_the_older_ones(tmp_path: Path) -> None:
    """A full disk, as a limit on the size of files: an OSError that says the fix, and no half-written file stays."""
    path = save(tmp_path, 1)
    script = """
        import resource, sys
        from pathlib import Path
        import torch
        from drlhp.runtime import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            checkpoint.save(Path(sys.argv[1]), 2, {"weights": torch.ones(100_000)})
        except OSError as error:
            sys.exit(str(error))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    told = run_captured(command, DEADLINE, cwd=ROOT).stderr.strip()
    assert told.startswith(f"{tmp_path / 'step-000000000002.pt'} could not be written (") and "\n" not in told
    assert told.endswith(": free some space on its disk, or allow to write in its folder.")
    assert list(tmp_path.iterdir()) == [path]
    assert checkpoint.load(path, kind="policy", env_id="CartPole-v1")["step"] == 1


def test_find_takes_a_file_its_folder_or_the_run_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old, new = save(run / "policy", 1), save(run / "policy", 2)
    assert checkpoint.find(old, "policy") == old
    assert checkpoint.find(run / "policy", "policy") == new
    assert checkpoint.find(run, "policy") == new
    with pytest.raises(CheckpointError, match=r"holds no checkpoint .*\.$"):
        checkpoint.find(run, "reward_predictor")
    with pytest.raises(CheckpointError, match=r"does not exist.*\.$"):
        checkpoint.find(tmp_path / "nowhere", "policy")


def test_another_kind_environment_or_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)
    assert "policy checkpoint" in refusal(path, kind="reward_predictor")
    assert "CartPole-v1" in refusal(path, env_id="PongNoFrameskip-v4")
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    newer = save(tmp_path, 2)
    monkeypatch.undo()
    assert "newer" in refusal(newer)


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").mkdir()  # permissions do not bind root
    with pytest.raises(IsADirectoryError) as caught:
        checkpoint.read(tmp_path / "step-1.pt")
    assert told(caught.value) == f"cannot use {tmp_path / 'step-1.pt'} (Is a directory): give another path."


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = save(tmp_path, 1).read_bytes()
    damaged = tmp_path / "step-2.pt"
    contents = [whole[: len(whole) * part // 10] for part in range(10)]
    contents += [b"\x80\x02a.", b"\x80\x02X", b"\x80\x02]}s."]  # pickles that take what is not there
    contents += [b"\0" * 500, b"not a checkpoint\n", whole[:40] + b"\xff" * 300 + whole[340:], bytes(range(256)) * 4]
    for content in contents:
        damaged.write_bytes(content)
        refusal(damaged)


@pytest.mark.parametrize(
    "content",
    [[1, 2], {"weights": 1}, {"format": 1}, {"format": "pt"}, {"format": 1, "kind": "policy"}, torch.ones(3)],
    ids=str,
)
def test_files_of_other_programs_are_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "step-1.pt"
    torch.save(content, path)
    refusal(path)


class CreatesFile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.path), "w"))


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "step-1.pt"
    torch.save({"format": 1, "step": 1, **POLICY, "weights": CreatesFile(mark)}, path)
    refusal(path)
    assert not mark.exists()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    checkpoint.fill(module, {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, tmp_path)
    assert module.weight.sum() == 6
    for weights in (nn.Linear(4, 2).state_dict(), {"weight": torch.ones(2, 3)}):
        with pytest.raises(CheckpointError, match="another network"):
            checkpoint.fill(module, weights, tmp_path)
