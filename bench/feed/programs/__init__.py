"""Programs that the suite starts as processes: the peers' servers, and trials that need a fresh process."""
