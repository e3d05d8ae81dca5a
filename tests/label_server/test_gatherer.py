"""`--ui web` at the real command: the printed link works, answers end the run, and the server's death does not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import av
import pytest
import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlhp.cli.label import LabelConfig
from drlhp.data.views import encode_frames
from drlhp.errors import UserError
from drlhp.label_server import Address, server
from drlhp.label_server.config import PageConfig
from drlhp.label_server.gatherer import EpisodeFile, WebGatherer
from drlhp.label_server.server import DEFAULT_PORT, NEXT_PORTS, PROCESS, listen
from drlhp.label_server.status import EPISODE
from drlhp.label_server.status import status as page_status
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.runtime.channels import Episode
from pref_db import PrefDB
from tests.screens.test_terminal import terminal
from tests.support import ROOT
from tests.support.commands import (
    DEADLINE,
    DOT,
    UNEVALUATED,
    alive,
    answers,
    children,
    command,
    here,
    one_sentence,
    policy_steps,
    started,
    steps_with_a_return,
    wait_for,
)
from tests.support.labelling import Client, make_store, segment
from tests.support.preloaded import PreloadedPopen

SMALL = ("--n_envs", "2", "--max_segs", "40", "--ui", "web", "--web_port", "0")
LINK = re.compile(r"http://([\d.]+):(\d+)/#t=([0-9a-f]{32})")


def told(process: subprocess.Popen[str], word: str) -> str:
    """What the run prints, to the line with this word."""
    assert process.stdout is not None
    lines = list[str]()
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


@contextmanager
def logged_in(process: subprocess.Popen[str], cookie: str = "") -> Iterator[Client]:
    """Somebody who opens the link that the run prints, perhaps with a cookie of earlier."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := LINK.search(line):
            break
    else:
        raise AssertionError("no link was printed")
    client = Client(Address(found[1], int(found[2])))
    client.cookie = cookie
    deadline = time.monotonic() + DEADLINE
    while client.post("/api/login", {"token": found[3]})[0] != 200:
        assert time.monotonic() < deadline
    try:
        yield client
    finally:
        client.connection.close()


def ask(client: Client, path: str, body: dict[str, Any], process: subprocess.Popen[str]) -> dict[str, Any]:
    """Sends it as the page does: again and again while there is no server, or another process keeps the store busy."""
    replies: list[tuple[int, dict[str, Any]]] = []

    def done() -> bool:
        with suppress(ConnectionError):
            replies.append(client.post(path, body))
        return bool(replies) and replies[-1][0] == 200

    wait_for(done, process)
    return replies[-1][1]


