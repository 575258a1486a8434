"""Beam search over a frontend."""

import json

import torch
from safetensors.torch import save_file

from tetrad.frontend.llm.beam_search import BeamSearchParams, beam_search
from tetrad.frontend.request.outputs import LoRARequest


async def test_a_search_ends_where_virtual_tokens_and_prompt_fill_the_context(llm, tmp_path):
    """The context has 512 tokens: 20 virtual ones, 488 of the prompt, and 4 that each beam may have."""
    save_file({"prompt_embeddings": torch.zeros(20, 16)}, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    adapter, params = LoRARequest("prefix", 1, str(tmp_path)), BeamSearchParams(beam_width=2, max_tokens=10, ignore_eos=True)

    found = await beam_search(llm, "r", [120] * 488, params, lora_request=adapter)

    assert [(len(each.tokens), each.finish_reason) for each in found.sequences] == [(492, "length")] * 2


async def test_beams_have_no_ids_that_the_tokenizer_lacks(connect, tokenizer, engine):
    """Tables of models are padded: their last ids may be among the candidates, and no prompt may have them."""
    tokenizer.vocab_size = ord("k")
    engine.reply = lambda _, position: ord("i")  # j, k, l and so on are less likely
    llm = await connect()

    found = await beam_search(llm, "r", [100] * 3, BeamSearchParams(beam_width=3, max_tokens=3, ignore_eos=True))

    assert len(found.sequences) == 3
    assert {token_id for each in found.sequences for token_id in each.tokens[3:]} == set(b"ij")
