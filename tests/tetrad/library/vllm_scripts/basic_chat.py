from tetrad import LLM, SamplingParams

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": [{"type": "text", "text": "Write an essay"}, {"type": "text", "text": "on higher education."}]},
]


def main():
    llm = LLM("meta-llama/Llama-3.2-1B-Instruct", enforce_eager=True)
    sampling_params = SamplingParams(max_tokens=6)
    outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
    outputs += llm.chat([conversation for _ in range(3)], sampling_params=sampling_params, use_tqdm=True)
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    outputs += llm.chat(conversation, sampling_params, use_tqdm=False, chat_template=template)
    outputs += llm.chat(conversation, sampling_params, chat_template_content_format="openai")
    for output in outputs:
        print(output.prompt, output.outputs[0].text)


if __name__ == "__main__":
    main()
