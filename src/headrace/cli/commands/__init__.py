"""One module a command of `headrace`; each defines `command`."""
