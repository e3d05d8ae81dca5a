"""The library works by itself, however it is installed, beside whatever modules its user has."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pref_db import PrefDB
from tests.support import ROOT
from tests.support.labelling import ENV_ID, STEPS, segment
from tests.support.preloaded import run_captured

# A user's script, beside modules of their own whose names are those of the clone's.
SCRIPT = """
import config, envs, networks, run, web
import gymnasium, drlhp, pathlib, time
from drlhp import HumanPreferencesEnvWrapper

if __name__ == "__main__":
    assert config.MINE and envs.MINE and networks.MINE and run.MINE and web.MINE
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"), n_initial_prefs=6, n_initial_training_steps=3, segment_length=10,
        max_pref_interface_segs=5,
    )
    env.reset(seed=0)
    while not env.using_reward_from_predictor:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
        time.sleep(0.002)  # the trainer wants the processor, too
    env.close()
    print(pathlib.Path(drlhp.__file__).parent)
"""
# The page's server, which is a module that is run by its name.
PAGE = """
import sys, urllib.request, pathlib
from drlhp.label_server import launch, listen, prepare, stop
from pref_db import PrefDB

run = pathlib.Path("page"); run.mkdir()
PrefDB.create(run / "prefs.db", "CartPole-v1", 10).close()
with listen(port=0) as sock:
    address, _ = prepare(run, sock)
    server = launch(run / "prefs.db", run, sock)
    page = urllib.request.urlopen(f"http://{address.host}:{address.port}/", timeout=200).read()
    stop(server)
assert b"<html" in page, page
"""


pytestmark = pytest.mark.xdist_group("install")  # what they share is made once

Words = Sequence[str | Path]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# Nothing is fetched: what builds the package and what it needs is in the environment of these tests.
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index")
MODULES = {"pref_db.py", "pref_interface.py", "reward_predictor.py"}


def without_python_path() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def carried_out(words: Words, cwd: Path | None = None, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Returns what a command printed, after a check of its exit status; no `PYTHONPATH` helps it."""
    done = subprocess.run(words, cwd=cwd, env=without_python_path(), capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@dataclass(frozen=True)
class Environment:
    """A new virtual environment, which has the other packages of this one beside its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Environment:
        carried_out([sys.executable, "-m", "venv", "--without-pip", folder])
        made = cls(folder)
        (made.packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def install(self, *what: str | Path) -> Environment:
        carried_out([*PIP, "--python", self.python, "install", *OFFLINE, *what])
        return self

    def installed(self) -> set[str]:
        """Returns the top-level names that belong to the package here."""
        code = "from importlib.metadata import files; print(*(path for path in files('drlhp')))"
        paths = carried_out([self.python, "-c", code], cwd=self.folder).stdout.split()
        tops = {path.split("/")[0] for path in paths if not path.startswith("..")}
        return {top for top in tops if not top.endswith(".dist-info") and top != "__pycache__"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the clone, which the building of packages may write into, as a repository of its own."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "runs", "results")
    folder = shutil.copytree(ROOT, tmp_path_factory.mktemp("clone") / "source", ignore=ignored)
    git = ("git", "-C", folder, "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "All of it")):
        carried_out([*git, *words])
    return folder


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    code = "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"
    return source / carried_out([sys.executable, "-c", code], cwd=source).stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the source distribution, as pip does where there is no wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    carried_out([*PIP, "wheel", *OFFLINE, "-w", folder, sdist])
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def regular(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.make(tmp_path_factory.mktemp("regular") / "venv").install(wheel)


@pytest.fixture(scope="module")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.make(tmp_path_factory.mktemp("editable") / "venv").install("-e", f"{source}[dev]")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder of somebody's own modules, whose names are those of the clone's."""
    folder = tmp_path / "user"
    (folder / "envs").mkdir(parents=True)
    for name in ("envs/__init__.py", "config.py", "networks.py", "run.py", "web.py"):
        (folder / name).write_text("MINE = True\n")
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"drlhp", *MODULES}
    assert {"drlhp/label_server/static/index.html", "drlhp/py.typed"} <= set(names)


