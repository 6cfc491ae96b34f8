"""Scores sentence features by cross-validated logistic regression."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.errors import UserError

FOLDS: Final = 5
ITERATIONS: Final = 1000
STEPS: Final = 100  # steps of L-BFGS


class ProbeScore(NamedTuple):
    """Cross-validated scores of a linear classifier: mean and standard deviation over the folds."""

    texts: int
    labels: tuple[str, ...]
    accuracy: float
    accuracy_deviation: float
    macro_f1: float
    macro_f1_deviation: float
    most_frequent_share: float  # accuracy of always predicting the most frequent label
    folds: tuple[float, ...]  # accuracy of each fold
    converged: bool
    mix: tuple[float, ...] | None  # weight of each state, learned on all texts

    def line(self) -> str:
        """Returns ``accuracy 81.2% ± 1.1% macro F1 81.0% ± 1.2% (…)``."""
        return (
            f"accuracy {self.accuracy:.1%} ± {self.accuracy_deviation:.1%} "
            f"macro F1 {self.macro_f1:.1%} ± {self.macro_f1_deviation:.1%} "
            f"({FOLDS} folds, {self.texts:,} texts, {len(self.labels)} labels; the most frequent "
            f"label alone gets {self.most_frequent_share:.1%})"
        )


def probe(vectors: np.ndarray, labels: Sequence[str], *, mix: bool = False) -> ProbeScore:
    """Scores logistic regression on features by stratified 5-fold cross-validation.

    Uses scikit-learn's defaults (L2, C = 1). `vectors` are float32 [texts, width] and are not
    standardised. If `mix` is set, `vectors` are [texts, states, D], and each fold learns the
    weights of the states on its training texts. Raises UserError if all labels are equal, or if a
    label has fewer texts than folds.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.model_selection import StratifiedKFold

    names, classes, share = _classes(labels)
    accuracies, f1s, iterations = [], [], []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(
        vectors[:, :1].reshape(len(vectors), -1), classes
    ):
        features = vectors
        if mix:
            weights = learn_mix(vectors[train], classes[train], classes=len(names))
            features = mixed(vectors, weights)
        model = LogisticRegression(max_iter=ITERATIONS)
        with warnings.catch_warnings():
            # `ProbeScore.converged` reports this for all folds.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(features[train], classes[train])
        iterations.append(int(np.max(model.n_iter_)))
        predicted = model.predict(features[test])
        accuracies.append(float(accuracy_score(classes[test], predicted)))
        f1s.append(float(f1_score(classes[test], predicted, average="macro")))
    final = learn_mix(vectors, classes, classes=len(names)) if mix else None
    return ProbeScore(
        texts=len(vectors),
        labels=names,
        accuracy=float(np.mean(accuracies)),
        accuracy_deviation=float(np.std(accuracies, ddof=1)),
        macro_f1=float(np.mean(f1s)),
        macro_f1_deviation=float(np.std(f1s, ddof=1)),
        most_frequent_share=share,
        folds=tuple(accuracies),
        converged=max(iterations) < ITERATIONS,
        mix=None if final is None else tuple(map(float, final)),
    )


def mixed(states: np.ndarray, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the weighted sum of states [texts, states, D], float32 [texts, D]."""
    return np.einsum("nsd,s->nd", states, np.asarray(weights, np.float32))


def _classes(labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray, float]:
    """Returns the sorted labels, the label index of each text, and the share of the top label."""
    names, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise UserError(
            "probe.labels",
            "found {found}, allowed: two or more different labels",
            place="--probe",
            found=names.tolist() or "none",
        )
    rarest = int(counts.argmin())
    if counts[rarest] < FOLDS:
        raise UserError(
            "probe.rare_label",
            'label "{label}" has {found} texts, allowed: {folds} or more, one for each fold',
            place="--probe",
            label=str(names[rarest]),
            found=int(counts[rarest]),
            folds=FOLDS,
        )
    return tuple(names.tolist()), classes, float(counts.max() / len(labels))


@functools.partial(jax.jit, static_argnames="classes")
def learn_mix(x_NSD: jax.Array, y_N: jax.Array, *, classes: int) -> jax.Array:
    """Returns the weight of each state, float32 [states], positive and summing to 1.

    The weights are the softmax of one parameter per state. Full-batch L-BFGS learns them jointly
    with a softmax classifier on the mixed features. The classifier has the L2 penalty of
    scikit-learn's logistic regression with C = 1. Source: equation 1 of Peters et al., arXiv
    1802.05365. The factor γ is omitted, because a linear classifier absorbs it. `x_NSD` are the
    states, float32 [texts, states, D]. `y_N` are the labels, int [texts], 0 to classes − 1.
    """
    count, depth, width = x_NSD.shape

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        mixed_ND = jnp.einsum("s,nsd->nd", jax.nn.softmax(params["mix"]), x_NSD)
        logits = mixed_ND @ params["kernel"] + params["bias"]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, y_N).mean()
        return nll + jnp.square(params["kernel"]).sum() / (2 * count)

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(_: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, state = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = optimizer.update(
            grad, state, params, value=value, grad=grad, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    start = {
        "mix": jnp.zeros(depth),
        "kernel": jnp.zeros((width, classes)),
        "bias": jnp.zeros(classes),
    }
    learned, _ = jax.lax.fori_loop(0, STEPS, step, (start, optimizer.init(start)))
    return jax.nn.softmax(learned["mix"])
