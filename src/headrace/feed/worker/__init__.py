"""The worker's side: a feed server, its queue, and the executor processes behind it."""
