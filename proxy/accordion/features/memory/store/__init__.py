"""Stores memories, with their index and their embeddings."""
