"""`pri-rfed report`: a run or a sweep on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(folder: Annotated[Path, typer.Argument(help="Folder of a finished run, or of a sweep.")]) -> None:
    """Write report.html into the folder: one page that needs no network, to read, to print and to send."""
    from pri_rfed.experiment.report import write_report

    typer.echo(write_report(folder))
