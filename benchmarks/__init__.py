"""What miles costs and what it buys, measured: ``python -m benchmarks``."""
