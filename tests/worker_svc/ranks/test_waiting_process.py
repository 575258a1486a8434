"""The process of a rank that waits for the others of its group."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import grpc

from tetrad.v1 import worker_pb2, worker_pb2_grpc


def wait_for_group_file(directory: Path) -> None:
    """Wait until the first rank has opened the file at which the ranks meet."""
    while not list(directory.glob("0.group-*")):
        time.sleep(0.05)


async def test_a_signal_to_stop_ends_a_rank_that_waits_for_the_others_with_code_0(socket_directory):
    target = f"unix:{socket_directory}/worker.sock"
    settings = {"TETRAD_WORKER_LISTEN": target, "TETRAD_WORKER_DEVICE": "cpu", "TETRAD_WORKER_THREADS": "1"}
    addresses = [f"unix:{socket_directory}/{rank}" for rank in range(2)]
    group = worker_pb2.WorkerGroup(tensor_parallel_size=2, pipeline_parallel_size=1, group_epoch=1, addresses=addresses)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tetrad.worker_svc", env=os.environ | settings)
    try:
        async with asyncio.timeout(60), grpc.aio.insecure_channel(target) as channel:
            life = worker_pb2_grpc.WorkerLifecycleServiceStub(channel)
            joining = life.JoinGroup(worker_pb2.JoinGroupRequest(rank=0, group=group, timeout_s=60.0), wait_for_ready=True)
            await asyncio.to_thread(wait_for_group_file, socket_directory)

            process.send_signal(signal.SIGTERM)

            assert await process.wait() == 0
            joining.cancel()
    finally:
        if process.returncode is None:
            process.kill()
