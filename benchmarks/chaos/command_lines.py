"""Fuzzed command lines: words left out, doubled, exchanged, and values that nobody expects.

Each has to end with status 0, or with 2 and a sentence (or the help of a flag), whatever was typed.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time

from a2c.config import PolicyConfig
from benchmarks.chaos.cases import Notes, all_ended
from benchmarks.chaos.commands import Command, Ended, called, complaint
from commands import COMMANDS, MODES
from commands.config import RunConfig
from commands.environments import lend_environments
from commands.flags import parse
from commands.report.command import ReportConfig
from commands.show_prefs import ShowPrefsConfig
from commands.watch import WatchConfig
from drlhp.cli import command_line
from drlhp.cli.exchange import ExportConfig, ImportConfig
from drlhp.cli.label import LabelConfig
from drlhp.label_server.config import PageConfig
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

LINES = 100  # of a case of the parser
RUN_SECONDS = 30.0  # before a run is stopped
FRESH = 25  # of so many lines of the real command, one has an interpreter of its own
ENVIRONMENTS = ("MovingDotNoFrameskip-v0", "CartPole-v1", "PongNoFrameskip-v4", "Hopper", "Nonsense-v7", "dot")
TINY = (
    *("--n_envs", "2", "--n_initial_prefs", "4", "--max_prefs", "6", "--max_segs", "8", "--n_initial_epochs", "1"),
    *("--eval_episodes", "1", "--million_timesteps", "0.0004", "--synthetic_prefs"),
)
PARTS = (RunConfig, PolicyConfig, PrefsConfig, PredictorConfig, PageConfig)
OTHERS = (LabelConfig, ReportConfig, WatchConfig, ShowPrefsConfig, ExportConfig, ImportConfig)
# A fuzzed line writes in its case's folder alone, serves nowhere but here, and asks nothing of other machines.
# `--debug` asks for tracebacks.
KEPT = ("web_host", "clips_url", "log_dir", "output", "video", "debug")
FLAGS = tuple(
    f"--{field.name}" for part in (*PARTS, *OTHERS) for field in dataclasses.fields(part) if field.name not in KEPT
)
VALUES = (
    *("", " ", "-", "--", "-1", "0", "1", "2", "3.5", "1e400", "-inf", "inf", "nan", "NaN", "1_000", "0x10", "1e-400"),
    *(str(2**31), str(2**63), str(2**64), "9" * 400, "True", "None", "null", "[]", "{}", "()", "a b", "é", "٣"),
    *(
        "\u202e",
        "\x07",
        "\n",
        "\udcff",
        "🦊" * 30,
        "x" * 5000,
        "%s%n",
        "$HOME",
        "~",
        "*",
        ".",
        "..",
        "a/b",
        "/dev/null",
    ),
    *("/dev/null/x", "/proc/self/mem", "nowhere", "no:where", "os:sep", "oracle", "random", "auto", "web", "terminal"),
    *(
        "=",
        "--seed=",
        "--seed=--seed",
        "-h",
        "--help",
        "--no_synchronous",
        "--no-synchronous",
        "--see",
        "@nowhere",
        "--",
        "a2c",
        "ppo",
    ),
)


def line(rng: random.Random, most: int = 4) -> list[str]:
    """Returns a line of a command, changed in one to four ways."""
    command = rng.choice((*MODES, *COMMANDS))
    if command in MODES:
        words = [command, rng.choice(ENVIRONMENTS), *TINY]
    elif command == "--resume":
        words = [command, "nowhere"]
    else:
        words = [
            command,
            rng.choice(("nowhere", ".")),
            *(("--output", "out") if command in ("export", "import") else ()),
        ]
    for _ in range(rng.randint(1, most)):
        change(words, rng)
    return words


def change(words: list[str], rng: random.Random) -> None:
    """Changes a command line in one way."""
    at = rng.randrange(len(words) + 1)
    match rng.randrange(6):
        case 0 | 1:
            words[at:at] = [rng.choice(FLAGS), rng.choice(VALUES)]
        case 2:
            words[at:at] = [rng.choice((rng.choice(FLAGS), rng.choice(VALUES)))]
        case 3:
            words[at : at + 1] = []
        case 4:
            words[at : at + 1] = [rng.choice(VALUES)]
        case 5:
            words[at:at] = words[:at][-2:]


def parser(number: int, notes: Notes) -> None:
    """Lets this process's parsers read a hundred lines; a mode's line is read and checked, and not carried out."""
    lend_environments()
    for words in (line(notes.rng) for _ in range(LINES)):
        notes.count("lines")
        read_only = words and words[0] in (*MODES, "--resume")
        if wrong := complaint(read_by_parser(words) if read_only else called(*words)):
            notes.found(words, wrong)


def read_by_parser(words: list[str]) -> Ended:
    """Reads the line of a mode as run.py does, and carries nothing out."""

    def read(arguments: list[str]) -> int:
        parse(arguments)
        return 0

    return called(*words, main=lambda arguments: command_line("run.py", arguments, read))


def real(number: int, notes: Notes) -> None:
    """Types one line at the real command; a run that its line starts is stopped after a while, like with Ctrl-C.

    One of 25 lines has an interpreter of its own; the others are in processes that have imported the program.
    """
    words = line(notes.rng, most=3)
    words = [word.replace("\0", "") for word in words]
    notes.count("lines")
    began, preloaded = time.monotonic(), number % FRESH > 0
    notes.count("lines to an interpreter of their own", int(not preloaded))
    command = Command(*words, cwd=notes.folder, preloaded=preloaded)
    allowed = [0, 130]
    if not command.wait(RUN_SECONDS):
        notes.count("commands stopped with SIGINT, as by Ctrl-C")
        command.process.send_signal(signal.SIGINT)
        # Python ends so while it imports the program, or leaves it, which takes so long on a busy machine.
        allowed.append(-signal.SIGINT)
    if wrong := complaint(command.ended(), *allowed):
        notes.found(words, f"{wrong} (after {time.monotonic() - began:.0f} s)")
    if left := all_ended():
        notes.found(words, f"processes left: {left}")
