"""A store in PostgreSQL: what only many people at once, or a lost connection, can go wrong with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drlhp.cli.exchange import export_command, import_command
from drlhp.data.address import Address
from drlhp.data.comparison import Choice
from drlhp.errors import UserError
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.labelling.test_queue import ENV_ID, LENGTH, pairs, submission
from tests.support import ROOT
from tests.support.commands import DOT, SYNC, TINY, UNEVALUATED, here, one_sentence, without_waits
from tests.support.labelling import Client, running
from tests.support.labelling import make_store as new_pairs
from tests.support.postgres import SECRET, PostgresServer, make_store

pytest.importorskip("psycopg")


@pytest.fixture
def path(tmp_path: Path, postgres: PostgresServer) -> Path:
    return make_store(tmp_path / "prefs.db", "postgres", ENV_ID, LENGTH)


def opened(path: Path) -> contextlib.closing[PrefDB]:
    return contextlib.closing(PrefDB.open(path))


# Many at once


def test_of_sixty_pairs_that_two_claim_at_once_none_is_given_twice(path: Path) -> None:
    with opened(path) as db:
        LabelQueue(db).submit(pairs(60))
    claimed: list[str] = []
    start = threading.Barrier(2)

    def claim(labeller: str) -> None:
        with opened(path) as db:
            queue = LabelQueue(db)
            start.wait()
            for n in range(1, 31):
                claimed.extend(lease.comparison_id for lease in queue.claim(labeller, n)[n - 1 :])

    people = [threading.Thread(target=claim, args=(name,)) for name in ("you", "me")]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert Counter(claimed) == Counter(pair.id for pair in pairs(60))


def test_an_answer_that_is_committed_late_is_not_passed_by(path: Path) -> None:
    a, *_, b = pairs(6)  # of four segments
    begun, second = threading.Event(), threading.Event()

    def late() -> None:
        with opened(path) as db, db.transaction():
            db.add_answer(a, Choice.A, teacher="late")
            begun.set()
            second.wait(1.0)  # With the lock the other one cannot store meanwhile.

    one = threading.Thread(target=late)
    one.start()
    begun.wait()
    with opened(path) as db:
        db.add_answer(b, Choice.B, teacher="early")
        seen = db.labels()
        second.set()
        one.join()
        read = [*seen, *db.labels(after=seen[-1].seq)]
    assert {label.comparison_id for label in read} == {a.id, b.id}


def test_a_new_store_finds_the_next_question_without_reading_whole_tables(path: Path) -> None:
    with opened(path) as db:
        queue = LabelQueue(db)
        queue.submit(pairs(100))

        def label(names: range) -> None:
            for number in names:
                (lease,) = queue.claim(f"p{number}")
                queue.claim(f"q{number}")  # which q keeps
                queue.answers.add(submission(lease, labeller=f"p{number}"))

        label(range(20))  # plans are made while there is hardly anything
        with db.transaction():
            label(range(20, 40))
            counts = "sum(seq_tup_read), sum(idx_tup_fetch), sum(CASE WHEN relname = 'lease' THEN n_tup_upd END)"
            ((whole, by_index, answers),) = db.read(f"SELECT {counts} FROM pg_stat_xact_user_tables")
        assert (whole + by_index) / answers < 400, "a few look-ups, and each pair that somebody holds a few times"


def test_a_part_that_fails_is_undone_with_the_whole(path: Path) -> None:
    with opened(path) as db:
        notices = LabelQueue(db).notices
        notices.set_setting("whole", "1")
        with pytest.raises(UserError, match="a part of the change failed"), db.transaction():
            notices.set_setting("whole", "2")
            with pytest.raises(ValueError), db.transaction():
                notices.set_setting("half", "done")
                raise ValueError
        assert (notices.setting("whole"), notices.setting("half")) == ("1", None)


def test_two_label_servers_on_one_store_lose_nothing_and_ask_nobody_twice(tmp_path: Path, postgres: object) -> None:
    from drlhp.data.postgres import join  # only with its package

    one, other = tmp_path / "one", tmp_path / "other"
    new_pairs(one, 48, {"repeat_share": "0", "overlap_share": "0"}, kind="postgres")
    join(other / "prefs.db", (one / "prefs.db").read_text())
    asked: list[str] = []
    acknowledged: list[str] = []

    def label(client: Client, name: str) -> None:
        while leases := client.next(2):
            for lease in leases:
                client_id = f"{name}-{lease['comparison_id'][:32]}"
                code, receipt = client.answer(lease, "left", client_id)
                assert code == 200 and receipt["status"] == "stored", receipt
                asked.append(lease["comparison_id"])
                acknowledged.append(client_id)

    with running(one) as first, running(other) as second:
        names = [f"p{number}" for number in range(8)]
        clients = [(first, second)[number % 2].client(name) for number, name in enumerate(names)]
        people = [threading.Thread(target=label, args=person) for person in zip(clients, names, strict=True)]
        for person in people:
            person.start()
        for person in people:
            person.join()
    assert len(asked) == len(set(asked)) == 48
    with opened(one / "prefs.db") as db:
        assert {row.client_id for row in db.answers()} == set(acknowledged)


# A database that goes away


def test_of_a_hundred_answers_amid_which_the_server_restarts_each_is_stored_once(
    tmp_path: Path, own_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_store(tmp_path / "prefs.db", "postgres", ENV_ID, LENGTH, address=own_server.address())
    with opened(path) as db:
        queue = LabelQueue(db)
        queue.submit(pairs(100))
        started: threading.Thread | None = None
        for number in range(100):
            (lease,) = queue.claim("me")
            if number == 50:
                own_server.stop()
                started = threading.Timer(2.0, own_server.start)
                started.start()
            assert queue.answers.add(submission(lease)).status in ("stored", "known")
        assert started is not None
        started.join()
        assert Counter(row.comparison_id for row in db.answers()) == Counter(pair.id for pair in pairs(100))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "does not answer; trying again" in said[0] and "nothing was lost" in said[1]


class CutAfter:
    """A connection that the server ends at a statement that begins so: before it is carried out, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: PostgresServer, statement: str, *, after: bool) -> None:
        import psycopg

        self.left, carry_out = 1, psycopg.Connection.execute

        def execute(connection: Any, query: Any, *rest: Any, **named: Any) -> Any:
            if not self.left or not str(query).startswith(statement):
                return carry_out(connection, query, *rest, **named)
            self.left -= 1
            if after:
                carry_out(connection, query, *rest, **named)
                carry_out(connection, "SELECT 1").fetchall()  # it is sent only now
            with contextlib.closing(server.connect()) as other:
                carry_out(other, "SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            carry_out(connection, "SELECT 1").fetchall()
            raise AssertionError("the connection still works")

        monkeypatch.setattr(psycopg.Connection, "execute", execute)


@pytest.mark.parametrize(
    ("statement", "after"), [("BEGIN", False), ("INSERT INTO answer", False), ("COMMIT", False), ("COMMIT", True)]
)
def test_what_a_lost_connection_interrupts_is_stored_once(
    path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, statement: str, after: bool
) -> None:
    with opened(path) as db:
        queue = LabelQueue(db)
        queue.submit(pairs(6))
        first, second = queue.claim("me", 2)
        CutAfter(monkeypatch, postgres, statement, after=after)
        queue.answers.add(submission(first))
        assert db.n_answers() == 1
        queue.answers.add(submission(second))
        CutAfter(monkeypatch, postgres, statement, after=after)
        db.add_answers([(pairs(6)[4], Choice.A), (pairs(6)[5], Choice.B)], teacher="program")
        assert db.n_answers() == 4
        CutAfter(monkeypatch, postgres, statement, after=after)
        assert queue.answers.undo("me") is not None
        assert db.n_answers() == 3, "one was taken back, and not two"


def test_a_database_that_stays_away_is_one_sentence(
    tmp_path: Path, own_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_store(tmp_path / "prefs.db", "postgres", ENV_ID, LENGTH, address=own_server.address())
    with contextlib.closing(PrefDB.open(path, patience=0.2)) as db:
        own_server.stop()
        with pytest.raises(UserError, match="has not answered for 0 seconds: start it again") as caught:
            db.n_labels()
    assert "\n" not in str(caught.value) and not capsys.readouterr().out


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


# The commands


def test_a_run_keeps_its_labels_there_and_goes_on_and_nobody_sees_the_password(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    run, words = tmp_path / "run", (DOT, "--synthetic_prefs", SYNC, *TINY, *UNEVALUATED)
    address = postgres.address(user="locked")
    here(tmp_path, "train_policy_with_preferences", *words, "--run_name", "run", "--store", address)
    with opened(run / "prefs.db") as db:
        assert db.n_labels() == 20 and db.store.look_seconds > 0
    here(None, "--resume", str(run), "--max_prefs", "24", "--million_timesteps", "0.0015")
    with opened(run / "prefs.db") as db:
        assert db.n_labels() == 24
    for n in ("26", "28"):  # the second time the folder is there
        oracle = ("--store", address, "--teacher", "oracle", "--max_prefs", n)
        assert f"{n} labels" in here(None, "label", str(tmp_path / "there"), *oracle).stdout
    other = here(None, "label", str(tmp_path / "there"), "--store", postgres.address(), "--teacher", "oracle", status=2)
    assert "has a store already; leave out --store" in one_sentence(other.stderr)
    assert Address.parse((tmp_path / "there" / "prefs.db").read_text()) == Address.parse(address)
    assert json.loads((run / "config.json").read_text())["config"]["store"] == str(Address.parse(address))
    for file in run.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file


def test_export_and_import_move_a_store_both_ways_with_the_same_ids(tmp_path: Path, postgres: PostgresServer) -> None:
    path = make_store(tmp_path / "first" / "prefs.db", "postgres", ENV_ID, LENGTH)
    with opened(path) as db:
        queue = LabelQueue(db)
        queue.submit(pairs(6))
        for lease in queue.claim("me", 4):
            queue.answers.add(submission(lease, note="50% ä?"))
        queue.answers.undo("me")
        held = contents(db)
    export_command([str(path.parent), "--output", str(tmp_path / "files")])
    with opened(tmp_path / "files" / "prefs.db") as db:
        assert db.store.look_seconds == 0 and contents(db) == held, "the backup has everything, leases too"
        assert LabelQueue(db).claim("me", 9) and db.last_seq_given() == 5
    import_command([str(tmp_path / "files"), "--output", str(tmp_path / "back"), "--store", postgres.address()])
    with opened(tmp_path / "back" / "prefs.db") as db:
        assert db.store.look_seconds > 0 and set(db.segment_ids()) == set(held["segments"])
        assert [answer[1:] for answer in held["answers"]] == [answer[1:] for answer in contents(db)["answers"]]
    assert [file.name for file in (tmp_path / "back").iterdir()] == ["prefs.db"]


def contents(db: PrefDB) -> dict[str, Any]:
    """What a store holds, as plain values."""
    answers = [(row.seq, row.client_id, row.comparison_id, row.choice, row.labeller, row.note) for row in db.answers()]
    return {
        "answers": answers,
        "labels": db.labels(),
        "segments": db.segment_ids(),
        "leases": db.read("SELECT token, comparison_id, labeller, flip, closed_at FROM lease ORDER BY number"),
        "queries": db.read("SELECT comparison_id, need, priority, state FROM query ORDER BY rowid"),
    }


# Bad input


@pytest.mark.parametrize(
    ("address", "about"),
    [
        ("postgresql://127.0.0.1:1/x", r"Connection refused\): check the address"),
        ("postgresql://me:hidden@127.0.0.1:1/x", "leave the password out of the address"),
        ("postgresql://127.0.0.1:1/x?sslpassword=hidden", "leave the password out of the address"),
        ("mysql://x/y", "looks like postgresql://USER@HOST/DATABASE"),
        ("postgresql://127.0.0.1/x?schema=Big", "a name of small letters"),
        ("", "must name a file or folder"),
    ],
)
def test_an_address_that_cannot_work_is_one_sentence(tmp_path: Path, address: str, about: str) -> None:
    words = ("gather_initial_prefs", DOT, "--synthetic_prefs", SYNC, "--store", address)
    done = here(tmp_path, *words, status=2)
    assert_one_sentence(done.stderr, about)
    assert "hidden" not in done.stderr + done.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_wrong_password_is_one_sentence(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if password:
        monkeypatch.setenv("PGPASSWORD", password)
    words = ("label", str(tmp_path / "there"), "--store", postgres.address(user="locked"), "--teacher", "oracle")
    assert_one_sentence(here(None, *words, status=2).stderr, "set PGPASSWORD to the password")
    assert not list(tmp_path.iterdir())


def test_a_schema_that_holds_something_else_is_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    path = make_store(tmp_path / "prefs.db", "postgres", ENV_ID, LENGTH)
    address = Address.parse(path.read_text())
    run = ("gather_initial_prefs", DOT, "--synthetic_prefs", SYNC, "--run_name", "run", "--store")
    assert_one_sentence(here(tmp_path, *run, str(address), status=2).stderr, "holds labels already")
    with contextlib.closing(postgres.connect()) as db:
        db.execute(f"UPDATE {address.schema}.meta SET value = '99' WHERE key = 'schema_version'")
    with pytest.raises(UserError, match=r"from a newer version .* update this program"):
        PrefDB.open(path)
    with contextlib.closing(postgres.connect()) as db:
        db.execute(f"DELETE FROM {address.schema}.meta")
    with pytest.raises(UserError, match="holds something else than labels"):
        PrefDB.open(path)
    empty = postgres.address()
    assert_one_sentence(here(None, "label", str(tmp_path / "x"), "--store", empty, status=2).stderr, "holds no labels")
    assert [file.name for file in tmp_path.iterdir()] == ["prefs.db"]


def test_without_the_package_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["psycopg"] = None
        from pref_db import PrefDB
        PrefDB.create("file.db", "Test-v0", 3).close()
        open("prefs.db", "w").write("postgresql://127.0.0.1:1/x")
        try:
            PrefDB.open("prefs.db")
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "UserError" in done.stdout and "pip install 'psycopg[binary]'" in done.stdout, done.stdout + done.stderr


def assert_one_sentence(text: str, about: str) -> None:
    assert re.search(about, one_sentence(without_waits(text))), text
