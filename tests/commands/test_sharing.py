"""What a run has learned, and its labels, go to a folder or to a Hub and come back; what comes back is checked."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import constants
from moto.server import ThreadedMotoServer

from commands.sharing import places
from drlhp.runtime import checkpoint
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import DEADLINE, DOT, SYNC, UNEVALUATED, environment, here, one_sentence, policy_steps
from tests.support.hub import TOKEN, Hub, running_hub
from tests.support.preloaded import run_captured

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # of the Hub's client, at uploads
    pytest.mark.xdist_group("sharing"),  # what they share is made once
]


@pytest.fixture(scope="module")
def shared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "dot"
    here(None, "push", str(finished), str(folder))
    return folder


@pytest.fixture
def copy(shared: Path, tmp_path: Path) -> Path:
    """A shared folder to damage."""
    return shutil.copytree(shared, tmp_path / "dot")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A Hub of this machine, which the client in this process uses; files go by HTTP, not by the Hub's own protocol."""
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path_factory.mktemp("client") / "asked.json"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def refused(*words: str) -> str:
    """Returns the one sentence of a command that cannot work."""
    printed = here(None, *words, status=2)
    return one_sentence(printed.stderr)


def header(card: Path) -> dict[str, Any]:
    """The YAML at the top of a card."""
    metadata: dict[str, Any] = yaml.safe_load(card.read_text().split("---\n")[1])
    return metadata


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# -- networks ----------------------------------------------------------------------------------------------------------


def test_a_pushed_folder_has_the_newest_checkpoints_and_a_card_with_the_reports_figures(
    shared: Path, finished: Path
) -> None:
    assert {name for name in files(shared) if not name.endswith(".pt")} == {
        *("README.md", "config.json", "progress.csv", "evaluations.csv", "reward-steps.png", "reward-labels.png")
    }
    for part in ("policy", "reward_predictor"):
        newest = checkpoint.find(finished, part)
        assert (shared / part / newest.name).read_bytes() == newest.read_bytes() and len(files(shared / part)) == 1
    card = (shared / "README.md").read_text()
    assert "The agent did not learn: evaluation" in card or "The agent learned" in card
    assert (
        "| labels | 20, of the synthetic teacher `oracle` |" in card and "![" in card and "(reward-steps.png)" in card
    )
    # The Hub's own reader of cards finds the result where it looks for it.
    metadata = huggingface_hub.ModelCard(card).data
    assert isinstance(metadata, huggingface_hub.ModelCardData) and metadata.eval_results is not None
    (result,) = metadata.eval_results
    assert result.dataset_type == DOT and result.metric_type == "mean_reward"
    assert re.fullmatch(r"-?\d+\.\d\d \+/- \d+\.\d\d", result.metric_value)
    assert header(shared / "README.md")["library_name"] == "drlhp"


def test_what_is_pushed_names_no_path_and_no_machine(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "a")
    record = json.loads((run / "config.json").read_text())
    record["config"]["prefs"]["load_prefs_dir"] = record["config"]["policy"]["demonstrations"] = "/home/ann/secret"
    record["config"]["log_dir"] = "/home/ann/runs"
    record["config"]["page"]["web_host"] = "secret.example.org"
    record["config"]["metrics"] = "secret.example.org:9100"
    record["command"] = ["run.py", "/home/ann/secret"]
    (run / "config.json").write_text(json.dumps(record))
    here(None, "push", str(run), str(tmp_path / "out"))
    for file in ("config.json", "README.md"):
        text = (tmp_path / "out" / file).read_text()
        assert "ann" not in text.replace("annealed", "") and "secret" not in text and str(tmp_path) not in text
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "machine" not in told and "command" not in told
    assert told["config"]["prefs"]["max_prefs"] == record["config"]["prefs"]["max_prefs"]


