"""A rate limit per client, as a router middleware."""
