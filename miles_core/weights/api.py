"""What transports import beside ``miles_core.api``."""

from miles_core.weights.bucket_file import bucket_checksums, read_bucket, write_bucket

__all__ = ["bucket_checksums", "read_bucket", "write_bucket"]
