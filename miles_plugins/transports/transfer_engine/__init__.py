"""What the ``mooncake`` transport needs around Mooncake's TransferEngine, which checks and explains little itself."""
