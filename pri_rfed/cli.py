"""The command `pri-rfed`."""

from __future__ import annotations

import os
import sys

import click
import typer

from pri_rfed.commands import audit, client, data, explore, ledger, privacy, report, reproduce, run, server, sweep

app = typer.Typer(
    name="pri-rfed",
    help="Private federated learning whose parameter lives on a Riemannian manifold.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("sweep")(sweep.sweep)
app.command("server")(server.server)
app.command("client")(client.client)
app.add_typer(server.keys_app, name="keys")
app.command("join", hidden=True)(client.join)
app.command("health", hidden=True)(client.health)
app.command("explore")(explore.explore)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("audit")(audit.audit)
app.command("account")(privacy.account)
app.command("calibrate")(privacy.calibrate)
app.add_typer(ledger.app, name="ledger")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line: a mistake is one line on stderr for each problem, exit code 2 and no traceback; Ctrl-C is
    exit code 130.

    With the environment variable PRIRFED_TRACEBACK set, the traceback is shown instead.
    """
    try:
        code = app(prog_name="pri-rfed", standalone_mode=False)  # so that typer leaves mistakes to this function
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        if error.message:  # else help was shown already
            error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        more = f" ({context.command_path} --help says more)" if context is not None else ""
        print(f"{error.format_message().rstrip('.')}{more}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("PRIRFED_TRACEBACK"):
            raise
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
