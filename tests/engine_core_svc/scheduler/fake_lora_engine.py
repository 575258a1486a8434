"""A fake engine around the LoRA adapters: its requests join or wait, and its worker takes orders. Adapter n is `a<n>`."""

from tetrad.engine_core_svc.core.adapter import LoraRef
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL

RUNNING, PARKED = RequestStatus.RUNNING, RequestStatus.WAITING_FOR_LORA


def ref(number, **fields):
    return LoraRef(**{"name": f"a{number}", "lora_id": number, "path": f"/a{number}", **fields})


class FakeLoraEngine:
    """Adapters, their orders to the worker, and requests in the order of their numbers."""

    def __init__(self, max_loras=1, max_cpu_loras=2, *, policy="fcfs", is_up=True):
        self.adapters = Adapters(AdapterLimits(max_loras, max_cpu_loras), ORDERS_OF_ARRIVAL[policy])
        self.wanted, self.evicted, self.released, self.num_requests, self.returned = [], [], [], 0, 100
        self.adapters.on_wanted = lambda adapter: self.wanted.append(adapter.ref.name)
        self.adapters.on_evicted = lambda adapter: self.evicted.append(adapter.ref.name)
        self.adapters.bind(self.released.append, lambda: self.returned)
        if is_up:
            self.adapters.worker_ready()

    def load(self, *numbers, digest=b"1"):
        for number in numbers:
            adapter = self.adapters.resolve(ref(number))
            self.adapters.want(adapter)
            self.adapters.loaded(adapter, digest)
        self.adapters.refill()

    def request(self, number, priority=0):
        """A request that joins the queue or is parked, as request states do it."""
        self.num_requests += 1
        adapter = None if number is None else self.adapters.resolve(ref(number))
        request = Request(
            self.num_requests, f"r{self.num_requests}", [1, 2], 2, 9, priority=priority,
            sequence_number=self.num_requests, adapter=adapter,
        )  # fmt: skip
        self.adapters.begin(request)
        if not self.adapters.admits(request):
            request.move_to(PARKED)
            self.adapters.park(request)
        return request

    def end(self, request, status=RUNNING):
        self.adapters.end(request, status)

    def names(self, attribute):
        return [adapter.ref.name for adapter in self.adapters.registry if getattr(adapter, attribute)]
