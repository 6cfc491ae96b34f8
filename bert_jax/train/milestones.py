"""The moments of a run that a benchmark's log needs."""

from collections.abc import Mapping


class Milestones:
    """Receives the milestones of a run from the train loop. This class ignores them.

    Steps are steps of the run.
    """

    def started(self) -> None:
        """Everything is compiled; next, the run evaluates or trains."""

    def training(self, step: int, *, until: int) -> None:
        """Training continues after `step`, up to the evaluation after `until`."""

    def evaluating(self, step: int) -> None:
        """An evaluation of `step` begins."""

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """The evaluation of `step` has ended."""

    def ended(self, step: int, *, target_reached: bool) -> None:
        """The run has ended; only the first call counts.

        Args:
            step: last step.
            target_reached: whether a score met `train.evaluation.stop_at`.
        """

    def flush(self) -> None:
        """Writes everything to files. Call it before a checkpoint."""

    def close(self) -> None:
        """Writes everything and closes the files."""
