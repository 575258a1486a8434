"""CPU time and memory go to the service whose process used them."""

import subprocess
import sys
import time

import pytest

from benchmarks.processes import CLIENT, CpuMeter, ProcessTree

# A process named like a service by its arguments, which starts a helper that says so and waits.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


@pytest.mark.parametrize("word", ["tetrad.worker_svc", "tetrad.worker_svc.template"])
def test_what_a_service_starts_is_its_own(word):
    process = subprocess.Popen([sys.executable, "-c", PARENT, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()

        memory = ProcessTree(process.pid).memory_bytes()
    finally:
        process.communicate(b"\n", timeout=10)

    assert set(memory) == {"worker"}
    assert len(memory["worker"]) == 2
    assert all(size > 0 for size in memory["worker"])


def test_the_clients_own_time_is_counted():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        meter = CpuMeter(ProcessTree(process.pid, "server"))
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        used = meter.read()
    finally:
        process.communicate(b"\n", timeout=10)

    assert used[CLIENT] >= 0.05
    assert used["server"] < used[CLIENT]
