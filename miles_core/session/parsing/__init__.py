"""What a generated turn says: reasoning, content and calls, by a syntax that is learned from the chat template."""
