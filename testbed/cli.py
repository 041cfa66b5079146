"""``testbed``: the command line."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from faults.document import DocumentError, DocumentErrors
from testbed.commands.capture import capture
from testbed.commands.check import check
from testbed.commands.doctor import doctor
from testbed.commands.down import down
from testbed.commands.exec import exec_
from testbed.commands.gc import gc
from testbed.commands.logs import logs
from testbed.commands.run import run
from testbed.commands.status import status
from testbed.commands.up import up
from testbed.commands.validate import validate
from testbed.errors import TestbedError
from testbed.exit_status import ExitStatus

EPILOG = """\b
Exit status: 0 pass, 1 fail, 2 unknown, 3 warnings under --strict, 4 this machine cannot run it,
64 usage or a bad file, 70 internal error, 130 interrupted after cleaning up (129 HUP, 143 TERM).
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="connex-testbed", prog_name="testbed")
def cli() -> None:
    """Put real Connex nodes on an emulated network, break things, and judge what was delivered."""


for command in (up, down, status, run, check, exec_, logs, capture, validate, gc, doctor):
    cli.add_command(command)


class Interrupted(BaseException):
    """A signal that ends the command came while nothing had to be undone."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def main() -> NoReturn:
    """Run the command line and exit with the status of what happened."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _interrupt)
    sys.exit(status_of())


def status_of(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (this process's own, if none is given) and return its exit status."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        with cli.make_context("testbed", given) as context:  # click's own main() makes every broken pipe a 1
            result = cli.invoke(context)
        sys.stdout.flush()
    except Interrupted as error:
        return 128 + error.number
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
    except Exception:  # noqa: BLE001 - the last border: a defect is shown whole, with its own exit status
        click.echo("testbed: internal error; this is a defect of the testbed, please report it:", err=True)
        traceback.print_exc()
        return ExitStatus.INTERNAL
    return int(result or ExitStatus.PASS)


if __name__ == "__main__":
    main()
