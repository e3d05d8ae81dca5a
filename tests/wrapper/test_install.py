"""What `pip install .` installs works by itself, beside whatever folders its user has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

from tests.support import ROOT

# A user's script, beside folders of their own whose names are those of ours.
SCRIPT = """
import envs, networks, run
import gymnasium, drlhp, pathlib
from drlhp import HumanPreferencesEnvWrapper

if __name__ == "__main__":
    assert envs.MINE and networks.MINE and run.MINE
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"), n_initial_prefs=6, n_initial_training_steps=3, segment_length=10,
        max_pref_interface_segs=5,
    )
    env.reset(seed=0)
    while not env.using_reward_from_predictor:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
    env.close()
    print(pathlib.Path(drlhp.__file__).parent)
"""
# The page's server, which is a module that is run by its name.
PAGE = """
import sys, urllib.request, pathlib
from drlhp.label_server import launch, listen, prepare, stop
from drlhp.pref_db import PrefDB

run = pathlib.Path("page"); run.mkdir()
PrefDB.create(run / "prefs.db", "CartPole-v1", 10).close()
with listen(port=0) as sock:
    address, _ = prepare(run, sock)
    server = launch(run / "prefs.db", run, sock)
    page = urllib.request.urlopen(f"http://{address.host}:{address.port}/", timeout=200).read()
    stop(server)
assert b"<html" in page, page
"""


def copied(folder: Path) -> Path:
    """A copy of the clone, which the building of packages may write into."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "runs", "results", "tests")
    return shutil.copytree(ROOT, folder / "source", ignore=ignored)


def test_the_wheel_in_an_empty_environment_beside_folders_of_the_same_names(tmp_path: Path) -> None:
    source, wheels, user = copied(tmp_path), tmp_path / "wheels", tmp_path / "user"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # Of what is published as source, as pip builds it where there is no wheel.
    make_sdist = [sys.executable, "-c", "from setuptools.build_meta import build_sdist; print(build_sdist('.'))"]
    made = subprocess.run(make_sdist, cwd=source, check=True, capture_output=True, text=True).stdout.split()[-1]
    sdist = source / made
    build: list[str | Path] = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", wheels, sdist]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"drlhp"}
    assert not any(name.startswith(f"drlhp/{ours}") for name in names for ours in ("run.py", "envs", "a2c", "config"))
    assert "drlhp/label_server/static/index.html" in names

    # Ours is not among the packages that this environment has beside it: those are other people's alone.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    query: list[str | Path] = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install: list[str | Path] = [*pip, "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)

    user.mkdir()
    for name in ("envs", "networks", "run", "channels", "pref_db"):
        (user / name).mkdir()
        (user / name / "__init__.py").write_text("MINE = True\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for script in (SCRIPT, PAGE):
        (user / "script.py").write_text(script)
        done = subprocess.run([python, "script.py"], cwd=user, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if script == SCRIPT:
            assert Path(done.stdout.strip()) == packages / "drlhp"


def test_all_names_can_be_imported_without_stable_baselines3() -> None:
    script = "import sys; sys.modules['stable_baselines3'] = None; from drlhp import *; HumanPreferencesEnvWrapper"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_an_editable_installation_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The package's modules are written anew, so there is nothing that it could point to."""
    command = [sys.executable, "-c", "from setuptools.build_meta import build_editable; build_editable('.')"]
    done = subprocess.run(command, cwd=copied(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1 and "drlhp cannot be installed with -e: leave that out" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_library_needs_is_among_what_the_clone_needs() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pinned = tomllib.loads((ROOT / "Pipfile").read_text())["packages"]
    assert {need.split(">=")[0] for need in needs} <= set(pinned)
