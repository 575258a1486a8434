from tetrad import LLM, EngineArgs
from tetrad.utils.argparse_utils import FlexibleArgumentParser


def create_parser():
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="meta-llama/Llama-3.2-1B-Instruct")
    group = parser.add_argument_group("Sampling parameters")
    group.add_argument("--max-tokens", type=int)
    group.add_argument("--temperature", type=float)
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=int)
    return parser


def main(args: dict):
    chosen = {name: args.pop(name) for name in ("max_tokens", "temperature", "top_p", "top_k")}
    llm = LLM(**args)
    sampling_params = llm.get_default_sampling_params()
    for name, value in chosen.items():
        if value is not None:
            setattr(sampling_params, name, value)
    for output in llm.generate(["Hello, my name is", "The capital of France is"], sampling_params):
        print(output.prompt, output.outputs[0].text)


if __name__ == "__main__":
    flags = ["--max_tokens", "5", "--temperature", "0.5", "--tensor-parallel-size", "1", "--trust-remote-code"]
    main(vars(create_parser().parse_args(flags)))
