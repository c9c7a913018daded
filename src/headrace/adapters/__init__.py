"""headrace in the shape of other libraries: a module each, which imports the library that it is named after.

They decide two things that a framework does for torch's DataLoader and not for others: which part of the data a rank
takes (once, never twice), and what the framework wants to be told. The loading itself is `headrace.feed`'s.
"""
