"""Messages between agents and coordinator, and the connections that carry them."""
