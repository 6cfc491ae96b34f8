"""Losses and gradients equal the formulas of sentence-transformers, in PyTorch."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from bert_jax.model.embedding_head import dot_products
from bert_jax.tasks.search import losses

ROWS, WIDTH, SCALE = 7, 12, 20.0
Loss = Callable[[Any], Any]


def vectors_of(texts: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, texts, WIDTH)).astype(np.float32)


def numbers_of(texts: int) -> np.ndarray:
    """Returns a number for each text; all texts differ."""
    return np.arange(ROWS * texts, dtype=np.int32).reshape(ROWS, texts)


SCORES = jnp.asarray([0.1, 0.9, 0.5, 0.5, 0.0, 1.0, 0.3])
ONES = jnp.ones(ROWS)


def cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.normalize(x, dim=-1) @ functional.normalize(y, dim=-1).T


def ranking(found: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesRankingLoss."""
    candidates = torch.cat([found[:, at] for at in range(1, found.shape[1])])
    scores = SCALE * cosine(found[:, 0], candidates)
    return functional.cross_entropy(scores, torch.arange(len(found)))


def symmetric_ranking(found: torch.Tensor) -> torch.Tensor:
    """MultipleNegativesSymmetricRankingLoss."""
    scores = SCALE * cosine(found[:, 0], found[:, 1])
    target = torch.arange(len(found))
    forward, backward = (functional.cross_entropy(each, target) for each in (scores, scores.T))
    return (forward + backward) / 2


def cosent(found: torch.Tensor) -> torch.Tensor:
    """CoSENTLoss."""
    cosines = SCALE * functional.cosine_similarity(found[:, 0], found[:, 1])
    labels = torch.tensor(np.asarray(SCORES))
    differences = cosines[:, None] - cosines[None, :]
    differences = differences - (1 - (labels[:, None] < labels[None, :]).float()) * 1e12
    return torch.logsumexp(torch.cat([torch.zeros(1), differences.view(-1)]), dim=0)


def cosine_similarity(found: torch.Tensor) -> torch.Tensor:
    """CosineSimilarityLoss."""
    cosines = functional.cosine_similarity(found[:, 0], found[:, 1])
    return functional.mse_loss(cosines, torch.tensor(np.asarray(SCORES)))


def matryoshka(found: torch.Tensor) -> torch.Tensor:
    """MatryoshkaLoss of the ranking loss, with weights of 1."""
    return sum((ranking(found[..., :width]) for width in (12, 8, 3)), torch.zeros(()))


def ours(texts: int, **settings: Any) -> Loss:
    def loss(found: jax.Array) -> jax.Array:
        units = losses.truncated(found, WIDTH, normalize=True)
        return losses.info_nce(
            units,
            jnp.asarray(numbers_of(texts)),
            ONES,
            compare=dot_products,
            scale=SCALE,
            **settings,
        )

    return loss


def our_matryoshka(found: jax.Array) -> jax.Array:
    numbers = jnp.asarray(numbers_of(2))
    shorter = [losses.truncated(found, width, normalize=True) for width in (12, 8, 3)]
    return sum(
        losses.info_nce(each, numbers, ONES, compare=dot_products, scale=SCALE) for each in shorter
    )  # pyright: ignore[reportReturnType]


FORMULAS: dict[str, tuple[int, Loss, Loss]] = {
    "pairs": (2, ours(2), ranking),
    "hard negatives": (4, ours(4), ranking),
    "symmetric": (2, ours(2, symmetric=True), symmetric_ranking),
    "cosent": (2, lambda found: losses.cosent(found, SCORES, ONES, scale=SCALE), cosent),
    "cosine": (2, lambda found: losses.cosine_regression(found, SCORES, ONES), cosine_similarity),
    "matryoshka": (2, our_matryoshka, matryoshka),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_equal_the_formula(name: str) -> None:
    texts, loss, formula = FORMULAS[name]
    found = vectors_of(texts)
    value, gradient = jax.jit(jax.value_and_grad(loss))(found)
    leaf = torch.tensor(found, requires_grad=True)
    wanted = formula(leaf)
    wanted.backward()
    assert float(value) == pytest.approx(wanted.item(), rel=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["info_nce", "cosent", "cosine", "margin_mse", "kl", "mse"])
def test_padding_rows_change_nothing(name: str) -> None:
    """The last two rows are padding: their texts are candidates of no anchor."""
    weights = jnp.asarray([1.0, 1, 1, 1, 1, 0, 0])

    def loss(found: Any, rows: slice) -> Any:
        scores, ones = SCORES[rows], weights[rows]
        if name == "cosent":
            return losses.cosent(found[rows], scores, ones, scale=SCALE)
        if name == "cosine":
            return losses.cosine_regression(found[rows], scores, ones)
        teacher = jnp.asarray(vectors_of(3, seed=1))[rows, 0]
        if name == "mse":
            return losses.regression(found[rows, 0], teacher, ones)
        if name in ("margin_mse", "kl"):
            how = {"temperature": 2.0, "teacher_temperature": 0.5} if name == "kl" else {}
            loss = getattr(losses, name)
            return loss(found[rows], teacher[:, :2], ones, compare=dot_products, **how)
        numbers = jnp.asarray(numbers_of(3))[rows]
        return losses.info_nce(
            found[rows], numbers, ones, compare=dot_products, scale=1.0, symmetric=True
        )

    found = vectors_of(3)
    both = [
        jax.jit(jax.value_and_grad(functools.partial(loss, rows=rows)))(found)
        for rows in (slice(0, 7), slice(0, 5))
    ]
    np.testing.assert_allclose(both[0][0], both[1][0], rtol=1e-6)
    np.testing.assert_allclose(both[0][1], both[1][1], atol=1e-6)


def test_equal_texts_are_no_negatives_of_each_other() -> None:
    """A loop over anchors and candidates is the reference."""
    numbers = np.asarray(
        [
            [0, 1, 2],
            [0, 3, 4],  # the first row's anchor: its positive fits both rows
            [5, 1, 6],  # the first row's positive
            [1, 0, 7],  # the first row, exchanged
            [8, 9, 3],  # a negative here is a positive of the second row
            [10, 11, 12],
            [13, 14, 11],
        ],
        np.int32,
    )
    found = vectors_of(3)
    terms = []
    for row, (anchor, positive, _) in enumerate(numbers):
        logits = [float(found[row, 0] @ found[row, 1])]
        for other in range(ROWS):
            for place in (1, 2):
                text = numbers[other, place]
                fits = text in (anchor, positive)
                fits |= place == 1 and numbers[other, 0] == anchor
                if not fits:
                    logits.append(float(found[row, 0] @ found[other, place]))
        terms.append(np.logaddexp.reduce(logits) - logits[0])
    value = losses.info_nce(
        jnp.asarray(found), jnp.asarray(numbers), ONES, compare=dot_products, scale=1.0
    )
    assert float(value) == pytest.approx(np.mean(terms), rel=1e-5)
