"""``testbed doctor``: whether this machine can run the testbed."""

from __future__ import annotations

from dataclasses import asdict

import click

from testbed.console import format_option, print_json, print_table, say
from testbed.exit_status import ExitStatus


@click.command()
@format_option
def doctor(output: str) -> int:
    """Try everything that the testbed needs, and say how to mend what is missing.

    The exit status is 4 if something is missing that is needed.
    """
    from testbed.backends.privilege import ensure_namespaces
    from testbed.doctor import examine, fit
    from testbed.errors import CannotRun

    try:
        ensure_namespaces()
    except CannotRun as error:
        say(str(error))  # looked at again below, beside everything else
    findings = examine()
    fine = fit(findings)
    if output == "json":
        print_json({"fit": fine, "findings": [asdict(finding) for finding in findings]})
    else:
        rows = [
            [finding.name, finding.state, finding.detail + (f" -> {finding.mend}" if finding.mend else "")]
            for finding in findings
        ]
        print_table(["what", "state", "found"], rows)
        say("this machine can run the testbed" if fine else "this machine cannot run the testbed")
    return ExitStatus.PASS if fine else ExitStatus.CANNOT_RUN
