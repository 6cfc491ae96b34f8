"""Text heads: how a model turns a text, or a pair, into what a search compares. Needs no JAX.

A kind of text head has its settings here, and one file in each layer that it takes part in:
`bert_jax.model` (what it computes), `bert_jax.tasks` (data, loss and evaluation) and
`bert_jax.interop` (files of sentence-transformers). Everything else asks `HeadsSection.text_head`.
"""

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import pydantic

from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.section import Section

Pool = Literal["mean", "cls", "last"]


class TextHeadSection(Section):
    """The settings of a trained text head.

    Every use of the model follows them: training, evaluation, inference and exports.
    """

    title: ClassVar[str]
    """Name of the model's results in messages."""
    if TYPE_CHECKING:  # each kind has the setting in its own order
        max_length: int | None
        """Longest text, or pair of texts, in tokens."""

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters that only this head has, with their widths."""
        return {}


class TextSize(NamedTuple):
    """The number of tokens of a text. Shorter texts are filled up with the mask."""

    least: int
    most: int
    seen: bool = True  # whether other tokens attend to the masks


class VectorHeadSection(TextHeadSection):
    """The settings of a text head that encodes every text by itself."""

    default_prefix: str = ""
    """Text before every text that is neither query nor passage."""
    query_prefix: str = ""
    """Text before every query, such as "query: "."""
    passage_prefix: str = ""
    """Text before every passage, such as "passage: "."""
    max_length: int | None = pydantic.Field(default=None, ge=4)
    """Longest text in tokens, special tokens included, if `max_length` is not given. null: the
    model's positions, at most 512."""

    def width(self, architecture: EncoderArchitecture) -> int:
        """Returns the numbers in a vector of a text, or of one of its tokens."""
        raise NotImplementedError

    def size(self, limit: int, *, query: bool) -> TextSize:
        """Returns the size of a query or of another text. `limit`: longest text in tokens."""
        del query
        return TextSize(0, limit)


class PoolingSection(VectorHeadSection):
    """How a trained model computes the vector of a text."""

    title = "sentence embeddings"

    pool: Pool = "mean"
    """How the states of a text become one vector. `mean`: mean over all tokens, special tokens
    included. `cls`: first token. `last`: last token that is not padding."""
    normalize: bool = True
    """Whether vectors have length 1. Their dot product is then the cosine."""
    projection: int | None = pydantic.Field(default=None, ge=1)
    """Width of a linear layer after pooling. null: no layer, vectors are as wide as the model."""
    dimensions: int | None = pydantic.Field(default=None, ge=1)
    """Numbers that remain of a vector, from its first. The others are cut off after normalisation,
    except in training. null: all remain."""
    similarity: Literal["cosine", "dot"] | None = None
    """How training and retrieval compare vectors. null: by the cosine with `normalize`, otherwise
    by the dot product."""
    temperature: float | None = pydantic.Field(default=None, gt=0)
    """Initial value of a learned temperature. null: the model has no such parameter."""

    def width(self, architecture: EncoderArchitecture) -> int:
        """Returns the numbers that remain of a vector."""
        width = self.projection or architecture.hidden_size
        return min(width, self.dimensions or width)

    @property
    def by_cosine(self) -> bool:
        """Whether vectors are compared by the cosine."""
        return self.normalize if self.similarity is None else self.similarity == "cosine"

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of the projection and of the learned temperature, with their widths."""
        found = {"dense": self.projection, "scale": self.temperature and 1}
        return {name: width for name, width in found.items() if width is not None}


class SparseHeadSection(VectorHeadSection):
    """How a trained model computes the sparse vector of a text: a weight for each piece.

    The weight is log(1 + ReLU(logit)), from the piece's largest logit of the MLM head over all
    tokens of the text, special tokens included (SPLADE, arXiv 2109.10086).
    """

    title = "sparse vectors"

    activation: Literal["relu", "log1p_relu"] = "relu"
    """Function of the logits before log(1 + x). `log1p_relu`: log(1 + ReLU(x)), for smaller weights
    (arXiv 2504.14839)."""
    top_k: int | None = pydantic.Field(default=None, ge=1)
    """Number of pieces that remain of a vector, with the largest weights, except in training. null:
    all pieces with a weight above 0."""

    def width(self, architecture: EncoderArchitecture) -> int:
        """Returns the number of pieces that can have a weight."""
        return architecture.vocab_size


class TokenVectorsSection(VectorHeadSection):
    """How a late-interaction model computes the vectors of a text's tokens.

    A passage's score for a query is the sum, over the query's tokens, of the largest cosine with a
    token of the passage (MaxSim, arXiv 2004.12832).
    """

    title = "late interaction"

    projection: int | None = pydantic.Field(default=128, ge=1)
    """Width of a linear layer without bias on every token. null: no layer, vectors are as wide as
    the model."""
    query_length: int | None = pydantic.Field(default=32, ge=4)
    """Longest query in tokens, special tokens and prefix included. null: as other texts."""
    query_expansion: Literal["attended", "unattended"] | None = None
    """Whether mask tokens fill up every query to `query_length`. They are compared with passages,
    like the query's own tokens. `attended`: all tokens attend to them. `unattended`: no token
    attends to them, as in ColBERT. null: queries are not filled up."""
    skipped: tuple[int, ...] = ()
    """Ids of pieces that have no vector in passages, such as punctuation."""

    def width(self, architecture: EncoderArchitecture) -> int:
        """Returns the numbers in the vector of a token."""
        return self.projection or architecture.hidden_size

    def size(self, limit: int, *, query: bool) -> TextSize:
        """Returns the size of a query or of another text. `limit`: longest text in tokens."""
        most = min(limit, self.query_length or limit) if query else limit
        expanded = query and self.query_expansion is not None
        return TextSize(most if expanded else 0, most, self.query_expansion != "unattended")

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of the projection, with their width."""
        return {} if self.projection is None else {"dense": self.projection}


class CrossEncoderSection(TextHeadSection):
    """How a cross-encoder scores a pair of texts, such as a query and a document.

    It has the parameters of a sequence classifier with one output.
    """

    title = "relevance scores of pairs"

    activation: Literal["sigmoid", "identity"] = "sigmoid"
    """Function of the output. `sigmoid`: scores are from 0 to 1. `identity`: scores are logits."""
    query_prefix: str = ""
    """Text before the first text of every pair."""
    max_length: int | None = pydantic.Field(default=None, ge=4)
    """Longest pair in tokens, special tokens included. null: the model's positions, at most
    512."""

    def score(self, outputs: np.ndarray) -> np.ndarray:
        """Returns the scores of outputs of the model."""
        if self.activation == "identity":
            return outputs
        from scipy.special import expit  # here, because it takes 0.1 s

        return expit(outputs)
