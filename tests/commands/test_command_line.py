"""The command line answers at once, and says what is missing where nothing is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import run
from commands import COMMANDS, PLACES, USAGE
from tests.support import ROOT

# Packages that take from a tenth of a second to seconds to import.
HEAVY = {
    *("torch", "numpy", "gymnasium", "matplotlib", "ale_py", "cv2", "mujoco", "pyglet", "av", "PIL"),
    *("starlette", "uvicorn", "tensorboard", "rich", "fsspec", "scipy", "stable_baselines3"),
    "huggingface_hub",
}
# Runs run.py as `python run.py` does, and prints the packages that it has loaded.
LOADED = """
import runpy, sys
sys.argv = ["run.py", *sys.argv[1:]]
try:
    runpy.run_path("run.py", run_name="__main__")
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), ([], 2), (["reproduce"], 0), (["no-such-command"], 2)])
def test_what_is_answered_at_once_loads_nothing_heavy(words: list[str], status: int) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "commands" in loaded and not loaded & HEAVY
    if words != ["reproduce"]:
        assert "tyro" not in loaded


@pytest.mark.parametrize("words", [[], ["--help"], ["train_policy_with_preferences", "CartPole-v1"]])
def test_without_packages_one_sentence_says_how_to_set_up(words: list[str]) -> None:
    """`-S` leaves out the packages of this environment."""
    done = subprocess.run([sys.executable, "-S", "-E", "run.py", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("run.py: ") and "`make setup`" in sentence and ".venv/bin/python run.py" in sentence


def test_the_usage_names_every_command() -> None:
    for command in COMMANDS:
        assert f"\n  {command} " in USAGE, command


@pytest.mark.parametrize("command", sorted(PLACES))
def test_each_command_is_where_the_table_says(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([command, "--help"])
    assert ended.value.code == 0 and f"run.py {command}" in capsys.readouterr().out
