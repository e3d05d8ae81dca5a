"""The page and the screens have the same keys, from one table."""

from __future__ import annotations

import json
import re

from drlhp.label_server.app import STATIC
from drlhp.screens.keys import HELP, HINTS, KEYS_HELP, LINES, PAGE_KEYS, TABLE, TERMINAL_KEYS, WINDOW_KEYS

SYMBOLS = {"←": "arrowleft", "→": "arrowright", "↑": "arrowup", "↓": "arrowdown", "space": " "}


def page_key(name: str) -> str:
    """A key as the page names it in words -> a KeyboardEvent's `key`, in lower case."""
    return SYMBOLS.get(name.lower(), name.lower())


def test_the_page_has_the_keys_of_the_table() -> None:
    source = (STATIC / "keys.js").read_text()
    found = re.search(r"const KEYS = (\{.*?\});", source, re.DOTALL)
    assert found is not None and json.loads(found[1]) == PAGE_KEYS


def test_the_pages_help_and_buttons_name_the_keys_of_the_table() -> None:
    html = (STATIC / "index.html").read_text()
    (table,) = re.findall(r'id="help-dialog".*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    named = {PAGE_KEYS[page_key(key)] for key in re.findall(r"<kbd>(.+?)</kbd>", table)}
    assert named == set(PAGE_KEYS.values()) - {"help"}, "every action is in the help, which needs not name itself"
    (tour,) = re.findall(r'id="tour".*?</section>', html, re.DOTALL)
    practised = {PAGE_KEYS[page_key(key)] for key in re.findall(r"<kbd>(.+?)</kbd>", tour) if key != "Esc"}
    assert practised == {"left", "right"}
    buttons = re.findall(r'data-(?:do|choice)="(\w+)" aria-keyshortcuts="(.+?)"', html)
    assert len(buttons) == 12
    for action, keys in buttons:
        assert {PAGE_KEYS[page_key(key)] for key in keys.split()} == {action}


def test_every_action_has_a_key_on_every_screen_and_a_row_in_the_help() -> None:
    actions = {action for row in TABLE for action in row.actions}
    assert set(TERMINAL_KEYS.values()) == actions
    assert set(WINDOW_KEYS.values()) == actions - {"close"}, "the window has its own button"
    assert set(PAGE_KEYS.values()) == actions - {"escape", "close"}, "the page is closed like any other"
    for row in TABLE:
        assert any(row.keys in line and row.words in line for line in HELP)


def test_the_short_lines_name_the_keys_of_the_table() -> None:
    words = {"left": "left", "right": "right", "equal": "equal", "incomparable": "can't tell", "undo": "undo"}
    for keys, said in HINTS:
        for key in keys.split("/"):
            assert words.get(PAGE_KEYS[page_key(key)], "all keys") == said
    for word in KEYS_HELP.split(", "):
        key = word.split()[0].lower()
        assert LINES["" if key == "enter" else key] == PAGE_KEYS[key]
