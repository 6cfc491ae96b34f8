"""Formats that only BERT has."""

from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.errors import UserError
from bert_jax.model.architecture import EncoderArchitecture


def require_bert(architecture: EncoderArchitecture) -> BertArchitecture:
    """Returns BERT's architecture. Raises UserError for another encoder."""
    if isinstance(architecture, BertArchitecture):
        return architecture
    raise UserError(
        "export.encoder",
        "found {found}, but this format is implemented only for bert",
        place="model.kind",
        found=architecture.kind,
    )
