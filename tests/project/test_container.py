"""The recipe of the image agrees with the Makefile, the Pipfile and the code, and what it copies is enough to run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
import yaml

from commands.flags import parse
from drlhp.cli.arguments import read_arguments
from drlhp.cli.label import LabelConfig
from drlhp.label_server import DEFAULT_PORT
from tests.support import ROOT
from tests.support.commands import DEADLINE, DOT, TINY, UNEVALUATED, environment
from tests.support.preloaded import run_captured

RECIPE = (ROOT / "Dockerfile").read_text()
PIPFILE = tomllib.loads((ROOT / "Pipfile").read_text())
KNOWN = {"FROM", "ARG", "ENV", "RUN", "COPY", "WORKDIR", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}


def instructions() -> Iterator[tuple[str, str]]:
    """Each instruction of the recipe with its words, on one line."""
    lines = [line for line in RECIPE.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line:
            name, _, words = line.partition(" ")
            yield name, words


@cache
def ignored() -> list[str]:
    """The lines of .dockerignore without its comments."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def words_of(name: str) -> list[str]:
    return [words for instruction, words in instructions() if instruction == name]


def is_copied(path: PurePosixPath) -> bool:
    """Whether .dockerignore lets a file into the image: the last of its lines that fits the file, or a folder of it."""
    copied = True
    for line in ignored():
        pattern = line.removeprefix("!")
        if any(place.match(pattern.removeprefix("**/")) for place in (path, *path.parents) if fits(pattern, place)):
            copied = line.startswith("!")
    return copied


def fits(pattern: str, place: PurePosixPath) -> bool:
    """Whether the pattern may mean this place: without `**/` it begins at the root."""
    return pattern.startswith("**/") or len(PurePosixPath(pattern).parts) == len(place.parts)


def requirements(*names: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, ".ci/requirements.py", *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status
    return done.stdout + done.stderr


def test_the_recipe_is_made_of_known_instructions_and_shell_that_can_be_read() -> None:
    names = [name for name, _ in instructions()]
    assert set(names) <= KNOWN and names[:2] == ["ARG", "FROM"]
    for line in words_of("RUN"):
        subprocess.run(["sh", "-n", "-c", line], check=True)
    python = dict(words.split("=") for words in words_of("ARG"))["PYTHON"]
    assert (3, 11) <= tuple(map(int, python.split("."))) < (3, 15)


def test_the_image_runs_the_program_as_a_user_and_shows_the_pages_port() -> None:
    order = list(instructions())
    assert order.index(("USER", "drlhp")) < order.index(("ENTRYPOINT", '["python", "run.py"]'))
    assert not any(name in ("RUN", "COPY") for name, _ in order[order.index(("USER", "drlhp")) :])
    assert words_of("EXPOSE") == [f"{DEFAULT_PORT}"]


def test_its_system_packages_are_those_of_the_makefile() -> None:
    named = subprocess.run(["make", "--silent", "test-packages"], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = (line for line in words_of("RUN") if "apt-get install" in line)
    installed = shlex.split(line.split("apt-get install")[1].split("&&")[0])
    packages = {word for word in installed if not word.startswith("--")}
    assert packages and packages <= set(named.stdout.split())


def test_its_python_packages_are_those_of_the_pipfile_at_their_versions() -> None:
    (extras,) = (words.split("=")[1] for words in words_of("ARG") if words.startswith("EXTRAS"))
    wanted = {f"{name}{version}" for name, version in PIPFILE["packages"].items()}
    assert set(requirements(*extras.split()).split()) - wanted == {
        f"{name}{PIPFILE['dev-packages'][name]}" for name in extras.split()
    }
    assert set(requirements().split()) == wanted
    assert "moto[s3]==" in requirements("moto")
    assert "there-is-none is none of the Pipfile's" in requirements("there-is-none", status=1)


def test_every_file_that_it_copies_by_name_is_there_and_none_is_kept_out() -> None:
    for line in words_of("COPY"):
        *sources, _ = line.split()
        for source in sources:
            assert source == "." or ((ROOT / source).is_file() and is_copied(PurePosixPath(source))), source
    for line in ignored():
        assert not line.startswith("!") or (ROOT / line[1:]).exists(), line


@pytest.mark.parametrize(
    "path", ["runs/a/prefs.db", ".git/config", ".venv/bin/python", ".env", "a2c/__pycache__/a.pyc"]
)
def test_nothing_private_and_nothing_made_here_goes_into_the_image(path: str) -> None:
    assert not is_copied(PurePosixPath(path))


def test_what_it_copies_is_enough_to_train(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(lambda name: is_copied(PurePosixPath(name)), listed.stdout.splitlines()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "runs").mkdir()
    entry = [sys.executable, "run.py", "train_policy_with_preferences", DOT, "--synthetic_prefs", "--synchronous"]
    words = [*entry, *TINY, *UNEVALUATED, "--million_timesteps", "0.0005", "--run_name", "dot"]
    variables = environment(MUJOCO_GL=dict(part.split("=") for part in words_of("ENV")[0].split())["MUJOCO_GL"])
    variables.pop("PYTHONPATH", None)
    done = run_captured(words, DEADLINE, cwd=tmp_path, env=variables)
    assert done.returncode == 0 and "Finished." in done.stdout, done.stderr
    assert (tmp_path / "runs" / "dot" / "curves.png").is_file() and not (tmp_path / "tests").exists()
    assert os.access(tmp_path / "LICENSE", os.R_OK)


@pytest.mark.usefixtures("s3")  # which the commands look for at once
def test_the_services_of_the_compose_file_have_commands_that_run() -> None:
    """Also what `docker-compose config` says of the file, where it is installed."""
    file = ROOT / "examples" / "compose.yaml"
    services = yaml.safe_load(file.read_text())["services"]
    config = parse(shlex.split(services["learner"]["command"]))
    command, *words = shlex.split(services["page"]["command"])
    page = read_arguments(LabelConfig, command, words, needs={"run": "RUN"}, example="RUN")
    assert config.store == page.store and config.page.clips_url == page.page.clips_url
    assert {f"127.0.0.1:{port}:{port}" for port in (DEFAULT_PORT, page.page.web_port)} == {
        services[name]["ports"][0] for name in ("learner", "page")
    }
    extras = services["page"]["build"]["args"]["EXTRAS"].split()
    assert set(extras) <= PIPFILE["dev-packages"].keys()
    if program := shutil.which("docker-compose"):
        words = [program, "-f", str(file), "config", "--quiet"]
        told = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
        assert told.returncode and "set it to a password of your own" in told.stderr
        variables = {**os.environ, "LABELS_PASSWORD": "a", "CLIPS_PASSWORD": "b"}
        told = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, env=variables)
        assert (told.returncode, told.stderr) == (0, "")
