"""Shared by all verbs: the group, common options, and the handling of errors."""

from __future__ import annotations

import collections
import functools
import os
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bert_jax.cli.exit_codes import AT_ONCE, exit_code
from bert_jax.cli.group import VerbGroup, exit_with
from bert_jax.errors import KeyedError, SettingError, UserError, first_line
from bert_jax.parallel.channel import current_channel, end_now
from bert_jax.places import DATASETS, MODELS
from bert_jax.verbs import starting_jax as starting_jax

if TYPE_CHECKING:
    from rich.console import Console

    from bert_jax.config import RunConfig
    from bert_jax.parallel.section import MeshSection

# These verbs print progress to standard output, all others to standard error.
_REPORTING_VERBS: Final = ("pretrain", "finetune", "score", "demo", "examples", "vocab")


class PathType(click.ParamType):
    """Type of path arguments. `verb` checks them before the verb runs."""

    name = "path"

    def __init__(self, *, hub: str = "") -> None:
        """`hub`: names on a hub with this prefix are also allowed. Default: no names on a hub."""
        self.hub = hub


PATH: Final = PathType()
DATA_PATH: Final = PathType(hub=DATASETS)
MODEL_PATH: Final = PathType(hub=MODELS)

config_argument = click.argument("config", type=PATH)
overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
checkpoint_option = click.option(
    "--checkpoint",
    default="auto",
    help="last, best, or a step. [default: best for a fine-tuned run, otherwise last]",
)
ema_option = click.option(
    "--ema", is_flag=True, help="Use the moving average of the parameters (train.ema)."
)
batch_size_option = click.option(
    "--batch-size", type=int, help="Rows per batch, at least 1. Does not change the scores."
)
data_change_option = click.option(
    "--allow-data-change",
    is_flag=True,
    help="Resume even if the data have changed since the run started.",
)
force_option = click.option("--force", is_flag=True, help="Replace existing output.")
platform_option = click.option(
    "--platform",
    type=click.Choice(["auto", "cpu", "gpu", "tpu"]),
    default="auto",
    show_default=True,
    help="Devices to use.",
)
mesh_option = click.option(
    "--mesh",
    "mesh_settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the section mesh. On each host of a pod: distributed.enabled=true.",
)


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="bert-jax")
def cli() -> None:
    """Pretrain BERT on Cloud TPU pods in JAX/Flax, from raw text to a trained model."""


def mesh_section(platform: str, settings: Sequence[str]) -> MeshSection:
    """Returns the section `mesh` for the options --platform and --mesh."""
    from bert_jax.config import parse_config

    overrides = [f"mesh.{setting}" for setting in settings]
    return parse_config({"mesh": {"platform": platform}}, overrides, source="--mesh").mesh


def first_process_only(function: Callable[..., None]) -> Callable[..., None]:
    """Adds --mesh to a verb that runs only in the first process. Other processes exit at once.

    The processes compare their commands but do not initialise distributed JAX, which would wait for
    all processes. The first process computes on the CPU, because a TPU slice with several hosts
    needs the processes of all hosts.
    """

    @mesh_option
    @functools.wraps(function)
    def run(*args: Any, mesh_settings: Sequence[str], **kwargs: Any) -> None:
        section = mesh_section("auto", mesh_settings).distributed
        ignored = [item for item in mesh_settings if not item.startswith("distributed.")]
        if ignored:
            raise UserError(
                "mesh.ignored",
                f"found {ignored[0]}, which has no effect here, allowed: settings of distributed",
                place="--mesh",
            )
        if section.enabled:
            from bert_jax.parallel.processes import is_first_alone
            from bert_jax.verbs.same_command import describe_command

            verb = str(click.get_current_context().info_name)
            if not is_first_alone(section, describe_command(verb, kwargs)):
                return
            import jax

            jax.config.update("jax_platforms", "cpu")
        function(*args, **kwargs)

    return run


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Adds --debug to a verb, and turns expected errors into one line and an exit code."""

    @debug_option
    @functools.wraps(function)
    def run(*args: Any, debug: bool, **kwargs: Any) -> None:
        from rich.console import Console

        from bert_jax.narration import speaking

        console = Console(stderr=function.__name__ not in _REPORTING_VERBS)
        try:
            with speaking(console):
                _check_paths(click.get_current_context())
                function(*args, **kwargs)
        except Exception as raised:
            from bert_jax.parallel.memory import out_of_memory

            error: Exception = raised
            if (full := out_of_memory(raised)) is not None:
                advice = " Use a smaller --batch-size." if "batch_size" in kwargs else ""
                error = full.followed_by(advice)
            elif isinstance(raised, AssertionError | RuntimeError) and _opens_devices(raised):
                from bert_jax.parallel.section import no_device

                platforms = f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS')}"
                error = no_device("auto", first_line(raised) if str(raised) else platforms)
            code = exit_code(error)
            if debug or code is None:
                if error is raised:
                    raise
                raise error from raised
            line = error.line() if isinstance(error, KeyedError) else " ".join(str(error).split())
            if current_channel() is not None or isinstance(error, AT_ONCE):
                end_now(code, line)  # exit handlers would wait for other processes
            exit_with(error, code, line)

    return run


def _opens_devices(error: Exception) -> bool:
    """Returns whether JAX raised an error while it opened the devices."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_globals.get("__name__") == "jax._src.xla_bridge"


def _check_paths(context: click.Context) -> None:
    """Raises UserError if an argument or option is an invalid path.

    Restores a directory that a killed process was replacing.
    """
    from bert_jax.files.atomic import restore_replaced
    from bert_jax.section import check_path

    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter.type, PathType) or value is None:
            continue
        for path in value if parameter.nargs == -1 else [value]:
            try:
                check_path(path, hub=parameter.type.hub)
            except SettingError as error:
                is_option = isinstance(parameter, click.Option)
                name = parameter.opts[0] if is_option else parameter.make_metavar(context)
                raise error.at(name) from None
            restore_replaced(path)


def read_config(config: str, overrides: Sequence[str]) -> RunConfig:
    """Returns a configuration. Shows a progress line, because imports take about a second."""
    from bert_jax.narration import current_console, doing, tell

    counts = collections.Counter(each.partition("=")[0] for each in overrides)
    for key, count in counts.items():
        if count > 1:
            tell(f"{key}: found {count} overrides; the last one is used")
    with doing(f"reading {config}", at_once=not current_console().stderr):
        from bert_jax.config import load_config

        loaded = load_config(config, overrides)
    if not loaded.mesh.distributed.enabled:
        from bert_jax.parallel.stop_signal import STOP

        STOP.release()
    return loaded


def require_run(run_dir: str, mesh: MeshSection | None = None) -> None:
    """Raises UserError if a directory is not a run. Does not import JAX."""
    # Several processes check after they have joined: an error here would leave the others waiting.
    if mesh is not None and mesh.distributed.enabled:
        return
    from etils import epath

    from bert_jax.runs.settings import read_settings

    read_settings(epath.Path(run_dir))


def progress_console() -> Console:
    """Returns the console for a verb's progress."""
    from bert_jax.narration import current_console

    return current_console()


def process_started() -> float:
    """Returns the time in seconds since 1970 at which the system started this process."""
    import psutil

    return psutil.Process().create_time()
