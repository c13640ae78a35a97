"""Which distributions are installed, which copy counts, and which may take part: decided from metadata alone."""
