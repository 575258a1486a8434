"""TorchProfiler: the traces of a worker with torch."""

import shutil

import pytest

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.worker.profiler import TorchProfiler


def test_a_trace_that_cannot_be_written_is_told(tmp_path):
    """torch only writes to stderr that it could not write."""
    profiler = TorchProfiler(tmp_path / "profiles")
    profiler.start("")
    shutil.rmtree(tmp_path / "profiles")

    with pytest.raises(FailedPrecondition, match=f"{tmp_path}/profiles/profile-worker-.* cannot be written"):
        profiler.stop()

    profiler.start("")
    assert profiler.stop().exists()
