"""The job file: YAML with the place of every key, overrides from the command line, the JSON schema."""
