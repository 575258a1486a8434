"""An engine core and its worker, with the settings of their pods."""

import contextlib

from structlog.testing import capture_logs

from tests.kubernetes.manifests import settings_of
from tetrad.engine_core_svc.worker.link import WorkerLink
from tetrad.worker_svc.service import WorkerServer


async def test_a_worker_has_loaded_by_itself_what_its_engine_core_asks_for(smollm2, socket_directory):
    """Weights are loaded once: when the pod starts, not again when the engine core comes."""
    address = f"unix:{socket_directory}/worker"
    worker = settings_of("cpu", "worker").model_copy(update={"listen": address, "device": "sim"})
    engine_core = settings_of("cpu", "engine-core").model_copy(update={"worker_target": address})

    async with contextlib.AsyncExitStack() as stack:
        with capture_logs() as logs:
            served = await WorkerServer.start(worker)
            stack.push_async_callback(served.stop)
            loaded_alone = [line for line in logs if line["event"] == "model.loaded"]
            link = WorkerLink(engine_core, epoch=1)
            stack.push_async_callback(link.close)
            await link.bring_up()

    loads = [line for line in logs if line["event"] == "model.loaded" and "architecture" in line]
    assert loads == loaded_alone
    assert len(loads) == 1
