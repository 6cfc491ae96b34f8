"""The group of all verbs: help in the order of a workflow, and one-line usage errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import click

from bert_jax.errors import UserError, commas, did_you_mean

_STAGES: Final = {
    "Prepare data": ("new", "vocab", "examples"),
    "Train": ("pretrain", "finetune", "demo"),
    "Use": ("evaluate", "report", "predict", "score", "fill-mask", "features", "mine"),
    "Convert": ("import", "export", "average"),
    "Cloud": ("plan", "submit", "watch", "status", "logs", "stop", "jobs"),
    "Check": ("doctor",),
}
# The end of a verb's help: an example, without `bert-jax`, and the page about the verb.
_EXAMPLES: Final = {
    "new": ("new table", "finetune"),
    "vocab": ("vocab run.yaml", "tokenizers"),
    "examples": ("examples run.yaml --report", "data"),
    "pretrain": ("pretrain run.yaml seed=1 run_dir=runs/second", "tutorial"),
    "finetune": ("finetune table.yaml finetune.init_from=runs/mine --seeds 3", "finetune"),
    "demo": ("demo --dir runs/demo", "tutorial"),
    "evaluate": ("evaluate runs/mine --checkpoint best", "tutorial"),
    "report": ("report runs/a runs/b --output comparison.html", "howto/compare"),
    "predict": ("predict runs/table predictions.csv --input new.csv", "finetune"),
    "score": ("score score.yaml", "howto/label-a-crawl"),
    "fill-mask": ('fill-mask runs/mine "The [MASK] is open."', "tutorial"),
    "features": ("features runs/mine reviews.csv vectors.npz --column text", "embeddings"),
    "mine": ("mine runs/mine pairs.csv mined.parquet --margin 0.1", "embeddings"),
    "import": ("import google-bert/bert-base-uncased runs/bert", "interop"),
    "export": ("export runs/mine exported --to hf", "interop"),
    "average": ("average runs/mine google-bert/bert-base-uncased --output runs/merged", "interop"),
    "plan": ("plan run.yaml --topology v5litepod-16 --vocab-size 30522", "planning"),
    "submit": ("submit run.yaml --on v5litepod-16 --bucket gs://mine --dry-run", "submit"),
    "watch": ("watch mine --bucket gs://mine", "submit"),
    "status": ("status mine --bucket gs://mine", "submit"),
    "logs": ("logs mine --bucket gs://mine --follow", "submit"),
    "stop": ("stop mine --bucket gs://mine", "submit"),
    "jobs": ("jobs --bucket gs://mine", "submit"),
    "doctor": ("doctor run.yaml", "troubleshooting"),
}
# Sections whose settings are suggested first, by verb.
_SECTIONS: Final = {verb: (verb,) for verb in ("vocab", "examples", "finetune", "score")}
_PRETRAINING: Final = ("train", "optimizer", "model")
_SAME: Final = {"--topology": "--on", "--on": "--topology"}  # `plan` and `submit`


def exit_with(error: Exception, code: int, line: str) -> NoReturn:
    """Prints `line` to standard error, and raises SystemExit from `error`."""
    click.echo(f"bert-jax: {line}", err=True)
    raise SystemExit(code) from error


class Verb(click.Command):
    """A verb. For an unknown option, the error suggests an option or a setting."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes an example and the page of the documentation. Never breaks these lines."""
        example, page = _EXAMPLES[self.name or ""]
        formatter.write(f"\nExample: bert-jax {example}\nMore: docs/{page}.md\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line. If it is invalid, prints a one-line error and exits with 2."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.NoSuchOption as error:
            mistake = self._no_option(error.option_name, given)
        except click.UsageError as error:
            mistake = _describe(error, self.name or "")
        exit_with(mistake, 2, mistake.line())

    def _no_option(self, option: str, given: Sequence[str]) -> UserError:
        own = [each for each in self.params if isinstance(each, click.Option)]
        options = [name for each in own for name in each.opts]
        same = _SAME.get(option)
        near = f'; did you mean "{same}"?' if same in options else did_you_mean(option, options)
        if any(each.name == "overrides" for each in self.params):
            from bert_jax.config import RunConfig
            from bert_jax.validation import find_setting

            name = option.lstrip("-").replace("-", "_")
            first = _SECTIONS.get(self.name or "", _PRETRAINING)
            setting = find_setting(name, [RunConfig], first=first)
            if setting is not None and (not near or name == setting.rpartition(".")[2]):
                near = f"; did you mean {setting}={_value(option, given)}?"
            near = near or "; settings are key=value, such as seed=1"
        return UserError(
            "command_line.unknown_option",
            f"no such option, allowed: {commas(options)}{near}",
            place=option,
        )


class VerbGroup(click.Group):
    """All verbs."""

    command_class = Verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the verb with a name. For an unknown name, prints an error and exits with 2."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            verbs = [name for names in _STAGES.values() for name in names]
            mistake = UserError(
                "command_line.unknown_verb",
                f'found "{args[0]:.60}", allowed: '
                f"{commas(verbs)}{did_you_mean(args[0].lower(), verbs)}",
                place="verb",
            )
        exit_with(mistake, 2, mistake.line())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the options before the verb. If one is wrong, prints an error and exits with 2."""
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            mistake = _describe(error, "")
        exit_with(mistake, 2, mistake.line())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the verbs in the order of a workflow, with a heading for each stage."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        for stage, names in _STAGES.items():
            with formatter.section(stage):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit)) for name in names]
                )


def _describe(error: click.UsageError, verb: str) -> UserError:
    """Converts an error of click. `place`: the option or argument if known, else the verb."""
    place, text = verb or "bert-jax", error.format_message().removesuffix(".")
    see = " ".join(filter(None, ("bert-jax", verb, "--help")))
    if isinstance(error, click.BadParameter) and (param := error.param) is not None:
        place = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
        text = error.message.removesuffix(".")
        if isinstance(error, click.MissingParameter):
            return UserError("command_line.missing", f"missing. See `{see}`.", place=place)
    text = f"{text[:1].lower()}{text[1:]}"
    return UserError("command_line.usage", f"{text}. See `{see}`.", place=place)


def _value(option: str, given: Sequence[str]) -> str:
    """Returns the value of an option in a command line, or ``VALUE`` if it has no value."""
    for index, word in enumerate(given):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and index + 1 < len(given) and not given[index + 1].startswith("--"):
            return given[index + 1]
    return "VALUE"
