"""What a grid has done and is about to do, on disk, written before every action outside."""
