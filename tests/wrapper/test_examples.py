"""The page about the wrapper shows its examples and arguments as they are, and the examples run."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import re
import sys
from pathlib import Path

import gymnasium
import pytest

from drlhp.wrapper.settings import Settings
from examples import wrapper_cleanrl, wrapper_vector_loop
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.preloaded import run_captured
from tests.support.process_server import one_server

__all__ = ["one_server"]  # a fixture: pytest finds it by name

pytestmark = pytest.mark.usefixtures("one_server")

PAGE = (ROOT / "docs" / "wrapper.md").read_text()


def n_labels(log_dir: Path) -> int:
    """Labels in the store of the only run in a log_dir, which has a predictor too."""
    (run,) = log_dir.iterdir()
    assert list((run / "reward_predictor").glob("step-*.pt"))
    with contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as db:
        return db.n_labels()


def test_a_loop_as_cleanrl_writes_them(tmp_path: Path) -> None:
    wrapper_cleanrl.main(tmp_path, n_labels=12, n_updates=20)
    assert 6 <= n_labels(tmp_path) <= 12


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    wrapper_vector_loop.main(tmp_path, n_labels=12, n_generations=1)
    assert 6 <= n_labels(tmp_path) <= 12


def test_stable_baselines3_from_scratch_and_from_a_policy_trained_elsewhere(tmp_path: Path) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from examples import wrapper_sb3, wrapper_warm_start

    wrapper_sb3.main(tmp_path / "scratch", n_labels=12, n_steps=200)
    assert 6 <= n_labels(tmp_path / "scratch") <= 12
    elsewhere = stable_baselines3.PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64, batch_size=64)
    elsewhere.learn(64)
    elsewhere.save(tmp_path / "policy.zip")
    wrapper_warm_start.main(tmp_path / "policy.zip", tmp_path / "warm", n_labels=12, n_steps=256)
    assert n_labels(tmp_path / "warm") >= 12


@pytest.mark.parametrize(("name", "lacking"), [("wrapper_warm_start", "PPO.save"), ("label_over_http", "the link")])
def test_an_example_that_lacks_what_it_works_on_says_so(name: str, lacking: str) -> None:
    pytest.importorskip("stable_baselines3")
    done = run_captured([sys.executable, "-m", f"examples.{name}"], DEADLINE, cwd=ROOT)
    assert done.returncode == 1 and lacking in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_every_script_on_the_page_is_the_example_that_the_tests_run() -> None:
    shown = re.findall(r"```python\n# (examples/\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert {name for name, _ in shown} == {
        "examples/wrapper_sb3.py",
        "examples/wrapper_cleanrl.py",
        "examples/wrapper_vector_loop.py",
        "examples/own_network.py",
    }
    assert PAGE.count("```python") == len(shown)
    for name, code in shown:
        # From its docstring on, which is the page's prose.
        assert (ROOT / name).read_text().partition('"""\n\n')[2] == code.lstrip("\n"), f"{name} is another on the page"


def test_every_argument_is_on_the_page_with_its_default_and_its_help() -> None:
    (settings,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(settings, ast.ClassDef)
    rows = []
    for field, text in itertools.pairwise(settings.body):
        if isinstance(field, ast.AnnAssign) and field.value is not None:
            assert isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
            default = ast.unparse(field.value).strip("'").replace("logging.", "")
            rows.append(f"| `{field.target.id}` | {default} | {' '.join(ast.literal_eval(text.value).split())} |")
    assert PAGE.partition("| name | default | |\n|---|---|---|\n")[2].splitlines() == rows
    assert len(rows) == len(Settings.__dataclass_fields__)


def test_every_example_is_on_the_page() -> None:
    for path in (ROOT / "examples").glob("wrapper_*.py"):
        assert f"examples/{path.name}" in PAGE, path.name
