"""BERT pretraining on Cloud TPU pods in JAX/Flax, from raw text to a trained model.

The verbs of the command line are functions of the same names::

    import bert_jax

    report = bert_jax.doctor()
    bert_jax.pretrain(bert_jax.load_config("configs/demo.yaml"))

Load a model once and call it repeatedly::

    model = bert_jax.load("runs/demo/run")
    model.fill_mask("returns a [MASK] of strings .")

Each public name is imported on first use. Importing the package alone loads no library, so that
data workers do not load JAX.
"""

import ast
import functools
import importlib
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.version import __version__

if TYPE_CHECKING:
    from bert_jax.config import RunConfig, dump_config, load_config, parse_config
    from bert_jax.corpus.run import ScoreResult
    from bert_jax.corpus.section import ScoreSection
    from bert_jax.data.dataset.cache import CacheSection
    from bert_jax.data.dataset.provenance import MixtureSection, Provenance
    from bert_jax.data.dataset.reader import Dataset, open_dataset
    from bert_jax.data.loader.mixing_section import MixingSection
    from bert_jax.data.loader.packing import PackingSection
    from bert_jax.data.loader.section import LoaderSection
    from bert_jax.data.rows.masking import MaskingSection
    from bert_jax.diagnostics.findings import DoctorReport, Finding
    from bert_jax.encoders.albert.section import (
        AlbertArchitecture,
        AlbertArchitectureChanges,
        AlbertSection,
    )
    from bert_jax.encoders.bert.section import (
        BertArchitecture,
        BertArchitectureChanges,
        BertSection,
    )
    from bert_jax.encoders.deberta.section import (
        DebertaArchitecture,
        DebertaArchitectureChanges,
        DebertaSection,
    )
    from bert_jax.encoders.distilbert.section import (
        DistilBertArchitecture,
        DistilBertArchitectureChanges,
        DistilBertSection,
    )
    from bert_jax.encoders.electra.section import (
        ElectraArchitecture,
        ElectraArchitectureChanges,
        ElectraSection,
    )
    from bert_jax.encoders.eurobert.section import (
        EuroBertArchitecture,
        EuroBertArchitectureChanges,
        EuroBertSection,
    )
    from bert_jax.encoders.modernbert.section import (
        ModernBertArchitecture,
        ModernBertArchitectureChanges,
        ModernBertSection,
    )
    from bert_jax.encoders.neobert.section import (
        NeoBertArchitecture,
        NeoBertArchitectureChanges,
        NeoBertSection,
    )
    from bert_jax.encoders.roberta.section import (
        RobertaArchitecture,
        RobertaArchitectureChanges,
        RobertaSection,
    )
    from bert_jax.errors import PeerLost, RunStopped, UserError
    from bert_jax.feature_extraction.extractor import TextFeatures
    from bert_jax.inference.fill_mask import Candidate, Filled
    from bert_jax.launch.section import LimitsSection, SubmitSection
    from bert_jax.loaded_model import LoadedModel, Ranked, load
    from bert_jax.model.architecture import EncoderArchitecture
    from bert_jax.model.section import Execution, HeadsSection, ModelSection
    from bert_jax.model.text_head import (
        CrossEncoderSection,
        PoolingSection,
        SparseHeadSection,
        TokenVectorsSection,
    )
    from bert_jax.objectives.sections import (
        BertObjectiveSection,
        CausalObjectiveSection,
        DistillObjectiveSection,
        ElectraObjectiveSection,
        GeneratorSection,
        RobertaObjectiveSection,
        SopObjectiveSection,
    )
    from bert_jax.optim.sections import FinetuneOptimizerSection, OptimizerSection
    from bert_jax.parallel.section import CompilationCacheSection, DistributedSection, MeshSection
    from bert_jax.pipelines.engines.beam import BeamSection
    from bert_jax.pipelines.section import (
        BoilerplateSection,
        CleaningSection,
        ContaminationSection,
        ExamplesSection,
        NearDuplicatesSection,
    )
    from bert_jax.pipelines.vocabulary.train import VocabSection
    from bert_jax.runs.evaluation import Evaluation
    from bert_jax.section import Section
    from bert_jax.tasks.choice import MultipleChoiceSection
    from bert_jax.tasks.embedding.section import EmbeddingLossSection, EmbeddingSection
    from bert_jax.tasks.glue.family import GlueSection
    from bert_jax.tasks.late_interaction.section import (
        LateInteractionLossSection,
        LateInteractionSection,
    )
    from bert_jax.tasks.rerank.section import RerankLossSection, RerankSection
    from bert_jax.tasks.section import FinetuneSection
    from bert_jax.tasks.sparse.section import SparseLossSection, SparseSection
    from bert_jax.tasks.squad.family import SquadSection
    from bert_jax.tasks.sweep_grid import SweepSection
    from bert_jax.tasks.table import TableSection
    from bert_jax.tasks.tokens.family import TokenClassificationSection
    from bert_jax.text import Tokenizer, load_tokenizer
    from bert_jax.train.evaluation_section import EvaluationSection, StopAtSection
    from bert_jax.train.loop import Outcome
    from bert_jax.train.sections import (
        BadStepsSection,
        CheckpointSection,
        EmaSection,
        ProfileSection,
        RampStage,
        WatchdogSection,
    )
    from bert_jax.verbs.average import average
    from bert_jax.verbs.demo import Demo, demo
    from bert_jax.verbs.doctor import doctor
    from bert_jax.verbs.evaluate import evaluate
    from bert_jax.verbs.examples import ExtraOutputs, examples
    from bert_jax.verbs.export import export
    from bert_jax.verbs.features import ExtractionResult, features
    from bert_jax.verbs.fill_mask import fill_mask
    from bert_jax.verbs.finetune import finetune
    from bert_jax.verbs.import_checkpoint import import_checkpoint
    from bert_jax.verbs.jobs import jobs
    from bert_jax.verbs.logs import logs
    from bert_jax.verbs.mine import MiningResult, mine
    from bert_jax.verbs.new import new
    from bert_jax.verbs.plan import plan
    from bert_jax.verbs.predict import Predictions, predict
    from bert_jax.verbs.pretrain import pretrain
    from bert_jax.verbs.report import write_report
    from bert_jax.verbs.score import score
    from bert_jax.verbs.status import status
    from bert_jax.verbs.stop import stop
    from bert_jax.verbs.submit import submit
    from bert_jax.verbs.vocab import vocab
    from bert_jax.verbs.watch import watch
    from bert_jax.workflows.pretraining_settings import MlperfSection, PhaseSection, TrainSection

