"""What is known of models: token encodings, windows, other providers."""
