"""How the program ended: its exit code, and what ended it."""

from __future__ import annotations

from ddp_ladder_instrument.not_measured import one_line


class ProgramEnd:
    """The end of the program: by the script itself, an exception, or a limit of the measurement (``ended_by``).

    after_training: it failed, but only after the limit, or after all loops that made steps.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self.ended_by = "script"
        self.exception: str | None = None
        self.after_training = False

    def note(self, error: BaseException | None) -> None:
        """Note the error that ends the program."""
        self.exit_code = exit_code(error)
        if error is not None and not isinstance(error, SystemExit):
            self.ended_by = "exception"
            self.exception = one_line(error)


def exit_code(error: BaseException | None) -> int:
    """Return the exit code that python would end with; 130 for Ctrl-C, as shells show it."""
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
