"""The parser of programs made for vLLM, where programs made for vLLM import them from."""

from tetrad.drop_in.command_line import FlexibleArgumentParser as FlexibleArgumentParser
