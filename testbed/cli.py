"""``testbed``: the command line, from its arguments to its exit status.

What a command needs is loaded after the signal handlers stand, so that Ctrl-C is answered properly from the first
moment on.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from testbed.exit_status import ExitStatus

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal that ends the command came while nothing had to be undone."""

    def __init__(self, number: int) -> None:
        self.number = number


_arrived: list[int] = []
"""Signals that came. Python drops an exception that is raised while it runs a finaliser, but not what is noted here."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)  # on its way out already
    _arrived.append(number)
    raise Interrupted(number)


def main() -> NoReturn:
    """Run the command line and exit with the status of what happened."""
    try:
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, _interrupt)
        status = status_of()
    except Interrupted as error:
        status = 128 + error.number
    if _arrived:
        status = 128 + _arrived[0]
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # all is done and said: nothing comes between that and the status
    sys.exit(status)


def status_of(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (this process's own, if none is given) and return its exit status."""
    import click

    from faults.document import DocumentError, DocumentErrors
    from testbed.commands import cli
    from testbed.errors import TestbedError

    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        with cli.make_context("testbed", given) as context:  # click's own main() makes every broken pipe a 1
            result = cli.invoke(context)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        return ExitStatus.INTERRUPTED
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitStatus.USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: say no more
        return 128 + signal.SIGPIPE
    except TestbedError as error:
        click.echo(f"testbed: {error}", err=True)
        return error.status
    except (DocumentError, DocumentErrors) as error:
        click.echo(str(error), err=True)  # as compilers say it, for editors to jump to
        return ExitStatus.USAGE
    except Exception as error:  # noqa: BLE001 - the last border: a defect is shown whole, with its own exit status
        if isinstance(error.__cause__, Interrupted):  # Python wraps what is raised while a class is being made
            return 128 + error.__cause__.number
        click.echo("testbed: internal error; this is a defect of the testbed, please report it:", err=True)
        traceback.print_exc()
        return ExitStatus.INTERNAL
    return int(result or ExitStatus.PASS)


if __name__ == "__main__":
    main()
