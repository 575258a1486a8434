"""Carriers for tests. `pytestmark = OVER_EACH_CARRIER` runs every test of a module over each of them, else it is gRPC."""

import pytest

from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.rpc.carrier import GRPC, Carrier

OVER_EACH_CARRIER = pytest.mark.parametrize("carrier", ["grpc", "direct"], indirect=True)


def make_carrier(request: pytest.FixtureRequest) -> Carrier:
    """Return the carrier of a test: the body of a fixture `carrier`."""
    return DirectCarrier() if getattr(request, "param", "grpc") == "direct" else GRPC
