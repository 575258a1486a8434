"""The argument parser of programs made for vLLM, under vLLM's import path."""

from tetrad.drop_in.command_line import FlexibleArgumentParser as FlexibleArgumentParser
