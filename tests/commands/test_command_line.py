"""The command line answers at once, and says what is missing where nothing is installed."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import run
from commands import COMMANDS, MODES, PLACES, USAGE
from commands.completion import SETTINGS
from commands.run_folder import git_revision
from drlhp import __version__, cli
from drlhp.cli import COMPLETION, completion
from tests.support import ROOT
from tests.support.commands import DOT, here, one_sentence

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


@pytest.mark.parametrize(
    ("words", "status"), [(["--help"], 0), ([], 2), (["--version"], 0), (["reproduce"], 0), (["no-such-command"], 2)]
)
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
    for command in (*COMMANDS, "--version", COMPLETION):
        assert f"\n  {command} " in USAGE, command


@pytest.mark.parametrize("command", sorted(PLACES))
def test_each_command_is_where_the_table_says(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([command, "--help"])
    assert ended.value.code == 0 and f"run.py {command}" in capsys.readouterr().out


TRAIN = "train_policy_with_preferences"
LACKING = [
    ((TRAIN,), "the positional argument ENV is missing", f"python run.py {TRAIN} MovingDotNoFrameskip-v0"),
    (("gather_initial_prefs", "--n_envs", "4"), "argument ENV is missing", "run.py gather_initial_prefs MovingDot"),
    (("--resume",), "--resume needs the folder of a run", "python run.py --resume runs/NAME"),
    (("watch", "--seed", "3"), "the positional argument RUN_OR_CHECKPOINT is missing", "python run.py watch runs/NAME"),
    (("show_prefs",), "the positional argument RUN is missing", "python run.py show_prefs runs/NAME"),
    (("report", "--output", "page"), "the positional argument RUN is missing", "python run.py report runs/NAME"),
    (("label",), "the positional argument RUN is missing", "python run.py label runs/NAME"),
    (("export", "--output", "labels"), "argument RUN is missing", "python run.py export runs/NAME --output labels"),
    (("export", "a"), "the flag --output is missing", "python run.py export runs/NAME --output labels"),
    (("import",), "argument DIR and the flag --output are missing; give them", "import labels --output runs/NAME"),
    (("restore", "a"), "the positional argument FROM is missing", "python run.py restore runs/NAME copy/prefs.db"),
    (("push", "a"), "the positional argument REPO is missing", "python run.py push runs/NAME USER/NAME"),
    (("load",), "the positional argument REPO is missing", "python run.py load USER/NAME"),
]


@pytest.mark.parametrize(("words", "names", "example"), LACKING)
def test_a_missing_argument_is_named_in_one_sentence_with_an_example(
    words: tuple[str, ...], names: str, example: str
) -> None:
    sentence = one_sentence(here(None, *words, status=2).stderr)
    assert names in sentence and re.search(f"as in `.*{re.escape(example)}", sentence)


def test_every_command_says_what_it_lacks() -> None:
    assert {words[0] for words, _, _ in LACKING} >= PLACES.keys() - {"reproduce"}, "which needs nothing"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("wacth", "a"), "watch"),
        (("train", DOT), TRAIN),
        (("gather_inital_prefs", DOT), "gather_initial_prefs"),
        (("reproduce", "pong-3k"), "pong-3.3k"),
        (("reproduce", "moving"), "moving-dot"),
    ],
)
def test_a_misspelt_name_gets_its_nearest_match(words: tuple[str, ...], meant: str) -> None:
    assert f"; did you mean {meant}?" in one_sentence(here(None, *words, status=2).stderr)


def test_a_name_that_resembles_none_gets_all_of_them() -> None:
    assert "; choose one of: train_policy_with_preferences, " in here(None, "qqq", status=2).stderr
    assert "; choose one of: moving-dot, " in here(None, "reproduce", "qqq", status=2).stderr


def test_both_programs_say_their_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(None, "--version").stdout == f"run.py {__version__}, commit {git_revision()}\n"
    assert cli.library_command(["--version"]) == 0 and capsys.readouterr().out == f"drlhp {__version__}\n"


def test_completion_knows_every_command_and_every_shell_of_it() -> None:
    assert set(SETTINGS) == {*MODES, "--resume", *PLACES} and set(completion.SETTINGS) == set(cli.PLACES)
    for words in ((COMPLETION,), (COMPLETION, "csh")):
        assert "bash, zsh, fish" in one_sentence(here(None, *words, status=2).stderr)
    assert "#compdef run.py" in here(None, COMPLETION, "zsh").stdout


class Shell:
    """A bash on a terminal of its own, in which a person types."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.type("PS1='$ '; bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; stty cols 200\n")

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def shows(self, *expected: str) -> bool:
        """Reads on until all of this has been shown; a test that waits too long is stopped."""
        shown = ""
        while not all(text in shown for text in expected):
            shown += os.read(self.terminal, 65536).decode()
        return True

    def close(self) -> None:
        os.close(self.terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


TAB, CLEAR = "\t", "\x15"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")  # the child becomes bash at once
def test_bash_completes_commands_flags_choices_and_files(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.bash").write_text(here(None, COMPLETION, "bash").stdout)
    assert cli.library_command([COMPLETION, "bash"]) == 0
    (tmp_path / "scripts" / "drlhp.bash").write_text(capsys.readouterr().out)
    (tmp_path / "runs" / "dot").mkdir(parents=True)
    shell.type("source scripts/run.bash; source scripts/drlhp.bash; echo read''y\n")
    assert shell.shows("ready")
    for typed, completed in (
        ("python run.py wat", "python run.py watch "),
        (".venv/bin/python run.py watch x --det", "--deterministic "),
        ("./run.py train_policy_with_p", "train_policy_with_preferences "),
        ("python run.py gather_initial_prefs X --obs", "--observation_key "),  # its description has two lines
        ("python run.py gather_initial_prefs X --device cu", "--device cuda "),
        ("python run.py --res", "--resume "),
        ("python run.py watch ru", "watch runs/"),
        ("python run.py export x --output ru", "--output runs/"),
        ("python ru", "python runs/"),  # other programs than this one: files, as before
        ("drlhp exp", "drlhp export "),
        ("drlhp label runs/dot --ui t", "--ui terminal "),
    ):
        shell.type(typed + TAB)
        assert shell.shows(completed), typed
        shell.type(CLEAR)
    shell.type("python run.py label x --ui w" + TAB + TAB)
    assert shell.shows("web", "window")
    shell.type(CLEAR + "python run.py watch runs/dot -" + TAB + TAB)
    assert shell.shows("--beside", "--episodes", "--output")
