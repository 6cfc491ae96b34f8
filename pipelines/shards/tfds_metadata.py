"""Writes the metadata files of a dataset directory, for TFDS and for this package."""

import json

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME, Provenance
from bert_jax.data.dataset.schema import DATASET_NAME
from bert_jax.files.atomic import disk_errors, write_whole
from bert_jax.files.seal import sealed

_DESCRIPTION = (
    "Two-span BERT pretraining examples: [CLS] A [SEP] B [SEP], unmasked. Made by bert-jax."
)


def write_metadata(directory: epath.Path, provenance: Provenance) -> None:
    """Writes ``features.json``, ``dataset_info.json`` and, last, ``provenance.json``.

    Raises UserError if the disk is full.
    """
    import tensorflow_datasets as tfds  # the import takes a third of a second

    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(directory),
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        dataset_name=DATASET_NAME,
        filetype_suffix="array_record",
    )
    dtype = np.dtype(provenance.token_dtype)
    features = {
        "first_length": tfds.features.Scalar(np.int32),
        # Bytes are smaller: a tf.train.Example would store each id as a variable-length int64.
        "input_ids": tfds.features.Tensor(shape=(None,), dtype=dtype, encoding="bytes"),
        "next_sentence_label": tfds.features.Scalar(np.int32),
    }
    splits = [
        tfds.core.SplitInfo(
            name=name,
            shard_lengths=[shard.examples for shard in split.shards],
            num_bytes=sum(shard.bytes for shard in split.shards),
            filename_template=template,
        )
        for name, split in provenance.splits.items()
    ]
    with disk_errors(directory):
        tfds.folder_dataset.write_metadata(
            data_dir=directory,
            features=features,
            split_infos=splits,
            filename_template=template,
            version="1.0.0",
            description=_DESCRIPTION,
            check_data=False,  # the check needs TensorFlow
        )
    values = sealed(provenance.model_dump(mode="json"))
    write_whole(directory / PROVENANCE_NAME, json.dumps(values, indent=1) + "\n")
