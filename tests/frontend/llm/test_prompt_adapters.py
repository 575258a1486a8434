"""The virtual tokens of a prompt adapter take room of the context."""

import json

import torch
from safetensors.torch import save_file

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.sampling_params import SamplingParams


async def test_a_truncated_prompt_leaves_room_for_virtual_and_new_tokens(llm, engine, tmp_path):
    """The context has 512 tokens: 20 virtual ones, 10 new ones, and 482 of the prompt."""
    save_file({"prompt_embeddings": torch.zeros(20, 16)}, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    params, adapter = SamplingParams(max_tokens=10), LoRARequest("prefix", 1, str(tmp_path))

    stream = await llm.add_request("r", [120] * 600, params, lora_request=adapter, truncate_prompt_tokens=-1)
    await engine.until(lambda: engine.requests)

    assert len(stream.prompt_token_ids) == 482
    assert engine.requests[0].sampling_params.max_tokens == 10
