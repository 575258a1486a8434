"""The lifeline: its read end reports the end of the process that holds the other one."""

import os

from tetrad.stack.lifeline import Lifeline


def test_a_service_reads_the_end_when_the_lifeline_is_closed():
    lifeline = Lifeline()
    inherited = os.dup(lifeline.read_end)

    lifeline.close()
    lifeline.close()

    assert os.read(inherited, 1) == b""
    assert lifeline.read_end == -1
    os.close(inherited)
