"""Conversations whose exact tokens are recorded: the tree and token-in-token-out."""
