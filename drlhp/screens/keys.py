"""The one table of keys: what a labeller presses, what it does, and how the screens and the page call it."""

from __future__ import annotations

from dataclasses import dataclass

from drlhp.data.comparison import CHOICES

ANSWERS = tuple(CHOICES)
WORDS = {"left": "Left", "right": "Right", "equal": "Equal", "incomparable": "Can't tell"}
PLAYING = ("pause", "back", "forward", "slower", "faster", "replay")
# Actions that are taken even if the pair is new or there is none, because they are no answers to it.
ALWAYS = ("undo", "help", "break", "gallery", "quality", "escape", "close")


@dataclass(frozen=True)
class Key:
    """A key by the names that each screen has for it.

    Args:
        window: pyglet's names of its symbols.
        terminal: the bytes that terminals send, as text.
        page: the `key` of a browser's KeyboardEvent, in lower case.
    """

    window: tuple[str, ...] = ()
    terminal: tuple[str, ...] = ()
    page: tuple[str, ...] = ()


def _arrow(name: str, letter: str) -> Key:
    return Key((name,), (f"\x1b[{letter}", f"\x1bO{letter}"), (f"arrow{name.lower()}",))


# Keys that are no letters; a letter has the same name everywhere, in upper and lower case.
KEYS = {
    "left arrow": _arrow("LEFT", "D"),
    "right arrow": _arrow("RIGHT", "C"),
    "up arrow": _arrow("UP", "A"),
    "down arrow": _arrow("DOWN", "B"),
    "Enter": Key(("ENTER", "RETURN", "NUM_ENTER"), ("\r", "\n"), ("enter",)),
    "backspace": Key(("BACKSPACE",), ("\x7f", "\b"), ("backspace",)),
    "space": Key(("SPACE",), (" ",), (" ",)),
    ",": Key(("COMMA",), (",",), (",",)),
    ".": Key(("PERIOD",), (".",), (".",)),
    "[": Key(("BRACKETLEFT",), ("[",), ("[",)),
    "]": Key(("BRACKETRIGHT",), ("]",), ("]",)),
    "?": Key(("SLASH", "QUESTION"), ("?",), ("?",)),
    "Home": Key(("HOME",), ("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), ("home",)),
    "Esc": Key(("ESCAPE",), ("\x1b",)),
    "Ctrl-D": Key((), ("\x04",)),
}


@dataclass(frozen=True)
class Row:
    """A row of the help.

    Args:
        keys: the keys in words.
        words: what they do.
        actions: action -> its keys, by their names in KEYS or as letters.
        beside: whether the row stands on the line of the row before.
    """

    keys: str
    words: str
    actions: dict[str, tuple[str, ...]]
    beside: bool = False


TABLE = (
    Row("L or left arrow", "the left clip is better", {"left": ("L", "left arrow")}),
    Row("R or right arrow", "the right clip is better", {"right": ("R", "right arrow")}),
    Row("E or up arrow", "equally good", {"equal": ("E", "up arrow")}),
    Row("Enter, down arrow", "can't tell", {"incomparable": ("Enter", "down arrow")}),
    Row("U or backspace", "undo, as often as you like", {"undo": ("U", "backspace")}),
    Row("space", "pause", {"pause": ("space",)}),
    Row(", and .", "one step back and on", {"back": (",",), "forward": (".",)}, beside=True),
    Row("[ and ]", "slower and faster", {"slower": ("[",), "faster": ("]",)}),
    Row("Home", "from the start", {"replay": ("Home",)}, beside=True),
    Row("S", "pass this pair on, to somebody else or for later", {"skip": ("S",)}),
    Row("F", "mark this pair, with a note if you like: Enter ends it", {"flag": ("F",)}),
    Row("G", "your answers, newest first, to look at again and change", {"gallery": ("G",)}),
    Row("Q", "how good the answers are", {"quality": ("Q",)}),
    Row("P", "take a break", {"break": ("P",)}),
    Row("H or ?", "this help", {"help": ("H", "?")}, beside=True),
    Row("T", "start training before all initial labels are given", {"start": ("T",)}),
    Row("Esc twice, Ctrl-D", "end the labelling; training goes on", {"escape": ("Esc",), "close": ("Ctrl-D",)}),
)


def _key(name: str) -> Key:
    return KEYS.get(name) or Key((name,), (name.lower(),), (name.lower(),))


def _by_key(screen: str) -> dict[str, str]:
    """Returns a screen's name of each key -> what it does."""
    return {
        name: action
        for row in TABLE
        for action, keys in row.actions.items()
        for key in keys
        for name in getattr(_key(key), screen)
    }


WINDOW_KEYS, TERMINAL_KEYS, PAGE_KEYS = _by_key("window"), _by_key("terminal"), _by_key("page")

# Windows that ask nothing have keys of their own.
EPISODE_KEYS = {"ESCAPE": "close", "Q": "close"}
STEPPING_KEYS = {
    **dict.fromkeys(["RIGHT", "ENTER", "RETURN", "NUM_ENTER"], "next"),
    **dict.fromkeys(["LEFT", "U", "BACKSPACE"], "previous"),
    **dict.fromkeys(["ESCAPE", "Q"], "close"),
}
STEPPING_KEYS_LINE = "→/Enter next  ·  ←/U back  ·  Esc close"

# What a labeller may type as a line, in place of a key.
LINES = {
    **{key.lower(): action for key, action in (("L", "left"), ("R", "right"), ("E", "equal"), ("U", "undo"))},
    **{action: action for action in ("left", "right", "equal", "undo", "start")},
    "": "incomparable",
}


def _help() -> tuple[str, ...]:
    """Returns the lines of the help, with the keys in a column."""
    lines: list[str] = []
    for row in TABLE:
        if row.beside:
            lines[-1] += f"      {row.keys}   {row.words}"
        else:
            lines.append(f"{row.keys:<19}{row.words}")
    return tuple(lines)


HELP = _help()
# The usual keys in one line, for the line under the clips.
HINTS = (
    ("L/←", "left"),
    ("R/→", "right"),
    ("E/↑", "equal"),
    ("Enter/↓", "can't tell"),
    ("U", "undo"),
    ("H", "all keys"),
)
KEYS_LINE = "  ".join(f"{keys} {words}" for keys, words in HINTS)
WIDE_KEYS_LINE = "  ·  ".join(f"{keys} {words}" for keys, words in HINTS)
SHORT_KEYS_LINE = "L R E Enter answer  U undo  H all keys"  # for a narrow terminal
KEYS_HELP = ", ".join(f"{keys.split('/')[0]} {words}" for keys, words in HINTS[:-1])
PAST_KEYS_LINE = "L R E Enter change it  ·  P back  ·  G {}"  # while an earlier answer is shown
