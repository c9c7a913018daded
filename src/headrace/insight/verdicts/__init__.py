"""What holds a run back: nine rules over measured evidence."""
