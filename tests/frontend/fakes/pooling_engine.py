"""An engine core that pools, for the frontend's tests."""

from tests.frontend.fakes.engine import FakeEngine
from tetrad.services.rpc.columns import pack_f32
from tetrad.v1 import engine_core_pb2, types_pb2

STEP_TOKENS = 2048
"""Maximum number of prompt tokens of a step."""


class PoolingEngine(FakeEngine):
    """Answers a step of prompts at a time with their last five bytes.

    Attributes:
        num_expected: until so many requests have arrived, only full steps are taken.
    """

    def __init__(self, path):
        super().__init__(path)
        self.num_expected = 0

    def _can_step(self, running):
        waiting = sum(len(each.prompt) for each in running.values())
        return waiting >= STEP_TOKENS or len(self.requests) >= self.num_expected

    def _info(self):
        info = super()._info()
        info.pooling.CopyFrom(types_pb2.PoolingInfo(tasks=["embed"], embedding_size=5))
        return info

    def _step(self, running):
        outputs = engine_core_pb2.EngineCoreOutputs(step_id=self.num_steps)
        room = STEP_TOKENS
        for request_id, each in list(running.items()):
            room -= len(each.prompt)
            if room < 0:
                break
            values = types_pb2.Tensor(dtype=types_pb2.DATA_TYPE_FLOAT32, shape=[5], inline=pack_f32(each.prompt[-5:]))
            outputs.outputs.append(
                engine_core_pb2.EngineCoreOutput(
                    handle=each.request.handle,
                    request_id=request_id,
                    finish_reason=types_pb2.FINISH_REASON_STOP,
                    pooling_output=values,
                )
            )
            del running[request_id]
        return outputs
