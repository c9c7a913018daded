"""The client's side: what is asked of whom, what came back, and the workers it comes from."""
