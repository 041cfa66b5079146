"""The ``testbed`` command, which sends itself a signal when it comes to a given step for the nth time.

    python stepped.py testbed.backends.wire:Wire.start 1 INT REACHED up pair

The step is told by touching the file REACHED first, so that a test knows that it was not missed.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any


def arm(step: str, count: int, number: signal.Signals, reached: Path) -> None:
    """Wrap the function or method ``module:qualified.name``."""
    module, _, path = step.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    static = vars(owner)[name]
    original = static.__func__ if isinstance(static, classmethod | staticmethod) else static
    left = count

    @functools.wraps(original)
    def step_taken(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            reached.touch()
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    setattr(owner, name, type(static)(step_taken) if static is not original else step_taken)


if __name__ == "__main__":
    where, which, name, file, *command = sys.argv[1:]
    arm(where, int(which), signal.Signals[f"SIG{name}"], Path(file))
    sys.argv[1:] = command
    from testbed.cli import main

    main()
