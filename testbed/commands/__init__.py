"""The commands of ``testbed``, one file each."""

from __future__ import annotations

import click

from testbed.commands.capture import capture
from testbed.commands.check import check
from testbed.commands.doctor import doctor
from testbed.commands.down import down
from testbed.commands.exec import exec_
from testbed.commands.explore import explore
from testbed.commands.gc import gc
from testbed.commands.logs import logs
from testbed.commands.run import run
from testbed.commands.status import status
from testbed.commands.up import up
from testbed.commands.validate import validate

__all__ = ["cli"]

EPILOG = """\b
Exit status: 0 pass, 1 fail, 2 unknown, 3 warnings under --strict, 4 this machine cannot run it,
64 usage or a bad file, 70 internal error, 130 interrupted after cleaning up (129 HUP, 143 TERM).
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="connex-testbed", prog_name="testbed")
def cli() -> None:
    """Put real Connex nodes on an emulated network, break things, and judge what was delivered."""


for command in (up, down, status, run, check, exec_, logs, capture, validate, explore, gc, doctor):
    cli.add_command(command)