@pytest.mark.usefixtures("short_episodes")
def test_a_loaded_folder_is_watched_reported_and_trained_from(shared: Path, tmp_path: Path) -> None:
    printed = here(None, "load", str(shared), "--output", str(tmp_path / "b")).stdout
    assert f"Loaded a policy and a reward predictor of {DOT}" in printed and f"run.py watch {tmp_path / 'b'}" in printed
    assert files(tmp_path / "b") == {name for name in files(shared) if not name.endswith(".png")}
    watched = here(None, "watch", str(tmp_path / "b"), "--output", str(tmp_path / "film.mp4")).stdout
    assert "predicted" in watched and (tmp_path / "film.mp4").stat().st_size
    here(None, "report", str(tmp_path / "b"), "--output", str(tmp_path / "report"))
    flags = ("--load_policy_ckpt_dir", str(tmp_path / "b"), "--load_reward_predictor_ckpt_dir", str(tmp_path / "b"))
    small = ("--n_envs", "4", "--million_timesteps", "0.0001", *UNEVALUATED)
    here(tmp_path, "train_policy_with_preferences", DOT, "--run_name", "c", *small, *flags, SYNC)
    assert policy_steps(tmp_path / "c")
    assert "was loaded from" in refused("--resume", str(tmp_path / "b"))


def test_a_predictor_alone_and_a_policy_alone_are_shared_too(finished: Path, tmp_path: Path) -> None:
    for part, other in (("policy", "reward_predictor"), ("reward_predictor", "policy")):
        run = shutil.copytree(finished, tmp_path / part)
        shutil.rmtree(run / other)
        here(None, "push", str(run), str(tmp_path / f"{part}-shared"))
        printed = here(None, "load", str(tmp_path / f"{part}-shared"), "--output", str(tmp_path / f"{part}-loaded"))
        assert f"--load_{part}_ckpt_dir" in printed.stdout and f"--load_{other}_ckpt_dir" not in printed.stdout
        assert ("run.py watch" in printed.stdout) == (part == "policy")


def test_nothing_is_overwritten(shared: Path, finished: Path, tmp_path: Path) -> None:
    before = {name: (shared / name).read_bytes() for name in files(shared)}
    assert "nothing is overwritten" in refused("push", str(finished), str(shared))
    assert "nothing is overwritten" in refused("load", str(shared), "--output", str(finished))
    assert before == {name: (shared / name).read_bytes() for name in files(shared)}


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def labelled(finished: Path, tmp_path: Path) -> Path:
    """A store whose answers two people gave, with a note."""
    run = shutil.copytree(finished, tmp_path / "labelled")
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db, db.transaction() as writer:
        writer.execute("DROP TRIGGER answer_no_update")
        writer.execute("UPDATE answer SET teacher = 'person', labeller = CASE seq % 2 WHEN 0 THEN 'ann' ELSE 'bob' END")
        writer.execute("UPDATE answer SET note = 'ask bob about it' WHERE seq = 3")
    return run


def test_labels_are_shared_without_names_and_notes_unless_these_are_asked_for(labelled: Path, tmp_path: Path) -> None:
    here(None, "push", str(labelled), str(tmp_path / "out"), "--prefs")
    assert {name.split("/")[0] for name in files(tmp_path / "out")} == {
        *("README.md", "export.json", "labels.jsonl", "segments")
    }
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or not re.search(rb"\b(ann|bob)\b", path.read_bytes()), path
    rows = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [row["labeller"] for row in rows[:4]] == ["person-1", "person-2", "person-1", "person-2"]
    card = header(tmp_path / "out" / "README.md")
    assert card["configs"][0]["data_files"] == "labels.jsonl" and card["size_categories"] == ["n<1K"]
    assert "| 20, by 2 people |" in (tmp_path / "out" / "README.md").read_text()
    here(None, "push", str(labelled), str(tmp_path / "named"), "--prefs", "--names_and_notes")
    assert "ask bob about it" in (tmp_path / "named" / "labels.jsonl").read_text()
    assert "add --prefs" in refused("push", str(labelled), str(tmp_path / "no"), "--names_and_notes")


