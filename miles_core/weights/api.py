"""What transports import beside ``miles_core.api``."""

from miles_core.weights.bucket_file import bucket_checksum, read_bucket, write_bucket

__all__ = ["bucket_checksum", "read_bucket", "write_bucket"]
