"""Metrics of a run in a bucket."""

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event

from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.files import bucket as client
from bert_jax.files import storage_retries
from bert_jax.train.agree_with_first_process import failure_of
from bert_jax.train.metrics_writer import RunWriter, read_metrics
from tests.storage.cloud import Cloud

REPORTS = 400


def test_metrics_upload_with_checkpoints_and_curves_once(cloud: Cloud) -> None:
    run = cloud.make_bucket() / "run"
    cloud.proxy.reset()
    writer = RunWriter(run, resume_step=0)
    for step in range(1, REPORTS + 1):
        writer.write("train", step, {"loss": 1 / step, "learning_rate": 1e-4})
        if step % 20 == 0:  # as at a checkpoint
            writer.flush()
            assert [line["step"] for line in read_metrics(run)] == list(range(1, step + 1))
    writer.close()
    uploads = sum(count for name, count in cloud.proxy.requests.items() if name.startswith("POST"))
    assert uploads == 1 + 2 * (REPORTS // 20)  # the first upload is an empty file
    assert len(list((run / "tensorboard").iterdir())) == REPORTS // 20


def test_tensorboard_reads_one_ordered_curve(cloud: Cloud) -> None:
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
                resumed.append(event.step)  # TensorBoard drops this and later steps
            steps += [event.step for value in event.summary.value if value.tag == "train/loss"]
    assert sorted(steps) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 8]
    assert 5 in resumed


def steps_on_the_board(run: epath.Path) -> list[int]:
    """Returns the steps of all points of the curves, sorted."""
    return sorted(
        event.step
        for path in (run / "tensorboard").iterdir()
        for record in scan_records(path)
        for event in [Event.FromString(record.payload)]
        if event.summary.value
    )


@pytest.mark.parametrize("how", ["forbidden", "down"])
def test_refused_metrics_wait_and_are_reported_once(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(storage_retries, "GIVE_UP_SECONDS", 0.1)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.02)
    run, said = cloud.make_bucket() / "run", []
    writer = RunWriter(run, resume_step=0, say=said.append)

    def report(*steps: int) -> None:
        for step in steps:
            writer.write("train", step, {"loss": 1.0})

    report(1)
    setattr(cloud.proxy, how, True)
    report(2, 3, 4)
    reason = failure_of(writer.flush)  # a failed upload of metrics does not prevent a checkpoint
    why = "(over quota)" if how == "forbidden" else "try again"
    assert reason is not None
    assert why in reason
    assert said == []  # the failing save prints it
    setattr(cloud.proxy, how, False)
    writer.flush()
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4]
    report(5)
    writer.flush()
    setattr(cloud.proxy, how, True)
    report(6)
    writer.close()
    assert "; 1 line not saved" in " ".join(said)
    setattr(cloud.proxy, how, False)
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4, 5]
    assert steps_on_the_board(run) == [1, 2, 3, 4, 5]
