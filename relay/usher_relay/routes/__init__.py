"""Sources of the route table."""
