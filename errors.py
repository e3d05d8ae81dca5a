"""What the user can mend."""


class UserError(Exception):
    """Something the user can mend; the message is one sentence that says how."""


def reason_of(error: BaseException) -> str:
    """What somebody else's error says, to stand in a sentence: its first line, or its type if it says nothing."""
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
