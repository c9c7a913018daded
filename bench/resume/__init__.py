"""Resume and killed workers over tar files: what is lost, what comes twice, and how long it takes."""
