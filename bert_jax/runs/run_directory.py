"""Reads and writes a run directory: configuration, tokenizer and provenance."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, Literal, NamedTuple, TypeVar

from etils import epath

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.registry import model_section
from bert_jax.errors import UserError
from bert_jax.files.atomic import restore_replaced, write_whole
from bert_jax.files.remote import absolute, is_remote, require_place
from bert_jax.files.seal import read_sealed, sealed, sealed_yaml
from bert_jax.files.yaml_file import dump_yaml
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection, ModelSection
from bert_jax.narration import tell
from bert_jax.runs.settings import CONFIG, PROVENANCE, read_model, read_settings
from bert_jax.section import Section, need
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.validation import validate
from bert_jax.version import __version__

S = TypeVar("S", bound=Section)

TOKENIZER: Final = "tokenizer"
CHECKPOINTS: Final = "checkpoints"
EVALUATIONS: Final = "evaluations"
RunVerb = Literal["pretrain", "finetune"]

# Files that a run directory has only below itself, or only beside its config.yaml. In any other
# directory, they belong to a dataset, a tokenizer or another program's model.
_FOREIGN: Final = (
    *(PROVENANCE, "dataset_info.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"),
    *("config.json", "model.safetensors"),
)


class Run(NamedTuple):
    """The content of a run directory without checkpoints."""

    directory: epath.Path
    tokenizer: Tokenizer
    architecture: EncoderArchitecture
    model: ModelSection
    settings: Mapping[str, Any]  # content of config.yaml, not yet validated

    @property
    def heads(self) -> HeadsSection:
        """The heads on the run's encoder."""
        return self.model.heads

    @property
    def build(self) -> Callable[[], EncoderModel]:
        """Function that makes the run's model, for `define_model`."""
        return encoder_builder(self.architecture, self.model.execution.elsewhere(), self.heads)

    def of_phase(self, architecture: EncoderArchitecture, *, causal: bool) -> "Run":
        """Returns the run with the model of one of its phases. For `causal`, see `HeadsSection`."""
        heads = self.heads.model_copy(update={"causal": causal})
        model = self.model.model_copy(update={"heads": heads})
        return self._replace(architecture=architecture, model=model)

    @property
    def seed(self) -> int:
        """Seed of the whole run."""
        return self.settings.get("seed", 0)

    @property
    def is_fine_tuned(self) -> bool:
        """Whether `finetune` wrote the run."""
        return self.has("finetune")

    def has(self, key: str) -> bool:
        """Returns whether a section of the configuration is set."""
        return self.settings.get(key) is not None

    def section(self, key: str, kind: type[S], *, verb: str) -> S:
        """Returns a section for `verb`; raises UserError if the section is missing or invalid."""
        values = need(self.settings.get(key), key, verb)
        return validate(kind, values, source=str(self.directory / CONFIG), key=key)


def open_run(directory: epath.PathLike) -> Run:
    """Opens a run directory, local or gs://.

    Raises UserError if there is none, or its tokenizer is not the one with which it was written.
    """
    require_place(directory)
    restore_replaced(directory)
    root = epath.Path(directory)
    settings = read_settings(root)
    tokenizer = load_tokenizer(root / TOKENIZER)
    if read_run_provenance(root).get("tokenizer_hash", tokenizer.hash) != tokenizer.hash:
        changed = f"names another tokenizer than {root / TOKENIZER}. Restore a copy."
        raise UserError("run.tokenizer_changed", changed, place=root / PROVENANCE)
    section = read_model(root, settings)
    architecture = section.resolve(vocab_size=tokenizer.vocab_size)
    return Run(root, tokenizer, architecture, section, settings)


def is_run(directory: epath.PathLike) -> bool:
    """Returns whether this program has written a local directory as a run directory."""
    root = epath.Path(directory)
    return all((root / name).exists() for name in (CONFIG, PROVENANCE, TOKENIZER))


def names_of_import(directory: epath.PathLike) -> Sequence[str]:
    """Returns the names in a local run directory of an untrained run, or none for another one.

    A trained run has further names, so that `import --force` does not replace it.
    """
    names = (CONFIG, PROVENANCE, TOKENIZER, CHECKPOINTS, EVALUATIONS)
    return names if is_run(directory) else ()


