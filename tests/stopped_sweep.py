"""`pri-rfed`, sent a signal while it sweeps: `python stopped_sweep.py SIGNAL POINTS -- ARGUMENTS OF PRI-RFED`.

Like a terminal's Ctrl-C, SIGINT goes to all processes of its group; any other signal goes to this one alone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pri_rfed.cli import main
from pri_rfed.experiment.sweep import SweepFolder

A_MOMENT = 0.002
"""Seconds until the signal: this process waits for the next results then. Whatever else runs on the machine, it comes
before this process does anything more with results that come later."""


def stop_after(number: signal.Signals, points: int) -> None:
    """Have this process sent the signal a moment after so many points were written."""
    append = SweepFolder.append
    written = 0

    def stop(*_: Any) -> None:
        if number is signal.SIGINT:
            os.killpg(os.getpgrp(), number)
        else:
            os.kill(os.getpid(), number)

    def watched(self: SweepFolder, *arguments: Any) -> None:
        nonlocal written
        append(self, *arguments)
        written += 1
        if written == points:
            signal.setitimer(signal.ITIMER_REAL, A_MOMENT)

    signal.signal(signal.SIGALRM, stop)
    SweepFolder.append = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    split = sys.argv.index("--")
    stop_after(signal.Signals[sys.argv[1]], int(sys.argv[2]))
    sys.argv[1:] = sys.argv[split + 1 :]
    main()
