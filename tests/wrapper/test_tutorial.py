"""The notebook runs from its first cell to its last, while somebody answers on the page that it shows in a frame."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import nbformat
import pytest
from nbclient import NotebookClient

from drlhp import HumanPreferencesEnvWrapper, UserError
from drlhp.label_server.security import run_token
from drlhp.label_server.server import FOLDER, port_before
from examples.label_over_http import LabelClient
from pref_db import PrefDB
from tests.support import ROOT

NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"
DEADLINE = 240  # seconds for anything that is waited for
N_LABELS = 12

# Of the kernel's client, when it ends.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client", "ignore::DeprecationWarning:zmq")


def tutorial() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def executed(log_dir: Path) -> list[str]:
    """Runs the notebook in a kernel of its own, with few labels; returns what each of its cells of code printed."""
    notebook = tutorial()
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    values = {"N_LABELS": N_LABELS, "N_BATCHES": 5, "LABEL_MYSELF": True, "LOG_DIR": str(log_dir)}
    for name, value in values.items():
        parameters.source, n = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", parameters.source, flags=re.MULTILINE)
        assert n == 1, name
    client = NotebookClient(
        notebook, timeout=DEADLINE, kernel_name="python3", resources={"metadata": {"path": NOTEBOOK.parent}}
    )
    client.execute()
    return [printed(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def printed(outputs: list[Any]) -> str:
    """The text of a cell's outputs, and the HTML and the kinds of its pictures."""
    parts = [output.get("text", "") for output in outputs]
    for data in (output.get("data", {}) for output in outputs):
        parts += [data.get("text/html", ""), *(kind for kind in data if kind.startswith("image/"))]
    return "\n".join(parts)


def labels(log_dir: Path) -> list[str]:
    """The teachers of the labels in the only run of a log_dir, which has a predictor too."""
    (run,) = log_dir.iterdir()
    assert list((run / "reward_predictor").glob("saved-*.pt"))
    with contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as db:
        return [answer.teacher for answer in db.answers()]


def test_the_notebook_is_committed_without_outputs() -> None:
    for cell in tutorial().cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.slow
def test_the_notebook_runs_and_a_person_labels_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person is a program that opens the page's link, while the cells run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # more would wait for each other, over so small a network
    with ThreadPoolExecutor() as pool:
        person = pool.submit(label_as_a_person, tmp_path)
        _, _, frame, trained, rewards, answers, saved = executed(tmp_path)
        link = person.result(DEADLINE)
    assert "<iframe" in frame and f'src="{link}"' in frame
    assert f"{N_LABELS} labels" in trained
    assert "correlation" in rewards and "image/png" in rewards and "image/png" in answers
    assert Path(saved.strip()).is_file()
    assert labels(tmp_path) == ["person"] * N_LABELS


def test_a_wrapper_without_a_page_has_no_link() -> None:
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), collect_prefs=False, train_reward=False)
    with pytest.raises(UserError, match="no people answer on a page here: set synthetic_prefs=False"):
        env.page_link()
    env.close()


def label_as_a_person(log_dir: Path) -> str:
    """Answers all pairs over HTTP, as soon as there is a page; returns its link, as the notebook has it."""
    port, run = next((port, run) for run in waiting(log_dir) if (port := port_before(run)) is not None)
    link, n_labels = f"http://localhost:{port}/#t={run_token(run / FOLDER)}", 0
    client = LabelClient(link, "ann")
    for _ in waiting(log_dir):
        for lease in client.call("/api/next", {"n": 1})["leases"]:
            now = time.time()
            body = {"client_id": f"c{n_labels}", "choice": "left", "shown_at": now - 1, "answered_at": now}
            client.call("/api/answer", {**{key: lease[key] for key in ("token", "comparison_id")}, **body})
            n_labels += 1
        if n_labels == N_LABELS:
            break
    return link


def waiting(log_dir: Path) -> Iterator[Path]:
    """Yields the only run of a log_dir again and again, as soon as there is one; fails when the time is up."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        yield from log_dir.iterdir()
        time.sleep(0.02)
    raise AssertionError("waited too long")
