"""A job as a CreateTrainingJob request, in both directions, and what the service would refuse of it."""