def test_loaded_labels_train_a_predictor(finished: Path, tmp_path: Path) -> None:
    here(None, "push", str(finished), str(tmp_path / "out"), "--prefs")
    printed = here(None, "load", str(tmp_path / "out"), "--prefs", "--output", str(tmp_path / "labels")).stdout
    assert f"--load_prefs_dir {tmp_path / 'labels'}" in printed and "20 labels" in printed
    flags = ("--load_prefs_dir", str(tmp_path / "labels"), "--n_initial_epochs", "1", "--run_name", "p")
    assert "20 labels loaded" in here(tmp_path, "pretrain_reward_predictor", DOT, *flags, SYNC).stdout


def test_labels_that_are_damaged_are_not_loaded(finished: Path, tmp_path: Path) -> None:
    here(None, "push", str(finished), str(tmp_path / "out"), "--prefs")
    labels = tmp_path / "out" / "labels.jsonl"
    labels.write_text(labels.read_text().replace('"choice": "', '"choice": "x'))
    sentence = refused("load", str(tmp_path / "out"), "--prefs", "--output", str(tmp_path / "labels"))
    assert "choice cannot be" in sentence and ".load-" not in sentence
    assert not (tmp_path / "labels").exists() and not list(tmp_path.glob(".load-*"))


# -- what comes from outside -------------------------------------------------------------------------------------------


def newest(folder: Path, part: str = "policy") -> Path:
    return checkpoint.find(folder, part)


def change(folder: Path, part: str = "policy", **values: Any) -> None:
    path = newest(folder, part)
    torch.save({**checkpoint.read(path), **values}, path)


class Harmful:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def with_code(folder: Path) -> None:
    torch.save({"format": 1, "kind": "policy", "env_id": DOT, "step": 1, "weights": Harmful()}, newest(folder))


