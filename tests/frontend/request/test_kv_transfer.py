"""KvTransfer: vLLM's JSON object kv_transfer_params, read and written."""

import json

import pytest

from tetrad.frontend.engine.kv_transfer_wire import decode_kv_transfer, encode_kv_transfer
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.services.errors import InvalidRequest

OF_VLLM = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3], [4]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.7",
    "remote_port": 5600,
    "tp_size": 2,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 48,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
}


def test_an_object_of_vllm_keeps_all_its_keys():
    transfer = KvTransfer.of(OF_VLLM)

    assert json.loads(json.dumps(transfer.to_json())) == OF_VLLM | {"lease_id": "0"}


def test_a_lease_survives_readers_that_have_only_floats():
    transfer = KvTransfer.of({"do_remote_prefill": True, "lease_id": str(2**64 - 1)})

    text = json.dumps(transfer.to_json())
    read_with_floats = json.loads(text, parse_int=lambda digits: int(float(digits)))
    assert KvTransfer.of(read_with_floats).lease_id == 2**64 - 1


def test_the_message_holds_all_values():
    transfer = KvTransfer.of(OF_VLLM | {"lease_id": 7})

    assert decode_kv_transfer(encode_kv_transfer(transfer)) == transfer


DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [None, {}, {"do_remote_decode": False, "do_remote_prefill": False}, {"remote_host": None}])
def test_an_object_that_asks_for_nothing_is_none(value):
    assert KvTransfer.of(value) is None


def test_the_proxy_s_request_with_nulls_asks_for_remote_decode():
    nulls = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))

    assert KvTransfer.of({"do_remote_decode": True, "do_remote_prefill": False, **nulls}) == KvTransfer(do_remote_decode=True)


def test_an_unknown_key_alone_is_for_the_engine_core():
    assert json.loads(KvTransfer.of({"a": 1}).extra_json) == {"a": 1}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"do_remote_decode": 1}, "do_remote_decode"),
        ({"do_remote_decode": True}, "do_remote_decode and do_remote_prefill"),
        ({"remote_engine_id": 5}, "remote_engine_id"),
        ({"remote_host": "\ud800"}, "remote_host"),
        ({"remote_port": "5600"}, "remote_port"),
        ({"remote_port": 65536}, "remote_port"),
        ({"remote_block_ids": [1, 2]}, "remote_block_ids"),
        ({"remote_block_ids": [[1.0]]}, "remote_block_ids"),
        ({"remote_block_ids": [[-1]]}, "remote_block_ids"),
        ({"tp_size": True}, "tp_size"),
        ({"remote_num_tokens": 2**32}, "remote_num_tokens"),
        ({"lease_id": 2**53 + 1}, "lease_id"),
        ({"lease_id": str(2**64)}, "lease_id"),
        ({"lease_id": "0x1"}, "lease_id"),
        ({"transfer_mode": "steal"}, "transfer_mode"),
        ({"other": float("nan")}, "other"),
        ({"other": object()}, "other"),
        pytest.param({"other": DEEP}, "other", id="deep"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(changes, key):
    with pytest.raises(InvalidRequest, match=f"kv_transfer_params.*{key}") as caught:
        KvTransfer.of(OF_VLLM | changes)

    assert caught.value.field == "kv_transfer_params"


def test_something_else_than_an_object_is_refused():
    with pytest.raises(InvalidRequest, match=r"kv_transfer_params must be an object, got \[\]"):
        KvTransfer.of([])
