"""What runs in TRL's own environment: its pins and its script. Nothing here imports miles."""
