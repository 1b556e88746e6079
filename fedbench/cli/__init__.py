"""The command line: one module per command, torch imported inside the command."""

import errno
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import fedbench as package
from fedbench.cli import (
    attack,
    audit,
    bench,
    catalogue,
    export,
    leaderboard,
    plot,
    privacy,
    probe,
    reproduce,
    results,
    sweep,
    verify,
)
from fedbench.cli.terminal import abandon_stdout
from fedbench.core.errors import (
    MAX_LINE,
    FedbenchError,
    PluginError,
    one_line,
    refusal,
    show_warning,
)

# The disk of a redirected stdout is full, or over its quota or limit, or broken.
UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Interruptible(TyperGroup):
    """Group that raises `typer.Abort` after Ctrl-C, of which typer alone would say nothing."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments, for which typer imports pydantic."""
        with aborting():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Call the command whose arguments were read."""
        with aborting():
            return super().invoke(ctx)


@contextmanager
def aborting() -> Iterator[None]:
    """Make `typer.Abort` of a Ctrl-C inside the block."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Abort from error


app = typer.Typer(
    name="fedbench",
    cls=Interruptible,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Communication-efficient federated learning on trial: accuracy in the worst case over the "
    "attacks, bits really sent, and epsilon, side by side.",
)
app.command("attack", cls=attack.Command)(attack.attack)
app.command("sweep")(sweep.sweep)
app.command("results")(results.results)
app.command("reproduce")(reproduce.reproduce)
app.command("plot")(plot.plot)
app.add_typer(leaderboard.app, name="leaderboard")
app.add_typer(bench.app, name="bench")
app.command("privacy", cls=privacy.Command)(privacy.privacy)
app.command("audit", cls=audit.Command)(audit.audit)
app.add_typer(probe.app, name="probe")
app.command("export", cls=export.Command)(export.export)
app.command("verify")(verify.verify)
app.command("list")(catalogue.list_)
app.command("show")(catalogue.show)


def print_version(asked: bool) -> None:
    """Print the installed version and end, if that is asked."""
    if asked:
        from importlib.metadata import version

        print(f"fedbench {version('fedbench-toolkit')}")
        raise typer.Exit


@app.callback()
def fedbench(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Accept the options that stand before a command; each of them ends by itself."""


# typer's usage errors; which module they live in depends on its version
_UsageError: Any = typer.BadParameter.__mro__[1]


@cache
def _command() -> Any:
    """Build the commands once a process: that takes longer than to refuse a mistake."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what the user got wrong is one line on stderr and exit code 2."""
    if "Scenario" not in getattr(package, "__all__", ()):  # theirs is an empty file
        fail(
            "the package fedbench of another project was installed over this one; "
            "pip uninstall fedbench, then install fedbench-toolkit again"
        )
    if sys.stdout is None:
        fail("stdout must be open, got a closed one; use > /dev/null to see nothing")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a help without Unicode is better than none
    try:
        with warnings_in_one_line():
            code = _command()(arguments, prog_name="fedbench", standalone_mode=False)
            sys.stdout.flush()
    except FedbenchError as error:
        fail(str(error), most=2 * MAX_LINE if isinstance(error, PluginError) else MAX_LINE)
    except _UsageError as error:
        message = error.format_message().rstrip(".")
        option = getattr(getattr(error, "param", None), "opts", None)
        if option and hasattr(error.__cause__, "errors"):  # pydantic's, of newer versions of typer
            message = refusal(option[0], error.__cause__)
        elif error.ctx is not None and type(error) is not typer.BadParameter:
            suggested = "Possible" in message or "Did you mean" in message
            message += "" if suggested or not message else f"; see {error.ctx.command_path} --help"
        if message:
            fail(message)
        sys.exit(2)  # no arguments: the help was printed
    except (typer.Abort, KeyboardInterrupt):
        fail("stopped", 130)
    except BrokenPipeError:  # by the last flush: nobody reads on, as with head
        abandon_stdout()
    except OSError as error:
        if error.errno not in UNWRITTEN or error.filename is not None:
            raise
        abandon_stdout()
        fail(f"stdout must take what is printed, got {error.strerror}; free space or redirect it")
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings inside the block in one line, without a place in the source."""
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        yield


def fail(message: str, code: int = 2, most: int = MAX_LINE) -> None:
    """Print one line on stderr, without a traceback, and exit."""
    print(one_line(f"fedbench: {message}", most), file=sys.stderr)
    sys.exit(code)
