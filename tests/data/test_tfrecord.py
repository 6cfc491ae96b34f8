import tempfile
from pathlib import Path

import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.google_bert.tfrecord import RecordFile, frame, scan_records
from tests.project import refuses
from tests.tensorflow_alone import tf

RECORDS = [b"", b"a", b"\x00" * 300, bytes(range(256)) * 40]


def write(path: Path, records: list[bytes] = RECORDS) -> epath.Path:
    path.write_bytes(b"".join(map(frame, records)))
    return epath.Path(path)


@given(records=st.lists(st.binary(max_size=200), max_size=6))
@settings(deadline=None, max_examples=25)
def test_tensorflow_writes_and_reads_the_same_bytes(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        theirs = Path(directory) / "theirs"
        with tf.io.TFRecordWriter(str(theirs)) as writer:
            for record in records:
                writer.write(record)
        ours = write(Path(directory) / "ours", records)
        assert theirs.read_bytes() == ours.read_bytes()
        assert [r.payload for r in scan_records(epath.Path(theirs))] == records
        assert list(tf.data.TFRecordDataset(str(ours)).as_numpy_iterator()) == records


@pytest.mark.parametrize("keep", [1, 11, 12, 15, 16 + 11, 16 + 16, 16 + 17 + 200])
def test_a_truncated_file_is_named_with_the_record(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.tfrecord")
    path.write_bytes(path.read_bytes()[:keep])
    number = 1 if keep < 16 else 2 if keep < 33 else 3
    with refuses("tfrecord.cut_short", place=f"{path}: record {number}"):
        list(scan_records(path))


@given(at=st.integers(0, 16 * 4 + 300 + 10240), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=60)
def test_a_flipped_bit_anywhere_is_found(at: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory) / "a.tfrecord")
        content = bytearray(path.read_bytes())
        content[at] ^= 1 << bit
        path.write_bytes(bytes(content))
        with refuses("tfrecord.checksum") as caught:
            list(scan_records(path))
        assert caught.value.place in {f"{path}: record {n}" for n in range(1, 5)}


def test_other_formats_are_named(tmp_path: Path) -> None:
    packed = epath.Path(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(str(packed), "GZIP") as writer:
        writer.write(b"a")
    with refuses("tfrecord.gzip", place=packed):
        list(scan_records(packed))
    with refuses("file.missing", place=tmp_path / "none"):
        list(scan_records(epath.Path(tmp_path / "none")))


def test_a_record_changed_after_the_scan_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord")
    offset = list(scan_records(path))[2].offset
    content = bytearray(path.read_bytes())
    content[offset + 50] ^= 1
    path.write_bytes(bytes(content))
    with refuses("tfrecord.checksum", place=f"{path}: record 3", part="bytes"):
        RecordFile(path).read(offset, number=3)
