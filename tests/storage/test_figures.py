"""Figures of a run in a bucket: what is sent grows as they do."""

from tensorboardX.proto.event_pb2 import Event

from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.train.writer import RunWriter, read_metrics
from tests.storage.cloud import Cloud

REPORTS = 400


def test_each_figure_is_sent_once(cloud: Cloud) -> None:
    run = cloud.make_bucket() / "run"
    cloud.proxy.reset()
    writer = RunWriter(run, resume_step=0)
    for step in range(1, REPORTS + 1):
        writer.write("train", step, {"loss": 1 / step, "learning_rate": 1e-4})
        if step % 20 == 0:  # a checkpoint
            writer.flush()
    writer.close()
    assert [line["step"] for line in read_metrics(run)] == list(range(1, REPORTS + 1))
    sizes = {
        name: sum(path.stat().length for path in (run / name).iterdir())
        for name in ("metrics", "tensorboard")
    }
    pieces = REPORTS // 20
    # A few hundred bytes of each request are its own.
    assert cloud.proxy.uploaded.total() < sum(sizes.values()) + 2 * pieces * 500
    uploads = sum(count for name, count in cloud.proxy.requests.items() if name.startswith("POST"))
    assert uploads == 2 * pieces


def test_tensorboard_finds_one_curve_in_its_files_in_order(cloud: Cloud) -> None:
    run = cloud.make_bucket() / "run"
    for first, last in ((0, 6), (4, 8)):
        writer = RunWriter(run, resume_step=first)
        for step in range(first + 1, last + 1):
            writer.write("train", step, {"loss": float(step)})
            if step % 2 == 0:
                writer.flush()
        writer.close()
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4, 5, 6, 7, 8]
    steps, resumed = [], []
    for path in sorted((run / "tensorboard").iterdir(), key=lambda path: path.name):
        for record in scan_records(path):
            event = Event.FromString(record.payload)
            if event.session_log.status == event.session_log.START:
                resumed.append(event.step)  # what was shown of it and later steps is dropped
            steps += [event.step for value in event.summary.value if value.tag == "train/loss"]
    assert sorted(steps) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 8]
    assert 5 in resumed
