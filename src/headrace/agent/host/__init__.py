"""What an agent does on its host: starts, watches and ends programs and data servers."""
