"""Sums with several tries: what the policy acts in, how it is scored, and what is worth training on."""
