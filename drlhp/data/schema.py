"""Defines the tables of a preference database, version by version; a new file passes through all versions.

Times are unix seconds (UTC). A choice and the left side are stored as segment ids, so that they do not depend on
the order in which the pair was passed.
"""

from __future__ import annotations

import contextlib
import sqlite3

APPLICATION_ID = 0x64726C70  # "drlp": distinguishes a store from other SQLite files

# comparison.segment_a and segment_b: as the pair was first asked.
VERSION_1 = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segment (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    length INTEGER NOT NULL,
    stack INTEGER NOT NULL,
    policy_step INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    fps REAL NOT NULL,
    layout TEXT NOT NULL,  -- JSON: name -> [dtype, shape], in the order in which the arrays follow each other
    arrays BLOB NOT NULL,  -- zstd of those arrays' bytes
    view BLOB              -- what people see, see pref_db.encode_view
);
CREATE TABLE comparison (
    id TEXT PRIMARY KEY,
    segment_a TEXT NOT NULL REFERENCES segment (id),
    segment_b TEXT NOT NULL REFERENCES segment (id)
);
CREATE TABLE answer (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id TEXT NOT NULL UNIQUE,
    comparison_id TEXT NOT NULL REFERENCES comparison (id),
    teacher TEXT NOT NULL,
    choice TEXT NOT NULL CHECK (choice IN ('preferred', 'equal', 'incomparable', 'retracted')),
    preferred TEXT REFERENCES segment (id),
    shown_left TEXT NOT NULL REFERENCES segment (id),
    shown_at REAL,
    answered_at REAL NOT NULL,
    supersedes INTEGER REFERENCES answer (seq),
    CHECK ((choice = 'preferred') = (preferred IS NOT NULL))
);
CREATE INDEX answer_supersedes ON answer (supersedes);
CREATE VIEW effective_answer AS
    SELECT * FROM answer WHERE choice <> 'retracted'
    AND NOT EXISTS (SELECT 1 FROM answer AS newer WHERE newer.supersedes = answer.seq);
CREATE TRIGGER answer_no_update BEFORE UPDATE ON answer
    BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
CREATE TRIGGER answer_no_delete BEFORE DELETE ON answer
    BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
PRAGMA user_version = 1;
"""

# For people who label: the queue, the leases, the heartbeats and the settings. See drlhp.labelling.
VERSION_2 = """
ALTER TABLE answer ADD COLUMN labeller TEXT;     -- a person's nickname
ALTER TABLE answer ADD COLUMN lease_token TEXT;
ALTER TABLE answer ADD COLUMN watched_ms INTEGER;
ALTER TABLE answer ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;
ALTER TABLE answer ADD COLUMN speed REAL NOT NULL DEFAULT 1;   -- at which the clips were played; 1 is real time
ALTER TABLE answer ADD COLUMN late INTEGER NOT NULL DEFAULT 0; -- the lease was over when it came
ALTER TABLE answer ADD COLUMN flag INTEGER NOT NULL DEFAULT 0; -- the labeller wants it looked at
ALTER TABLE answer ADD COLUMN note TEXT NOT NULL DEFAULT '';
CREATE INDEX answer_comparison ON answer (comparison_id);
CREATE INDEX answer_labeller ON answer (labeller, seq);
CREATE TABLE query (
    comparison_id TEXT PRIMARY KEY REFERENCES comparison (id),
    kind TEXT NOT NULL CHECK (kind IN ('normal', 'repeat', 'overlap', 'gold')),
    need INTEGER NOT NULL CHECK (need >= 1),  -- labellers who should answer
    priority REAL NOT NULL,                   -- the highest is asked first
    reason TEXT NOT NULL,
    policy_step INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ready', 'withdrawn', 'done')),
    created_at REAL NOT NULL
);
CREATE INDEX query_order ON query (state, priority DESC, policy_step DESC);
CREATE TABLE lease (
    number INTEGER PRIMARY KEY,  -- the order in which they were granted
    token TEXT NOT NULL UNIQUE,
    comparison_id TEXT NOT NULL REFERENCES comparison (id),
    labeller TEXT NOT NULL,
    flip INTEGER NOT NULL,       -- comparison.segment_b is on the left
    kind TEXT NOT NULL,          -- the query's, but 'repeat' where this labeller is asked again
    granted_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    closed_at REAL               -- answered, given back or found expired
);
CREATE INDEX lease_comparison ON lease (comparison_id, labeller);
CREATE INDEX lease_open ON lease (expires_at) WHERE closed_at IS NULL;
CREATE TABLE alive (who TEXT PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL);  -- who: kind:pid, state: JSON
CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version = 2;
"""
# A view may hold states, from which a clip is drawn when it is asked about.
VERSION_3 = """
PRAGMA user_version = 3;
"""
VERSIONS = (VERSION_1, VERSION_2, VERSION_3)
SCHEMA_VERSION = len(VERSIONS)


def migrate(db: sqlite3.Connection) -> None:
    """Migrates a file, or an empty one, to the newest version, all or nothing; several processes may try at once.

    Raises sqlite3.Error.
    """
    if _version(db) == SCHEMA_VERSION:
        return
    try:
        db.execute("BEGIN IMMEDIATE")
        for version in range(_version(db), SCHEMA_VERSION):  # read again: another process may have been first
            for statement in statements_of(VERSIONS[version]):
                db.execute(statement)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def statements_of(script: str) -> list[str]:
    """Returns the statements of a script; unlike `executescript`, the caller runs them in its own transaction."""
    statements, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements
