"""What a person and a machine see of a run: progress, metrics, sample dumps."""