def packed(folder: Path) -> None:
    """Its zeros unpack to a thousand times their size."""
    path = newest(folder)
    state = checkpoint.read(path)
    torch.save({**state, "optimizer": {"zeros": torch.zeros(2**20)}}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def expanded(folder: Path) -> None:
    """One number that claims to be 2^40 of them."""
    change(folder, optimizer={"zeros": torch.zeros(1).expand(2**40)})


def from_two_environments(folder: Path) -> None:
    change(folder, "reward_predictor", env_id="PongNoFrameskip-v4")


def diverged(folder: Path) -> None:
    weights = checkpoint.read(newest(folder))["weights"]
    change(folder, weights={name: tensor * float("nan") for name, tensor in weights.items()})


def without_weights(folder: Path) -> None:
    change(folder, weights={})


def cut(folder: Path) -> None:
    newest(folder).write_bytes(newest(folder).read_bytes()[:1000])


def with_bad_settings(folder: Path) -> None:
    record = json.loads((folder / "config.json").read_text())
    record["config"]["policy"]["n_envs"] = -1
    (folder / "config.json").write_text(json.dumps(record))


def with_a_bad_table(folder: Path) -> None:
    (folder / "progress.csv").write_text("seconds,steps\n1,x\n")


def empty(folder: Path) -> None:
    for part in ("policy", "reward_predictor"):
        shutil.rmtree(folder / part)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (with_code, "is damaged or no checkpoint of ours"),
        (packed, "packed in a way that PyTorch does not use"),
        (expanded, "more numbers than it has room for"),
        (from_two_environments, "several environments"),
        (diverged, "not finite"),
        (without_weights, "another network"),
        (cut, "damaged or no checkpoint of ours"),
        (with_bad_settings, "n_envs"),
        (with_a_bad_table, "progress.csv is damaged"),
        (empty, "holds no checkpoint"),
    ],
)
def test_what_is_damaged_or_hostile_is_not_loaded(
    copy: Path, tmp_path: Path, damage: Callable[[Path], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damage(copy)
    sentence = refused("load", str(copy), "--output", str(tmp_path / "b"))
    assert why in sentence and str(copy) in sentence and ".load-" not in sentence, sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dot"], "nothing is left behind, and no code has run"


def test_the_module_of_an_environment_runs_only_if_the_user_names_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harmful_envs.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    env_id = "harmful_envs:Dot-v0"
    for part in ("policy", "reward_predictor"):
        change(copy, part, env_id=env_id)
    (copy / "config.json").unlink()
    assert f"give --env_id {env_id}" in refused("load", str(copy), "--output", "b")
    assert f"give --env_id {env_id}" in refused("load", str(copy), "--output", "b", "--env_id", DOT)
    assert not (tmp_path / "ran").exists()
    refused("load", str(copy), "--output", "b", "--env_id", env_id)  # it registers no such environment
    assert (tmp_path / "ran").exists()


def test_files_that_push_does_not_write_stay_where_they_are(copy: Path, tmp_path: Path) -> None:
    for name in ("setup.py", "policy/evil.py", "prefs.db", "reward_predictor/step-1.pt.exe"):
        (copy / name).write_text("x")
    shutil.copy(newest(copy), copy / "policy" / "step-000000000001.pt")
    here(None, "load", str(copy), "--output", str(tmp_path / "b"))
    loaded = files(tmp_path / "b")
    assert len(loaded) == 6 and f"policy/{newest(copy).name}" in loaded


def test_a_place_that_is_none_is_named(shared: Path, tmp_path: Path) -> None:
    assert "give USER/NAME on the Hub, a folder, such as ./dot, or a URL, such as s3://BUCKET/dot" in refused(
        "load", "dot"
    )
    assert "leave out --prefs" in refused("load", str(shared), "--prefs", "--output", str(tmp_path / "b"))
    assert "is no folder" in refused("load", str(tmp_path / "nowhere"), "--output", str(tmp_path / "b"))


# -- the Hub -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("s3")
def test_networks_and_labels_go_to_s3_and_come_back(finished: Path, shared: Path, tmp_path: Path) -> None:
    bucket = fsspec.filesystem("s3", use_listings_cache=False)
    here(None, "push", str(finished), "s3://clips/agents/dot")
    assert "load s3://clips/agents/dot" in bucket.cat_file("clips/agents/dot/README.md").decode()
    assert refused("push", str(finished), "s3://clips/agents/dot").startswith(
        "run.py: s3://clips/agents/dot holds README.md already, and nothing is overwritten"
    )
    here(None, "load", "s3://clips/agents/dot", "--output", str(tmp_path / "dot"))
    for name in files(tmp_path / "dot") - {"config.json"}:  # which says where it is from
        assert (tmp_path / "dot" / name).read_bytes() == bucket.cat_file(f"clips/agents/dot/{name}")
    assert files(shared) - files(tmp_path / "dot") == {"reward-labels.png", "reward-steps.png"}
    here(None, "push", str(finished), "s3://clips/labels", "--prefs")
    here(None, "load", "s3://clips/labels", "--prefs", "--output", str(tmp_path / "labels"))
    with contextlib.closing(PrefDB.open(tmp_path / "labels" / "prefs.db")) as db:
        assert db.n_labels() == 20
    bucket.rm_file("clips/labels/README.md")
    assert "s3://clips/labels has no README.md, which `push` writes last" in refused("load", "s3://clips/labels")


def test_a_push_to_s3_that_fails_leaves_nothing_there(
    finished: Path, s3: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = fsspec.filesystem("s3", use_listings_cache=False)
    put, n_put = type(bucket)._put_file, itertools.count()

    async def put_two(*args: Any, **options: Any) -> None:
        if next(n_put) == 2:
            raise OSError("the network is gone")
        await put(*args, **options)

    monkeypatch.setattr(type(bucket), "_put_file", put_two)
    told = refused("push", str(finished), "s3://clips/dot")
    assert "s3://clips/dot cannot be used (the network is gone); check the address, that the bucket" in told
    assert next(n_put) == 3 and not bucket.find("clips/dot")
    assert "s3://no-such-bucket/dot cannot be used" in refused("push", str(finished), "s3://no-such-bucket/dot")
    assert "nosuch://a/b cannot be used" in refused("load", "nosuch://a/b")
    s3.stop()
    assert "cannot be used" in refused("load", "s3://clips/dot")
    s3.start()


def test_without_the_package_one_sentence_says_what_to_install(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    assert "pip install huggingface_hub" in refused("push", str(finished), "ann/dot")


def test_a_folder_needs_no_package(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    here(None, "push", str(finished), str(tmp_path / "out"))
    here(None, "load", str(tmp_path / "out"), "--output", str(tmp_path / "b"))


def test_networks_and_labels_go_to_the_hub_and_come_back(
    hub: Hub, finished: Path, shared: Path, tmp_path: Path
) -> None:
    assert f"{hub.url}/ann/dot" in here(None, "push", str(finished), "ann/dot").stdout
    repository = hub.repositories["models/ann/dot"]
    assert repository.private and len(repository.commits) == 2, "one commit holds all"
    assert set(repository.files()) == {".gitattributes", *files(shared)}
    assert len(hub.large_files) == 4
    here(None, "load", "ann/dot", "--output", str(tmp_path / "b"))
    for name in files(tmp_path / "b") - {"config.json"}:
        assert (tmp_path / "b" / name).read_bytes() == repository.files()[name]
    source = json.loads((tmp_path / "b" / "config.json").read_text())["loaded_from"]
    assert source == f"{hub.url}/ann/dot@{repository.newest}"
    here(None, "push", str(finished), "ann/labels", "--prefs", "--public")
    assert not hub.repositories["datasets/ann/labels"].private
    assert "20 labels" in here(None, "load", "ann/labels", "--prefs", "--output", str(tmp_path / "labels")).stdout


def test_a_process_of_its_own_speaks_to_the_server_that_the_environment_names(
    hub: Hub, finished: Path, tmp_path: Path
) -> None:
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, str(ROOT / "run.py"), "push", str(finished), "ann/dot"]
    # The client is not among what is imported beforehand, so it reads these variables.
    done = run_captured(words, DEADLINE, env=environment(**variables))
    assert done.returncode == 0 and f"{hub.url}/ann/dot" in done.stdout and done.stderr == "", done.stderr
    assert "models/ann/dot" in hub.repositories


def test_the_hub_overwrites_nothing_and_shows_nothing_to_others(
    hub: Hub, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(None, "push", str(finished), "ann/dot")
    assert "nothing is overwritten" in refused("push", str(finished), "ann/dot")
    assert len(hub.repositories["models/ann/dot"].commits) == 2
    assert "has no revision v9" in refused("load", "ann/dot", "--revision", "v9", "--output", str(tmp_path / "b"))
    hub.repositories["models/ann/dot"].commits.popitem()
    hub.repositories["models/ann/dot"].private = False
    assert "is public; add --public" in refused("push", str(finished), "ann/dot")
    hub.repositories["models/ann/dot"].private = True
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    for words in (("load", "ann/dot"), ("load", "ann/none"), ("push", str(finished), "ann/new")):
        output = ("--output", str(tmp_path / "b")) if words[0] == "load" else ()
        assert "log in with `hf auth login`" in refused(*words, *output)


def test_a_hub_that_lists_too_much_or_gives_something_else_is_refused(hub: Hub, finished: Path, tmp_path: Path) -> None:
    here(None, "push", str(finished), "ann/dot")
    hub.lies = {"README.md": 10**9}
    assert "README.md is larger than anything" in refused("load", "ann/dot", "--output", str(tmp_path / "b"))
    hub.lies = {"README.md": 5}
    assert "has given another README.md" in refused("load", "ann/dot", "--output", str(tmp_path / "b"))
    assert not any("/resolve/" in asked for asked in hub.asked if "evil" in asked)
    assert list(tmp_path.iterdir()) == []


def test_a_hub_that_cannot_be_reached_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.shutdown()
    hub.server_close()
    sentence = refused("load", "ann/dot", "--output", str(tmp_path / "b"))
    assert f"{hub.url}/ann/dot cannot be used" in sentence
