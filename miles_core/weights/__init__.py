"""Versioned weight updates as transactions: plan, publish, receive."""
