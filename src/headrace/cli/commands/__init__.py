"""One module a group of commands of `headrace`; a command is the function of its name."""