# The verbs.
__all__ = ["average", "demo", "doctor", "evaluate", "examples", "export", "features", "fill_mask"]
__all__ += ["finetune", "import_checkpoint", "jobs", "logs", "mine", "new", "plan", "predict"]
__all__ += ["pretrain", "score", "status", "stop", "submit", "vocab", "watch", "write_report"]
# A configuration and its sections.
__all__ += ["RunConfig", "Section", "dump_config", "load_config", "parse_config"]
__all__ += ["AlbertArchitecture", "AlbertArchitectureChanges", "AlbertSection"]
__all__ += ["BertArchitecture", "BertArchitectureChanges", "BertSection", "EncoderArchitecture"]
__all__ += ["DebertaArchitecture", "DebertaArchitectureChanges", "DebertaSection"]
__all__ += ["DistilBertArchitecture", "DistilBertArchitectureChanges", "DistilBertSection"]
__all__ += ["EuroBertArchitecture", "EuroBertArchitectureChanges", "EuroBertSection"]
__all__ += ["NeoBertArchitecture", "NeoBertArchitectureChanges", "NeoBertSection"]
__all__ += ["ElectraArchitecture", "ElectraArchitectureChanges", "ElectraSection"]
__all__ += ["ElectraObjectiveSection", "GeneratorSection"]
__all__ += ["ModernBertArchitecture", "ModernBertArchitectureChanges", "ModernBertSection"]
__all__ += ["RobertaArchitecture", "RobertaArchitectureChanges", "RobertaSection"]
__all__ += ["BadStepsSection", "BeamSection", "BoilerplateSection"]
__all__ += ["CacheSection", "CheckpointSection", "CleaningSection", "CompilationCacheSection"]
__all__ += ["ContaminationSection", "DistributedSection", "EvaluationSection", "ExamplesSection"]
__all__ += ["Execution", "FinetuneOptimizerSection", "FinetuneSection", "GlueSection"]
__all__ += ["CrossEncoderSection", "EmbeddingLossSection", "EmbeddingSection", "PoolingSection"]
__all__ += ["LateInteractionLossSection", "LateInteractionSection", "TokenVectorsSection"]
__all__ += ["RerankLossSection", "RerankSection"]
__all__ += ["SparseHeadSection", "SparseLossSection", "SparseSection"]
__all__ += ["HeadsSection", "LimitsSection", "LoaderSection"]
__all__ += ["MaskingSection", "MeshSection", "MixingSection", "MixtureSection"]
__all__ += ["MlperfSection", "ModelSection", "MultipleChoiceSection", "NearDuplicatesSection"]
__all__ += ["BertObjectiveSection", "EmaSection", "StopAtSection"]
__all__ += ["CausalObjectiveSection", "DistillObjectiveSection", "RobertaObjectiveSection"]
__all__ += ["SopObjectiveSection"]
__all__ += ["OptimizerSection", "PackingSection", "PhaseSection", "ProfileSection", "RampStage"]
__all__ += ["ScoreSection", "SquadSection", "SubmitSection", "SweepSection", "TableSection"]
__all__ += ["TokenClassificationSection", "TrainSection", "VocabSection", "WatchdogSection"]
# Functions that load a model, a tokenizer or a dataset.
__all__ += ["load", "load_tokenizer", "open_dataset"]
# Arguments, results and errors of verbs.
__all__ += ["Candidate", "Dataset", "Demo", "DoctorReport", "Evaluation", "ExtraOutputs"]
__all__ += ["ExtractionResult", "Filled", "Finding", "LoadedModel", "MiningResult", "Outcome"]
__all__ += ["PeerLost", "Predictions", "Provenance", "Ranked", "RunStopped", "ScoreResult"]
__all__ += ["TextFeatures", "Tokenizer", "UserError"]
__all__ += ["__version__"]


@functools.cache
def _modules() -> dict[str, str]:
    """Returns the module of each public name, parsed from the `TYPE_CHECKING` imports above."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {each.name: str(node.module) for node in imports for each in node.names}


def __getattr__(name: str) -> Any:
    """Imports and returns a public name on its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_modules()[name]), name)
    if isinstance(found, types.FunctionType):  # the command line has checked its arguments
        from bert_jax.arguments import checked

        found = checked(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Returns the public names, without the imports of this module."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
