"""progress.csv and evaluations.csv: what a reader gets of a file that is whole, half written, damaged or old."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from drlhp.errors import UserError
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS, STATISTICS, RunFile, read_rows

ROWS: dict[RunFile, dict[str, float | str]] = {
    PROGRESS: {"seconds": 1.5, "steps": 10, "episode_return": float("nan"), "labels": 3},
    EVALUATIONS: {"seconds": 1.5, "steps": 10, "labels": 3, "policy": "sampled", **dict.fromkeys(STATISTICS, 0.12345)},
}


def test_a_row_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n5,6\n7,8")
    assert read_rows(tmp_path / "a.csv") == [{"x": "1", "y": "2"}, {"x": "5", "y": "6"}]
    assert read_rows(tmp_path / "b.csv") == []


@pytest.mark.parametrize("table", ROWS)
def test_rows_are_read_as_they_were_written(table: RunFile, tmp_path: Path) -> None:
    assert table.read(tmp_path) == table.read_to_go_on(tmp_path) == []
    with closing(table.open(tmp_path)) as rows:
        rows.append({**ROWS[table], "of nobody": 1.0})
        assert len(table.read(tmp_path)) == 1, "while the file is open"
    with closing(table.open(tmp_path)) as rows:
        rows.append(ROWS[table])
    written = {
        column: str(round(value, 4) if isinstance(value, float) else value) for column, value in ROWS[table].items()
    }
    whole = dict.fromkeys(table.columns, "") | written
    assert table.read(tmp_path) == table.read_to_go_on(tmp_path) == [whole, whole]


@pytest.mark.parametrize("table", ROWS)
def test_what_a_crash_has_left_of_a_row_is_no_part_of_the_next(table: RunFile, tmp_path: Path) -> None:
    for _ in range(2):
        with closing(table.open(tmp_path)) as rows:
            rows.append(ROWS[table])
        with (tmp_path / table.name).open("a") as file:
            file.write("2.5,2")
    assert [row["steps"] for row in table.read_to_go_on(tmp_path)] == ["10", "10"]


@pytest.mark.parametrize("table", ROWS)
@pytest.mark.parametrize(
    "content", [b"\x00\xff\xfe\n\x80,1\n", b"a,b\n1,2\n", b"steps,seconds,capped\nx,y,z\n", b"a,b\n", b"\n"]
)
def test_a_file_of_something_else_is_said_to_be_damaged(content: bytes, table: RunFile, tmp_path: Path) -> None:
    (tmp_path / table.name).write_bytes(content)
    with pytest.raises(UserError, match=f"{table.name} is damaged; move it away"):
        table.read_to_go_on(tmp_path)
    table.read(tmp_path)  # for a report


def test_rows_about_steps_that_are_lost_are_removed_and_nothing_else(tmp_path: Path) -> None:
    PROGRESS.cut(tmp_path, "steps", 10)  # there is no file yet
    with closing(PROGRESS.open(tmp_path)) as rows:
        for steps in (0, 10, 20):
            rows.append({"steps": steps})
        with (tmp_path / PROGRESS.name).open("a") as file:
            file.write("2.5,2\n")  # what a crash has left
        rows.append({"steps": 30})
        for beyond, left in ((40, ["0", "10", "20", "30"]), (20, ["0", "10", "20"]), (15, ["0", "10"])):
            PROGRESS.cut(tmp_path, "steps", beyond)
            assert [row["steps"] for row in PROGRESS.read(tmp_path)] == left
        rows.append({"steps": 18})
    assert [row["steps"] for row in PROGRESS.read(tmp_path)] == ["0", "10", "18"]


def test_a_run_from_before_a_column_goes_on_without_it(tmp_path: Path) -> None:
    before = PROGRESS.columns[: PROGRESS.columns.index("validation_loss")]
    (tmp_path / PROGRESS.name).write_text(",".join(before) + "\n")
    with closing(PROGRESS.open(tmp_path)) as rows:
        rows.append(ROWS[PROGRESS])
    row, *others = PROGRESS.read_to_go_on(tmp_path)
    assert tuple(row) == before and row["steps"] == "10" and not others
