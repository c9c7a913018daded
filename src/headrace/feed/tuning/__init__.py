"""How many workers a loader has, chosen while it runs: the rules, what they are told, and how they are followed."""
