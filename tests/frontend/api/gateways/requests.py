"""Requests for completions, as gateways send them."""

from smg_grpc_proto.generated import vllm_engine_pb2

from tetrad.openengine_api import inference_pb2


def vllm_engine_request(*, ids=(1, 2), stream=True, params=None, **fields):
    """Return a GenerateRequest of vllm.grpc.engine with the values that smg sets."""
    return vllm_engine_pb2.GenerateRequest(
        tokenized=vllm_engine_pb2.TokenizedInput(original_text="hi", input_ids=ids),
        sampling_params=vllm_engine_pb2.SamplingParams(
            **({"top_p": 1.0, "repetition_penalty": 1.0, "n": 1, "max_tokens": 9, "skip_special_tokens": True} | (params or {}))
        ),
        stream=stream,
        **fields,
    )


def openengine_request(**fields):
    """Return a GenerateRequest of openengine.v1 for nine tokens, with a prompt of two ids if there is no other."""
    defaults = {"token_ids": inference_pb2.TokenIds(ids=[1, 2]), "stopping": inference_pb2.StoppingOptions(max_tokens=9)}
    if "prompt" in fields:
        del defaults["token_ids"]
    return inference_pb2.GenerateRequest(**(defaults | fields))
