"""What a run holds on disk: files that programs wrote, sizes, and its removal."""
