"""Between the host supervisors of a run on several machines: what they tell each other, and what travels with it."""