def claim(client: Client, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next pair, waited for."""
    while not (leases := ask(client, "/api/next", {"n": 1}, process)["leases"]):
        time.sleep(0.05)  # the agent makes clips
    return leases[0]


def judgement(lease: dict[str, Any], choice: str) -> dict[str, Any]:
    about = {name: lease[name] for name in ("token", "comparison_id")}
    times = {"shown_at": time.time() - 1, "answered_at": time.time()}
    return {**about, **times, "choice": choice, "client_id": os.urandom(8).hex()}


def answer(client: Client, n: int, process: subprocess.Popen[str]) -> None:
    """Answers n pairs as they come."""
    for choice in ("left", "right", "equal", "left")[:n]:
        ask(client, "/api/answer", judgement(claim(client, process), choice), process)


def server_of(pid: int) -> int:
    """The process of a run's label server."""
    listed = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return next(pid for pid in listed if Path(f"/proc/{pid}/comm").read_text().strip() == PROCESS)


def test_people_label_a_run_in_the_browser(tmp_path: Path) -> None:
    words = ("gather_initial_prefs", DOT, "--n_initial_prefs", "4", "--run_name", "a", "--task", "Keep left", *SMALL)
    with started(tmp_path, *words) as process:
        with logged_in(process) as client:
            answer(client, 1, process)
            status = ask(client, "/api/next", {"n": 1}, process)["status"]
            assert (status["task"], status["goal"]) == ("Keep left", 4)
            wait_for(lambda: "labels 1/4" in client.get("/api/status")[1].get("trainer", ""), process)
            segment_id = client.get("/api/history")[1]["rows"][0]["left"]
            assert client.request("GET", f"/api/clip/{segment_id}")[2]["Content-Type"] == "image/webp"
            killed = server_of(process.pid)
            os.kill(killed, signal.SIGKILL)
            answer(client, 3, process)  # the cookie is as good as before
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    assert not alive(killed)
    with closing(PrefDB.open(tmp_path / "a" / "prefs.db", read_only=True)) as db:
        assert db.n_labels() == 4 and {row.teacher for row in db.answers()} == {"person"}


def test_the_trainers_death_while_somebody_looks_at_a_pair_loses_no_answer_and_counts_none_twice(
    tmp_path: Path,
) -> None:
    """The policy waits for every answer, so that the run cannot end before the pair is answered."""
    folder = tmp_path / "a"
    labels = ("--n_initial_prefs", "4", "--max_prefs", "6", "--wait_for_labels", "0", "--n_initial_epochs", "2")
    steps = ("--million_timesteps", "0.001", "--policy_ckpt_interval", "20", *UNEVALUATED)
    words = ("train_policy_with_preferences", DOT, *SMALL, *labels, *steps)
    with started(tmp_path, *words, "--run_name", "a") as process:
        with logged_in(process) as client:
            answer(client, 4, process)
            seen = judgement(claim(client, process), "left")
            assert policy_steps(folder) > 0, "asked while the policy learns"
            before = answers(folder)
            os.kill(children(process.pid)["reward predictor"], signal.SIGKILL)
            said = told(process, "the page goes on")
            with logged_in(process) as newcomer:
                assert newcomer.address == client.address, "the page is where it was"
            wait_for(lambda: "Label 5" in client.get("/api/status")[1].get("trainer", ""), process)
            trouble = client.get("/api/status")[1]["trouble"]
            assert "the run has stopped (the reward predictor process was killed" in trouble, "while the page goes on"
            assert trouble.endswith("); answers are kept")
            assert ask(client, "/api/answer", seen, process)["status"] in ("stored", "late")
            assert ask(client, "/api/answer", seen, process)["status"] == "known", "sent again, as by a page in doubt"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and "the reward predictor process was killed by SIGKILL" in said
    assert f"python run.py --resume {folder}" in said and "Traceback" not in said + output
    label = f"python run.py label {folder} --ui web --max_prefs 6 --web_port {client.address.port}"
    assert label in said and "1 more than at the start" in output
    stored = answers(folder)
    assert stored[:-1] == before and stored[-1][:2] == (seen["client_id"], seen["comparison_id"])

    with started(tmp_path, "--resume", str(folder)) as process:
        with logged_in(process, client.cookie) as client:
            assert ask(client, "/api/answer", seen, process)["status"] == "known"
            answer(client, 1, process)
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    kept = answers(folder)
    assert kept[:-1] == stored and len({pair for _, pair, _ in kept}) == len(kept) == 6
    counted = EventAccumulator(str(folder / "events" / "reward_predictor")).Reload().Scalars("reward_predictor/labels")
    assert counted[-1].value == 6, "by the trainer, when it had ended"


def test_where_people_label_on_the_page_the_runs_terminal_does_not_tell_the_true_reward(tmp_path: Path) -> None:
    """Who has started the run often labels in the browser beside it."""
    labels = ("--n_initial_prefs", "4", "--max_prefs", "4", "--n_initial_epochs", "2", "--eval_episodes", "1")
    words = ("train_policy_with_preferences", DOT, *SMALL, *labels, "--million_timesteps", "5", "--run_name", "a")
    with terminal(tmp_path / "a", columns=150, command=tuple(command(tmp_path, *words))) as screen:
        screen.read_until(lambda: LINK.search(screen.seen.decode()))
        found = LINK.search(screen.seen.decode())
        assert found
        client = Client(Address(found[1], int(found[2])))
        assert client.post("/api/login", {"token": found[3]})[0] == 200

        def labelled() -> bool:
            for lease in client.post("/api/next", {"n": 1})[1].get("leases", ()):
                client.answer(lease, "left", lease["token"])
            return len(answers(tmp_path / "a")) == 4

        screen.read_until(labelled)
        client.connection.close()
        screen.read_until(lambda: steps_with_a_return(tmp_path / "a"))
        screen.mark = len(screen.seen)
        screen.wait_for("Training the policy")
        screen.press("\x03")
        assert screen.ended() == 130
    line = screen.seen.decode()
    assert "true reward" not in line and "evaluation " not in line
    more = str((policy_steps(tmp_path / "a") + 100) / 1e6)
    assert "true episode reward" in here(tmp_path, "--resume", str(tmp_path / "a"), "--million_timesteps", more).stdout


@pytest.mark.parametrize(("flags", "status"), [(("--max_prefs", "3"), 0), ((), 130)])
def test_stored_pairs_are_labelled_in_the_browser(tmp_path: Path, flags: tuple[str, ...], status: int) -> None:
    make_store(tmp_path / "kept", 0)
    with closing(PrefDB.open(tmp_path / "kept" / "prefs.db")) as db, db.transaction() as rows:
        for seed in range(6):
            db.insert_segment(rows, segment(seed))
    words = (str(ROOT / "run.py"), "label", str(tmp_path / "kept"), "--ui", "web", "--web_port", "0", *flags)
    with PreloadedPopen([sys.executable, *words, "--labeller", "Ann"], stdout=subprocess.PIPE, text=True) as process:
        with logged_in(process) as client:
            assert client.get("/api/me")[1]["labeller"] == "Ann"
            answer(client, 3, process)
        if not flags:
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == status
    assert "3 more than at the start. Train on them with --load_prefs_dir" in output, output


def test_a_ctrl_c_amid_a_look_at_the_servers_process_does_not_let_its_end_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(frame: FrameType, event: str, what: Any) -> None:
        if (frame.f_code.co_name, event, getattr(what, "__name__", "")) == ("_internal_poll", "c_return", "acquire"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    monkeypatch.setattr(server, "CLOSE_SECONDS", 0.5)  # a second of patience in all
    with closing(PrefDB.open(make_store(tmp_path, 1))) as db:
        page = WebGatherer(db, tmp_path, PageConfig(web_port=0))
        with pytest.raises(KeyboardInterrupt):
            sys.setprofile(ctrl_c)
            page.drain()
        page.close()
    process: Any = page.server.process
    assert not alive(process.pid)
    process._waitpid_lock.release()  # so that Python can take note of the end
    process.wait()


def test_a_page_beside_a_run_leaves_the_runs_settings_and_words(tmp_path: Path) -> None:
    with closing(PrefDB.open(make_store(tmp_path, 1, {"goal": "9", "initial_labels": "5"}))) as db:
        queue = LabelQueue(db)
        queue.notices.beat("run", {"status": "Label 2 of 9", "line": "Gathering labels", "labels": 1})
        config = PageConfig(web_port=0, repeat_share=0.5)
        queue.notices.give_settings(config.settings(0, 0), keep=True)
        beside = WebGatherer(db, tmp_path, config, "label")
        with closing(beside):
            beside.tell("Waiting for the run to ask", {})
            assert [queue.notices.setting(key) for key in ("goal", "initial_labels", "repeat_share")] == [
                "9",
                "5",
                "0.5",
            ]
            assert page_status(queue, tmp_path, time.time())["trainer"] == "Gathering labels"
        assert page_status(queue, tmp_path, time.time())["ended"] == "", "for the run goes on"


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ("gather_initial_prefs", DOT, "--ui", "web", "--web_port", port, "--run_name", "a")
        result = here(tmp_path / "runs", *words, status=2)
        assert "choose another --web_port" in one_sentence(result.stderr)
        assert not (tmp_path / "runs").exists(), "nothing is made for a command that cannot work"
        make_store(tmp_path / "b", 2)
        result = here(None, "label", str(tmp_path / "b"), *words[2:-2], status=2)
        assert "choose another --web_port" in one_sentence(result.stderr)
        assert not (tmp_path / "b" / "web").exists()


def test_a_port_that_nobody_named_is_the_next_free_one_and_stays_the_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(PrefDB.open(make_store(tmp_path, 1))) as db:
        with ExitStack() as taken:
            with suppress(UserError):  # if it is taken already, all the better
                taken.enter_context(listen(port=DEFAULT_PORT))
            page = WebGatherer(db, tmp_path, PageConfig())
            page.close()
            port = page.server.address.port
            assert DEFAULT_PORT < port <= DEFAULT_PORT + NEXT_PORTS
            said = capsys.readouterr().out
            assert f"http://127.0.0.1:{port}/" in said and f"Port {DEFAULT_PORT} is taken" in said
        again = WebGatherer(db, tmp_path, PageConfig())
        again.close()
        assert again.server.address.port == port, "browsers look for the page there"
        assert "is taken" not in capsys.readouterr().out, "nobody has tried the usual one"
        (tmp_path / "web" / "address.json").write_text('{"port": 99999999}')
        WebGatherer(db, tmp_path, PageConfig()).close()


def test_what_can_be_no_host_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^cannot serve at ü+:0 \(.+\); choose another --web_port or --web_host\.$"):
        listen("ü" * 70, 0)


def test_what_troubles_the_server_is_told_once_by_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(PrefDB.open(make_store(tmp_path, 1))) as db:
        Notices(db).beat("server", {"trouble": "of an earlier run"})
        gatherer = WebGatherer(db, tmp_path, PageConfig(web_port=0))
        gatherer.server.close()  # it shall not beat meanwhile
        gatherer.tell("a", {})
        Notices(db).beat("server", {"trouble": "clips cannot be kept"})
        for status in "bcd":
            gatherer.tell(status, {})
        gatherer.fail("the a2c process failed: out of memory.")
        last = page_status(LabelQueue(db), tmp_path, time.time())
        assert last["trouble"] == "the run has stopped (the a2c process failed: out of memory); answers are kept"
        gatherer.close()
        last = page_status(LabelQueue(db), tmp_path, time.time())
        assert last["ended"] == "The run has stopped (the a2c process failed: out of memory). Every answer is kept."
    assert [record.getMessage() for record in caplog.records] == ["the label server says: clips cannot be kept"]


def test_settings_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.txt").write_text("Keep left.\n")
    settings = PageConfig(task="t", instructions=str(tmp_path / "words.txt"), web_true_reward=True).settings(9, 5)
    assert settings["instructions"] == "Keep left.\n" and settings["true_reward"] == "1" and settings["goal"] == "9"
    with closing(PrefDB.open(make_store(tmp_path, 1))) as db:
        for config in (PageConfig(task="Keep left", web_port=0), PageConfig(web_port=0)):
            Notices(db).give_settings(config.settings(1, 1), keep=False)
            WebGatherer(db, tmp_path, config).close()
        assert Notices(db).setting("task") == "Keep left", "whoever labels on is not told it again"
    said = capsys.readouterr().out
    assert re.search(r"Label in a browser: http://127\.0\.0\.1:\d+/#t=[0-9a-f]{32}\n", said)
    assert re.search(r"On another computer: ssh -N -L (\d+):127\.0\.0\.1:\1 ", said)
    assert Address("127.0.0.1", 8765).link("t", "https://label.example.org") == "https://label.example.org/#t=t"
    page = PageConfig("0.0.0.0", 9, web_true_reward=True, tour=False, task="t", overlap_share=0.5)
    again = tyro.cli(LabelConfig, args=["a", *page.flags()], use_underscores=True).page
    assert again == replace(page, task="") and PageConfig().flags() == []
    for origin in ("label.example.org", "https://label.example.org/", "ftp://label.example.org", "https://"):
        with pytest.raises(UserError, match="name it as https://HOST"):
            PageConfig(web_origin=origin).check()
    with pytest.raises(UserError, match="leave out :443"):
        PageConfig(web_origin="https://label.example.org:443").check()
    with pytest.raises(UserError, match="name a text file"):
        PageConfig(instructions=str(tmp_path)).settings(9, 5)


def test_the_last_full_episode_is_written_for_the_page_and_not_too_often(tmp_path: Path) -> None:
    episodes = EpisodeFile(tmp_path)
    for n_frames in (9, 5):
        frames = tuple(encode_frames(frame[None]) for frame in segment(0).frames()[:n_frames])
        episodes.offer(Episode(DOT, frames, -21.0, 15.0))
    episodes.close()
    with av.open(str(tmp_path / EPISODE)) as film:
        assert sum(1 for _ in film.decode(video=0)) == 9
    with closing(PrefDB.open(make_store(tmp_path / "run", 1))) as db:
        assert page_status(LabelQueue(db), tmp_path, time.time())["episode"]
        assert page_status(LabelQueue(db), tmp_path / "run", time.time())["episode"] is None
