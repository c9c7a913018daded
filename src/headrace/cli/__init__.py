"""The command line: one module a group of commands, no logic of its own.

A command module is imported for `headrace --help` too, so at its top it imports click and nothing heavy.
"""
