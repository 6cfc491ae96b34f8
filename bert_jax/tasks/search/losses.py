"""Losses of search, as functions of the encoded texts of a whole batch.

Shape suffixes: B rows, N texts of a row, W width of a vector, C candidates. Text 0 of a row is the
anchor, text 1 its positive, and later texts are hard negatives. Rows of weight 0 are padding.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.cross_entropy import soft_target_loss
from bert_jax.model.pooling import unit_length
from bert_jax.parallel.sharding_rules import constrain

Compare: TypeAlias = Callable[[Array, Array], Array]  # see `VectorHead.compare`
_NEVER = -1e9  # logit of a candidate that is not a negative


def info_nce(
    vectors_BN: Float[Array, "rows texts ..."],
    texts_BN: Int[Array, "rows texts"],
    weights_B: Float[Array, "rows"],
    *,
    compare: Compare,
    scale: Array | float,
    symmetric: bool = False,
) -> Float[Array, ""]:
    """Returns the mean cross-entropy of each anchor's positive among all candidates of the batch.

    The candidates are the positives and hard negatives of all rows, on all devices and hosts. A
    candidate is no negative of an anchor if it is known to fit: its text is the anchor's or its
    positive's, or it is a positive of an equal anchor. With `symmetric`, the loss is the mean of
    this and of the loss with anchors and positives exchanged.

    Source: arXiv 1807.03748; `MultipleNegativesRankingLoss` and
    `MultipleNegativesSymmetricRankingLoss` in sentence-transformers.

    Args:
        vectors_BN: results of `VectorHead` for the texts.
        texts_BN: number of each text; equal texts have equal numbers.
        weights_B: 1 for a row, 0 for padding.
        compare: see `VectorHead.compare`.
        scale: factor of the similarities, 1/temperature.
        symmetric: whether positives also choose among anchors.
    """
    loss = _one_direction(vectors_BN, texts_BN, weights_B, compare, scale)
    if not symmetric:
        return loss
    exchanged = vectors_BN[:, 1::-1], texts_BN[:, 1::-1]
    return (loss + _one_direction(*exchanged, weights_B, compare, scale)) / 2


def _one_direction(
    vectors_BN: Array, texts_BN: Array, weights_B: Array, compare: Compare, scale: Array | float
) -> Array:
    rows, texts, *shape = vectors_BN.shape
    rest = ["rest"] * len(shape)
    anchors_B = constrain(vectors_BN[:, 0], "batch", *rest)
    # Every device compares its anchors with the candidates of all devices.
    candidates_C = constrain(vectors_BN[:, 1:].reshape(-1, *shape), "rest", *rest)
    found_BC = scale * compare(anchors_B, candidates_C)
    numbers_C = texts_BN[:, 1:].reshape(-1)
    of_row_C = jnp.repeat(jnp.arange(rows), texts - 1)
    is_positive_C = jnp.arange(len(numbers_C)) % (texts - 1) == 0
    own_BC = is_positive_C & (of_row_C == jnp.arange(rows)[:, None])
    fits_BC = (
        (numbers_C == texts_BN[:, :1])
        | (numbers_C == texts_BN[:, 1:2])
        | (is_positive_C & (texts_BN[of_row_C, 0] == texts_BN[:, :1]))
    )
    compared_BC = own_BC | (~fits_BC & (weights_B[of_row_C] > 0))
    compared_BC = constrain(compared_BC, "batch", "rest")
    losses_B = jax.nn.logsumexp(jnp.where(compared_BC, found_BC, _NEVER), axis=1)
    losses_B -= jnp.where(own_BC, found_BC, 0).sum(axis=1)
    return _mean(losses_B, weights_B)


def flops(
    vectors_BNV: Float[Array, "rows texts pieces"], weights_B: Float[Array, "rows"]
) -> Float[Array, ""]:
    """Returns the sum over all pieces of the squared mean weight of the piece.

    Source: arXiv 2004.05665; `FlopsLoss` in sentence-transformers.
    """
    sums_V = jnp.einsum("bnv,b->v", vectors_BNV, weights_B, precision=jax.lax.Precision.HIGHEST)
    return jnp.square(sums_V / jnp.maximum(weights_B.sum() * vectors_BNV.shape[1], 1)).sum()


def cosent(
    vectors_B2W: Float[Array, "rows 2 width"],
    scores_B: Float[Array, "rows"],
    weights_B: Float[Array, "rows"],
    *,
    scale: float,
) -> Float[Array, ""]:
    """Returns log(1 + Σ exp(scale · (cos_i − cos_j))) over all pairs with score_i < score_j.

    Source: https://kexue.fm/archives/8847; `CoSENTLoss` in sentence-transformers.
    """
    cosines_B = scale * cosines(vectors_B2W)
    rows, columns = (constrain(scores_B, axis) for axis in ("batch", "rest"))
    weighted = (weights_B[:, None] > 0) & (weights_B > 0)
    compared_BB = constrain((rows[:, None] < columns) & weighted, "batch", "rest")
    differences_BB = constrain(cosines_B, "batch")[:, None] - constrain(cosines_B, "rest")
    found_BB = jnp.where(compared_BB, differences_BB, _NEVER)
    return jnp.logaddexp(0.0, jax.nn.logsumexp(found_BB))


def cosine_regression(
    vectors_B2W: Float[Array, "rows 2 width"],
    scores_B: Float[Array, "rows"],
    weights_B: Float[Array, "rows"],
) -> Float[Array, ""]:
    """Returns the mean squared difference of cosine and score.

    Source: arXiv 1908.10084, section 3; `CosineSimilarityLoss` in sentence-transformers.
    """
    return _mean(jnp.square(cosines(vectors_B2W) - scores_B), weights_B)


def margin_mse(
    vectors_BN: Float[Array, "rows texts ..."],
    teacher_BP: Float[Array, "rows passages"],
    weights_B: Float[Array, "rows"],
    *,
    compare: Compare,
) -> Float[Array, ""]:
    """Returns the mean squared difference of the model's and a teacher's margins.

    A margin is the similarity of an anchor and its positive, minus that of the anchor and one of
    its negatives. `teacher_BP` are a teacher's scores of the anchor with each of these passages.

    Source: arXiv 2010.02666; `MarginMSELoss` in sentence-transformers.
    """
    differences_BP = _own(vectors_BN, compare) - teacher_BP
    squares_BP = jnp.square(differences_BP[:, :1] - differences_BP[:, 1:])
    return _mean(squares_BP.mean(axis=1), weights_B)


def kl(
    vectors_BN: Float[Array, "rows texts ..."],
    teacher_BP: Float[Array, "rows passages"],
    weights_B: Float[Array, "rows"],
    *,
    compare: Compare,
    temperature: float,
    teacher_temperature: float,
) -> Float[Array, ""]:
    """Returns T² · KL(softmax(teacher's scores / teacher's T) ‖ softmax(similarities / T)).

    The softmax is over the passages of an anchor, see `margin_mse`. The result is a mean over rows.

    Source: arXiv 2010.11386; `DistillKLDivLoss` in sentence-transformers.
    """
    logits_BP = teacher_BP * (temperature / teacher_temperature)
    losses_B = soft_target_loss(_own(vectors_BN, compare), logits_BP, temperature=temperature)
    return _mean(losses_B, weights_B)


def _own(vectors_BN: Array, compare: Compare) -> Array:
    """Returns the similarities of each row's anchor with the other texts of the row, [B, N − 1]."""
    return jax.vmap(lambda own_N: compare(own_N[:1], own_N[1:])[0])(vectors_BN)


