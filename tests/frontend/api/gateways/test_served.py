"""The choice of foreign APIs, by the setting and the installed packages."""

import importlib.util
from types import SimpleNamespace

import grpc
import pytest
from pydantic import ValidationError

from tetrad.frontend.api.gateways import served
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import FailedPrecondition
from tetrad.services.rpc.channel import open_channel
from tetrad.vllm_api import control_pb2, control_pb2_grpc

VLLM = {"vllm.Inference", "vllm.Control"}
OPENENGINE = {"openengine.v1.Inference", "openengine.v1.Control"}


def names_of(apis):
    return set(served.gateway_services(apis, SimpleNamespace(first=None), None, None))


def test_by_default_all_are():
    assert FrontendSettings().gateway_apis == ("auto",)
    assert names_of(("auto",)) == {"vllm.grpc.engine.VllmEngine", *VLLM, *OPENENGINE}


def test_only_those_that_are_named_are():
    assert names_of(("vllm",)) == VLLM
    assert names_of(("openengine",)) == OPENENGINE
    assert names_of(()) == set()


def test_without_its_package_one_is_left_out_and_refused_by_name(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert names_of(("auto",)) == VLLM | OPENENGINE
    with pytest.raises(FailedPrecondition, match="pip install smg-grpc-proto"):
        names_of(("smg",))


def test_an_unknown_name_is_an_error_of_one_line():
    with pytest.raises(ValidationError, match="there is no API 'triton'; there are auto, smg, vllm, openengine"):
        FrontendSettings(gateway_apis=("triton",))


def test_auto_beside_names_is_refused_as_such():
    with pytest.raises(ValidationError, match="auto stands alone: it means all whose packages are installed"):
        FrontendSettings(gateway_apis=("auto", "smg"))


async def test_one_that_is_not_served_is_unimplemented(serve_frontend):
    async with (
        serve_frontend(listen="127.0.0.1:0", gateway_apis=()) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await control_pb2_grpc.ControlStub(channel).GetModelInfo(control_pb2.GetModelInfoRequest())

    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
