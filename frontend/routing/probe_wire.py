"""Probe: the request that has a producer compute a prompt and keep its KV blocks. Its only token is dropped."""

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence, SharedParams
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sequence import Sequence
from tetrad.v1 import engine_core_pb2, types_pb2

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)
_MESSAGE = types_pb2.SamplingParams(max_tokens=1, ignore_eos=True, temperature=0.0)
_SHARED = SharedParams(_MESSAGE, _MESSAGE.ByteSize())


def probe_of(first: ActiveSequence, handle: int, producer: EngineClient) -> ActiveSequence:
    """Return a probe with the prompt, and with all that determines its KV blocks, of a request's first sequence.

    Args:
        first: the first sequence.
        handle: the probe's own handle.
        producer: the engine core that runs the probe.
    """
    message = engine_core_pb2.EngineCoreRequest()
    message.CopyFrom(first.message)
    message.request_id, message.handle = f"prefill_{first.message.request_id}", handle
    message.ClearField("predicted_token_ids")
    message.kv_transfer.do_remote_decode = True
    sequence = Sequence(
        message.request_id,
        handle,
        0,
        first.sequence.prompt_token_ids,
        _PARAMS,
        seed=first.sequence.seed,
        max_tokens=1,
        lora_request=first.sequence.lora_request,
        deadline=first.sequence.deadline,
    )
    return ActiveSequence(
        sequence,
        first.request,
        producer,
        message,
        first.prompt_token_ids,
        _SHARED,
        message.ByteSize(),
        features=first.features,
        bare_features=first.bare_features,
        may_wait=False,
    )
