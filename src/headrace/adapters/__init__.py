"""headrace in the shape of other libraries: a module each, which imports the library that it is named after.

They do two things that a framework does only for torch's DataLoader: they choose the part of the data that a rank
takes (once, never twice), and they give the framework the attributes that it reads. `headrace.feed` does the loading.
"""
