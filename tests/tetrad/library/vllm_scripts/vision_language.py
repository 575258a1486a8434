from dataclasses import asdict
from typing import NamedTuple

from PIL import Image

from tetrad import LLM, EngineArgs, SamplingParams
from tetrad.multimodal.image import convert_image_mode
from tetrad.multimodal.utils import encode_image_url, fetch_image


class ModelRequestData(NamedTuple):
    engine_args: EngineArgs
    prompts: list[str]
    stop_token_ids: list[int] | None = None


def run_llava(questions: list[str], modality: str) -> ModelRequestData:
    assert modality == "image"
    prompts = [f"USER: <image>\n{question}\nASSISTANT:" for question in questions]
    engine_args = EngineArgs(model="llava-hf/llava-1.5-7b-hf", max_model_len=512, limit_mm_per_prompt={modality: 2})
    return ModelRequestData(engine_args=engine_args, prompts=prompts)


if __name__ == "__main__":
    data = convert_image_mode(Image.new("RGBA", (64, 48), (200, 30, 30, 128)), "RGB")
    assert fetch_image(encode_image_url(data)).size == data.size
    req_data = run_llava(["What is the content of this image?", "What colour is it?"], "image")
    engine_args = asdict(req_data.engine_args) | {"seed": 0, "mm_processor_cache_gb": 4}
    llm = LLM(**engine_args)
    sampling_params = SamplingParams(temperature=0.2, max_tokens=8, stop_token_ids=req_data.stop_token_ids)
    inputs = [
        {"prompt": prompt, "multi_modal_data": {"image": data}, "multi_modal_uuids": {"image": "uuid_0"}}
        for prompt in req_data.prompts
    ]
    for output in llm.generate(inputs, sampling_params=sampling_params):
        print("generated:", len(output.outputs[0].token_ids))
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare these images."},
                {"type": "image_pil", "image_pil": data},
                {"type": "image_url", "image_url": {"url": encode_image_url(data)}},
            ],
        }
    ]
    (output,) = llm.chat(messages, sampling_params=sampling_params)
    print("chat:", len(output.outputs[0].token_ids))
    try:
        llm.generate({"prompt": "<image>" * 3, "multi_modal_data": {"image": [data] * 3}})
    except ValueError as error:
        print("ValueError:", error)
