"""Which endings of a run's process are followed by another start."""

import pytest

from bert_jax.launch.job import Ending
from bert_jax.launch.run_process import MOST_UNCAUGHT, Restarts


def ending(code: int, step: int | None = None) -> Ending:
    return Ending(at=0.0, exit_code=code, step=step, message=f"said {code}")


def test_a_run_that_is_done_or_that_no_restart_mends_is_not_started_again() -> None:
    for code, state in ((0, "done"), (1, "failed"), (2, "failed")):
        verdict = Restarts(1.0).judge(ending(code, 5))
        assert (verdict.state, verdict.exit_code, verdict.pause) == (state, code, None)
        assert verdict.message == f"said {code}"


def test_a_signal_and_a_lost_peer_are_no_fault_of_the_step() -> None:
    restarts = Restarts(1.0)
    for code in (3, 4, 3, 4, 4):
        assert restarts.judge(ending(code, 7)).state == "restarting"


def test_dying_twice_at_one_step_ends_the_host() -> None:
    for code in (43, 137, 134, 5):
        restarts = Restarts(1.0)
        assert restarts.judge(ending(code, 7)).pause == 1.0
        assert restarts.judge(ending(4, 6)).state == "restarting"
        verdict = restarts.judge(ending(code, 7))
        assert (verdict.state, verdict.exit_code) == ("failed", 1)
        assert verdict.message == f"the run died twice at step 7: said {code}"


@pytest.mark.parametrize("steps", [(None,), (7,), (7, 8, 9, 10)], ids=str)
def test_uncaught_exceptions_get_a_few_restarts_without_a_new_checkpoint(
    steps: tuple[int | None, ...],
) -> None:
    restarts = Restarts(1.0)
    at = [steps[turn % len(steps)] for turn in range(MOST_UNCAUGHT + 1)]
    for saved in (-1, 5):
        for step in at[:-1]:
            assert restarts.judge(ending(70, step), saved=saved).state == "restarting"
            assert restarts.judge(ending(4, step)).state == "restarting"  # of another process
    verdict = restarts.judge(ending(70, at[-1]), saved=5)
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert "4 uncaught exceptions without a new checkpoint" in verdict.message
    assert verdict.message.endswith("said 70")


def test_dying_twice_before_the_first_report_ends_the_host_unless_there_was_progress() -> None:
    restarts = Restarts(1.0)
    assert restarts.judge(ending(137)).state == "restarting"
    assert restarts.judge(ending(137, 9)).state == "restarting"
    assert restarts.judge(ending(137)).state == "restarting"
    assert "before its first report" in restarts.judge(ending(137)).message


def test_pauses_double_up_to_two_minutes_and_begin_anew_with_progress() -> None:
    restarts = Restarts(5.0)
    pauses = [restarts.judge(ending(4, 3)).pause for _ in range(7)]
    assert pauses == [5, 10, 20, 40, 80, 120, 120]
    assert restarts.judge(ending(4, 4)).pause == 5
