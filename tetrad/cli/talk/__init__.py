"""The parts of `tetrad chat`: the terminal, the commands, the conversation."""
