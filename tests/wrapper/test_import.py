"""`import drlhp` is quick, and shows the public names alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.preloaded import PreloadedPopen, run_captured


def printed(program: str, start: type[subprocess.Popen[str]] = PreloadedPopen) -> str:
    """Returns what an interpreter prints that runs this program in the clone."""
    environment = {**os.environ, "TERM": "dumb"}  # so that `help` prints plain text, without a pager
    done = run_captured([sys.executable, "-c", program], DEADLINE, start=start, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(statement: str) -> list[str]:
    """Returns the modules that a new interpreter loads for this statement."""
    program = (
        f"import json, sys; before = set(sys.modules); {statement}; print(json.dumps([*set(sys.modules) - before]))"
    )
    names: list[str] = json.loads(printed(program, subprocess.Popen))
    return names


def test_the_import_loads_nothing_but_pythons_own_modules() -> None:
    loaded = loaded_by("import drlhp")
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == ["drlhp"]


@pytest.mark.parametrize("statement", ["import drlhp.data, drlhp.runtime", "from drlhp import errors, UserError"])
def test_a_lower_floor_loads_no_upper_one(statement: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(statement)}
    assert "drlhp" in loaded and not loaded & {"torch", "numpy", "gymnasium", "pref_db", "reward_predictor"}


def test_every_public_name_can_be_imported_and_is_all_that_dir_shows() -> None:
    program = "from drlhp import *; import json, drlhp; print(json.dumps([dir(drlhp), drlhp.__all__, list(globals())]))"
    shown, public, imported = json.loads(printed(program))
    assert sorted(public) == [name for name in shown if not name.startswith("__")]
    assert set(public) <= set(imported) and "HumanPreferencesEnvWrapper" in public


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    program = "import drlhp\ntry: drlhp.Trainer\nexcept AttributeError as error: print(error)"
    assert printed(program) == "module 'drlhp' has no attribute 'Trainer'\n"


def test_help_lists_the_public_names_each_with_its_purpose_and_no_internals() -> None:
    description, _, classes = printed("import drlhp; help(drlhp)").partition("\nPACKAGE CONTENTS\n")
    listed = dict(re.findall(r"^ {8}(\w+) {2,}(\S.*)$", description, re.MULTILINE))
    public = set(json.loads(printed("import json, drlhp; print(json.dumps(drlhp.__all__))")))
    assert public <= listed.keys() <= public | {"HumanPreferencesSB3VecEnv"}
    for name in public:
        about = re.search(rf"^    class {name}\(.*\n(?: {{5}}\|.*\n)+", classes, re.MULTILINE)
        assert about is not None, f"help shows no {name}"
    assert not re.search(r"_PLACES|importlib|TYPE_CHECKING|\b_[a-z]\w+\(", classes)
