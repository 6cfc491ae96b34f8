"""BERT pretraining on Cloud TPU pods in JAX/Flax, from raw text to a trained model.

The verbs of the command line are functions of the same names::

    import bert_jax

    report = bert_jax.doctor()
    filled = bert_jax.fill_mask("runs/demo/run", ["Returns a [MASK] of strings."])

Each is imported when it is first used: importing this package loads neither JAX nor any other
library, so that data workers may import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bert_jax.version import __version__

if TYPE_CHECKING:
    from bert_jax.verbs.demo import demo
    from bert_jax.verbs.doctor import doctor
    from bert_jax.verbs.evaluate import evaluate
    from bert_jax.verbs.examples import examples
    from bert_jax.verbs.export import export
    from bert_jax.verbs.features import features
    from bert_jax.verbs.fill_mask import fill_mask
    from bert_jax.verbs.finetune import finetune
    from bert_jax.verbs.import_checkpoint import import_checkpoint
    from bert_jax.verbs.jobs import jobs
    from bert_jax.verbs.logs import logs
    from bert_jax.verbs.plan import plan
    from bert_jax.verbs.predict import predict
    from bert_jax.verbs.pretrain import pretrain
    from bert_jax.verbs.replay import replay
    from bert_jax.verbs.status import status
    from bert_jax.verbs.stop import stop
    from bert_jax.verbs.submit import submit
    from bert_jax.verbs.vocab import vocab
    from bert_jax.verbs.watch import watch

__all__ = [
    "__version__",
    "demo",
    "doctor",
    "evaluate",
    "examples",
    "export",
    "features",
    "fill_mask",
    "finetune",
    "import_checkpoint",
    "jobs",
    "logs",
    "plan",
    "predict",
    "pretrain",
    "replay",
    "status",
    "stop",
    "submit",
    "vocab",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Returns the verb of that name, imported on first use (PEP 562)."""
    if name in __all__:
        verb = getattr(importlib.import_module(f"bert_jax.verbs.{name}"), name)
        globals()[name] = verb
        return verb
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
