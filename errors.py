"""What the user can mend."""


class UserError(Exception):
    """Something the user can mend; the message is one sentence that says how."""
