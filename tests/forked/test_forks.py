"""A fork is the process that a start of Python would have been."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.forked.forks import forked_python, process_behind
from tests.project import environment

FACTS = """
import json, os, pathlib, signal, sys
JAX
LEFT_OUT = ("_", "CRC32C_SW_MODE")  # the latter is tensorboardX's, which this does not import
files = {int(each.name) for each in pathlib.Path("/proc/self/fd").iterdir() if each.exists()}
print(json.dumps({
    "arguments": sys.argv,
    "name": __name__,
    "directory": os.getcwd(),
    "path": sys.path[:3],
    "environment": {name: value for name, value in os.environ.items() if name not in LEFT_OUT},
    "jax": {name: repr(value) for name, value in jax and jax.config.values.items() or ()},
    "input": sys.stdin.read(),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)],
    "files": sorted(files & {0, 1, 2, OPEN}),
}))
"""


def facts(python: str, directory: Path, *arguments: str, said: str = "") -> dict[str, Any]:
    """What a process of some Python says of itself, with a file open that it was given."""
    with (directory / "open").open("w") as opened:
        program = FACTS.replace("OPEN", str(opened.fileno()))
        program = program.replace("JAX", "import jax" if arguments[0] == "-c" else "jax = None", 1)
        (directory / "facts.py").write_text(program)
        words = {"-c": ["-c", program], "-m": ["-m", "facts"]}
        changed = {"JAX_NUM_CPU_DEVICES": "3", "JAX_LOG_COMPILES": "1", "JAX_DEBUG_NANS": "true"}
        done = subprocess.run(
            [python, *words.get(arguments[0], arguments[:1]), *arguments[1:]],
            env=environment() | changed | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.25"},
            cwd=directory,
            input=said,
            capture_output=True,
            text=True,
            check=True,
            pass_fds=[opened.fileno()],
        )
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["-c", "-m", "facts.py"])
def test_it_is_given_what_a_start_is_given(tmp_path: Path, kind: str) -> None:
    arguments = (tmp_path, kind, "a b", "")
    found = facts(forked_python(), *arguments, said="read")
    assert found == facts(sys.executable, *arguments, said="read")
    assert found["input"] == "read"
    assert found["jax"].get("jax_num_cpu_devices", "3") == "3"


def test_its_end_is_the_commands(tmp_path: Path) -> None:
    programs = {
        "raise SystemExit(43)": 43,
        "raise SystemExit('one line')": 1,
        "1 / 0": 1,
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
        "raise KeyboardInterrupt": -signal.SIGINT,
        "import atexit; atexit.register(print, 'last')": 0,
        "import threading, time; threading.Thread(target=lambda: print('last')).start()": 0,
    }
    for program, code in programs.items():
        done = subprocess.run(
            [forked_python(), "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (program, done)
        assert ("last" in done.stdout) is (code == 0)


def test_signals_reach_it_and_a_killed_command_kills_it() -> None:
    program = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("here", flush=True)
print(int(signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1))
"""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
        process = subprocess.Popen(
            [forked_python(), "-c", program], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        fork = psutil.Process(process_behind(process.pid))
        process.send_signal(number)
        output, _ = process.communicate()
        psutil.wait_procs([fork], timeout=60)
        assert not fork.is_running()
        if number == signal.SIGUSR1:
            assert (output, process.returncode) == ("1\n", 0)
        else:
            assert (output, process.returncode) == ("", -number)