def regression(
    vectors_BW: Float[Array, "rows width"],
    teacher_BW: Float[Array, "rows width"],
    weights_B: Float[Array, "rows"],
) -> Float[Array, ""]:
    """Returns the mean squared difference of the numbers of vectors and of a teacher's vectors.

    Source: arXiv 2004.09813; `MSELoss` in sentence-transformers.
    """
    return _mean(jnp.square(vectors_BW - teacher_BW).mean(axis=1), weights_B)


def _mean(losses_B: Array, weights_B: Array) -> Array:
    return (losses_B * weights_B).sum() / jnp.maximum(weights_B.sum(), 1)


def cosines(vectors_B2W: Float[Array, "rows 2 width"]) -> Float[Array, "rows"]:
    """Returns the cosine of the two vectors of each row."""
    units = unit_length(vectors_B2W)
    return (units[:, 0] * units[:, 1]).sum(axis=-1)


def truncated(
    vectors_BNW: Float[Array, "rows texts width"], width: int, *, normalize: bool
) -> Float[Array, "rows texts shorter"]:
    """Returns the first `width` numbers of every vector, again of length 1 with `normalize`.

    Source: arXiv 2205.13147; `MatryoshkaLoss` in sentence-transformers adds the losses of several
    widths.
    """
    shorter = vectors_BNW[..., :width]
    return unit_length(shorter) if normalize else shorter