@pytest.mark.slow
def test_the_source_distribution_has_what_its_tests_need(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert not (folder / "results").exists()
    two_files = ("-k", "test_floors or test_run_files")  # of all that are collected
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain", *two_files]
    done = run_captured(words, 240, cwd=folder, env=without_python_path())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed, .*\b\d+ deselected in", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", ["folder", "git"])
def test_a_clone_can_be_installed_by_its_path_and_by_its_address(form: str, source: Path, tmp_path: Path) -> None:
    environment = Environment.make(tmp_path / "venv")
    environment.install(source if form == "folder" else f"git+file://{source}")
    assert environment.installed() == {"drlhp", *MODULES}
    code = "import drlhp, importlib.metadata as m; print(drlhp.__file__, m.version('drlhp') == drlhp.__version__)"
    printed = carried_out([environment.python, "-c", code], cwd=tmp_path).stdout.split()
    assert printed == [str(environment.packages / "drlhp" / "__init__.py"), "True"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["regular", "editable"])
def test_a_wrapped_environment_beside_modules_of_the_same_names(
    form: str, source: Path, user: Path, request: pytest.FixtureRequest
) -> None:
    environment: Environment = request.getfixturevalue(form)
    (user / "script.py").write_text(SCRIPT)
    printed = carried_out([environment.python, "script.py"], cwd=user).stdout.strip()
    assert Path(printed) == (environment.packages if form == "regular" else source) / "drlhp"
    (user / "script.py").write_text(PAGE)
    carried_out([environment.python, "script.py"], cwd=user)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["regular", "editable"])
def test_the_program_serves_stores_without_the_clone(form: str, user: Path, request: pytest.FixtureRequest) -> None:
    environment: Environment = request.getfixturevalue(form)
    drlhp = environment.folder / "bin" / "drlhp"
    with contextlib.closing(PrefDB.create(user / "prefs.db", ENV_ID, STEPS)) as db:
        db.add_segments([segment(seed) for seed in range(3)])

    assert carried_out([drlhp, "--help"], cwd=user).stdout.startswith("usage: drlhp COMMAND")
    assert "usage: drlhp label" in carried_out([drlhp, "label", "--help"], cwd=user).stdout
    labelled = carried_out([drlhp, "label", ".", "--teacher", "oracle"], cwd=user).stdout
    assert "3 labels in prefs.db, 3 more than at the start." in labelled
    carried_out([drlhp, "export", ".", "--output", "out"], cwd=user)
    imported = carried_out([drlhp, "import", "out", "--output", "new"], cwd=user).stdout
    assert "3 labels in new/prefs.db." in imported

    (sentence,) = carried_out([drlhp, "label", "nowhere"], cwd=user, status=2).stderr.splitlines()
    assert sentence.startswith("drlhp: ") and "nowhere" in sentence
    (sentence,) = carried_out([drlhp, "lable", "."], cwd=user, status=2).stderr.splitlines()
    assert sentence == "drlhp: there is no command 'lable'; did you mean label?"


def test_all_names_can_be_imported_without_stable_baselines3() -> None:
    script = "import sys; sys.modules['stable_baselines3'] = None; from drlhp import *; HumanPreferencesEnvWrapper"
    done = run_captured([sys.executable, "-c", script], 240, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_library_needs_what_the_clone_pins_and_its_developers_need_all_of_that() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = tomllib.loads((ROOT / "Pipfile").read_text())
    needs, develops = (
        {re.split(r"[>\[]", need)[0] for need in group}
        for group in (project["dependencies"], project["optional-dependencies"]["dev"])
    )
    assert needs <= set(pinned["packages"])
    assert needs | develops == set(pinned["packages"]) | set(pinned["dev-packages"])