def claim_run(
    run_dir: str, *, verb: RunVerb, architecture: EncoderArchitecture, tokenizer: Tokenizer
) -> epath.Path:
    """Returns the run directory; creates it if it is missing.

    Raises UserError if the directory cannot be created, contains a run of another verb,
    architecture or tokenizer, or is a dataset, a tokenizer or another program's model.
    """
    restore_replaced(run_dir)
    root = epath.Path(run_dir)
    try:
        # Before config.yaml, which another process of the job writes before provenance.json.
        foreign = [name for name in _FOREIGN if (root / name).exists()]
        if foreign and not (root / CONFIG).exists():
            raise UserError(
                "run.not_a_run", f"{root} has {foreign[0]}. Use a new path.", place="run_dir"
            )
        if not (root / CONFIG).exists():
            # A copy of an outer directory would include the run, and so would its removal.
            for above in () if is_remote(root) else epath.Path(absolute(str(root))).parents:
                dataset = (above / PROVENANCE).exists() and (above / "dataset_info.json").exists()
                if dataset or is_run(above):
                    raise UserError(
                        "run.nested", f"{root} is inside {above}. Use another.", place="run_dir"
                    )
            if files := [each.name for each in root.glob("[!.]*") if each.is_file()]:
                tell(f"run_dir: {root} has other files, such as {min(files)}")
        else:
            run = open_run(root)
            _same_verb(run, verb)
            _same_model(run, architecture, tokenizer)
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot write to {root} ({error.strerror or str(error)})"
        raise UserError("run.unwritable", reason, place="run_dir") from error
    return root


def write_run(
    root: epath.Path,
    settings: Mapping[str, Any],
    *,
    run_dir: str,
    execution: Execution,
    heads: HeadsSection,
    architecture: EncoderArchitecture,
    tokenizer: Tokenizer,
    origin: Mapping[str, Any],
) -> None:
    """Writes config.yaml, tokenizer/ and provenance.json.

    `settings` is the configuration as plain values. `origin` describes the origin of the
    parameters: datasets, another run, or an import. Raises UserError if a file cannot be written.
    """
    spelled_out = model_section(
        architecture, pieces=tokenizer.vocab_size, execution=execution, heads=heads
    )
    resolved = {**settings, "run_dir": run_dir, "model": spelled_out.model_dump(mode="json")}
    tokenizer.save(root / TOKENIZER)
    write_whole(root / CONFIG, sealed_yaml(dump_yaml(resolved)).encode())
    provenance = sealed(_provenance(tokenizer, origin))
    write_whole(root / PROVENANCE, json.dumps(provenance, indent=2).encode())


def read_run_provenance(root: epath.Path) -> dict[str, Any]:
    """Returns a run's provenance.json, or ``{}`` if it is missing.

    Raises UserError if the file was changed.
    """
    return read_sealed(root / PROVENANCE) if (root / PROVENANCE).exists() else {}


def _same_verb(run: Run, verb: RunVerb) -> None:
    """Raises UserError if `verb` cannot resume the run. Pretraining can resume an imported run."""
    if run.is_fine_tuned != (verb == "finetune"):
        wrote = "finetune" if run.is_fine_tuned else "pretrain" if run.has("train") else "import"
        found = f"{run.directory} is a run of `bert-jax {wrote}`. Use a new directory."
        raise UserError("run.other_verb", found, place="run_dir")


def _same_model(run: Run, architecture: EncoderArchitecture, tokenizer: Tokenizer) -> None:
    if run.tokenizer.hash != tokenizer.hash:
        differs = f"not the tokenizer of {run.directory}. Use that, or a new run_dir."
        raise UserError("run.other_tokenizer", differs, place="tokenizer")
    if run.architecture.kind != architecture.kind:
        raise _other_model(run, "model.kind", architecture.kind, run.architecture.kind)
    for name in type(architecture).model_fields:
        was, now = getattr(run.architecture, name), getattr(architecture, name)
        if was != now:
            raise _other_model(run, f"model.architecture.{name}", now, was)


def _other_model(run: Run, key: str, found: object, expected: object) -> UserError:
    return UserError(
        "run.other_model",
        f"found {found}, but the run has {expected}. Use {expected}, or a new run_dir.",
        place=key,
    )


def _provenance(tokenizer: Tokenizer, origin: Mapping[str, Any]) -> dict[str, Any]:
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    return {
        "tokenizer_hash": tokenizer.hash,
        **origin,
        "bert_jax": __version__,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
    }
